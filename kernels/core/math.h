// The engine's own elementary functions, for scalars and lanes alike: polynomials evaluated by FMA, so that every
// machine, thread and device computes the same bits. Each states its error bound, which math_test.cpp checks.
// exp_: relative error <= 1 ulp on [-87.3, 88.7]; 0 below, inf above; NaN passes.
// log_: <= 1 ulp for positive normal numbers; log(0) = -inf (denormals count as 0); negative -> NaN; NaN passes.
// rsqrt_: 1 / sqrt(x), two IEEE operations (what torch.rsqrt computes on a CPU).
// sin_cos_: for |x| <= 65536 correctly rounded in all but a vanishing share of arguments (in double, rounded once).
// The double functions serve tables and initialisation: relative error below 2^-50 on the ranges that they state.
#pragma once
#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/core/lanes.h"

namespace plumb {

namespace math_detail {

// Inlined by force: a call would pass the lanes through memory, which costs as much as the polynomial.

// The few operations on bits that the polynomials need, for scalars and lanes.
inline float select_less(float a, float b, float x, float y) { return a < b ? x : y; }
inline float select_nan(float a, float x, float y) { return a != a ? x : y; }
/// p * 2^n, with n in the low bits of `shifted` = n + 1.5 * 2^23. The result must be a normal number.
inline float scale_by_power(float p, float shifted) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) + (std::bit_cast<std::uint32_t>(shifted) << 23));
}
inline constexpr std::uint32_t kSqrtHalf = 0x3F3504F3u;  // the bits of sqrt(1/2)
/// x = mantissa * 2^exponent with mantissa in [sqrt(1/2), sqrt(2)); x positive and normal.
inline void split(float x, float& mantissa, float& exponent) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::int32_t e = std::int32_t(u - kSqrtHalf) >> 23;
  mantissa = std::bit_cast<float>(u - (std::uint32_t(e) << 23));
  exponent = float(e);
}

template <int kPredicate>
F32x16 select(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, kPredicate)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, kPredicate))};
}
inline F32x16 select_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) { return select<_CMP_LT_OQ>(a, b, x, y); }
inline F32x16 select_nan(F32x16 a, F32x16 x, F32x16 y) { return select<_CMP_UNORD_Q>(a, a, x, y); }
inline __m256 scale_by_power(__m256 p, __m256 shifted) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(shifted), 23)));
}
inline F32x16 scale_by_power(F32x16 p, F32x16 shifted) { return {scale_by_power(p.lo, shifted.lo), scale_by_power(p.hi, shifted.hi)}; }
inline void split(__m256 x, __m256& mantissa, __m256& exponent) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i e = _mm256_srai_epi32(_mm256_sub_epi32(u, _mm256_set1_epi32(int(kSqrtHalf))), 23);
  mantissa = _mm256_castsi256_ps(_mm256_sub_epi32(u, _mm256_slli_epi32(e, 23)));
  exponent = _mm256_cvtepi32_ps(e);
}
inline void split(F32x16 x, F32x16& mantissa, F32x16& exponent) {
  split(x.lo, mantissa.lo, exponent.lo);
  split(x.hi, mantissa.hi, exponent.hi);
}

/// c[0] + c[1] x + ... by Horner's rule in FMAs.
template <class V, std::size_t n>
[[gnu::always_inline]] inline V polynomial(V x, const float (&c)[n]) {
  V p = c[n - 1];
  for (std::size_t i = n - 1; i > 0; --i) p = fma(p, x, V(c[i - 1]));
  return p;
}

inline constexpr float kLn2High = 0x1.62E4p-1f;  // 15 bits: n * kLn2High is exact
inline constexpr float kLn2Low = 0x1.7F7D1Cp-20f;
inline constexpr float kInf = std::numeric_limits<float>::infinity();

// exp(x) = 2^n exp(r), |r| <= ln(2)/2; exp(r) = 1 + (r + r^2 P(r)). The polynomial, the split of ln(2) and the order are those
// of SLEEF's expf with 1.0 ulp (Shibata & Petrogalli 2020), which PyTorch's softmax and SiLU use on a CPU: equal bit for bit.
template <class V>
[[gnu::always_inline]] inline V exp_any(V x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  constexpr float kLow = -87.3365f;      // just above the smallest normal result
  constexpr float kHigh = 88.7228394f;   // the largest argument with a finite result is one ulp below
  constexpr float kP[] = {0.5f,
                          0.166666671633720397949219f,
                          0.0416664853692054748535156f,
                          0.00833336077630519866943359f,
                          0.00139304355252534151077271f,
                          0.000198527617612853646278381f};
  const V clamped = min(max(x, V(kLow)), V(88.722831f));
  const V shifted = clamped * V(1.44269504f) + V(kShift);
  const V n = shifted - V(kShift);
  const V r = fma(-n, V(kLn2Low), fma(-n, V(kLn2High), clamped));
  const V p = V(1.0f) + fma(r * r, polynomial(r, kP), r);
  const V y = select_less(x, V(kLow), V(0.0f), scale_by_power(p, shifted));
  return select_nan(x, x, select_less(x, V(kHigh), y, V(kInf)));
}

// log(x) = e ln(2) + log(1 + f), f in [sqrt(1/2) - 1, sqrt(2) - 1); log(1 + f) = f - f^2/2 + f^3 P(f), P by Remez.
template <class V>
[[gnu::always_inline]] inline V log_any(V x) {
  constexpr float kP[] = {0.3333331f,   -0.24999987f, 0.20002231f,  -0.16669263f, 0.14218576f,
                          -0.12384069f, 0.11873363f,  -0.11791719f, 0.069167651f};
  constexpr float kMinNormal = std::numeric_limits<float>::min();
  V m;
  V e;
  split(x, m, e);
  const V f = m - V(1.0f);
  const V square = f * f;
  V tail = fma(square * f, polynomial(f, kP), e * V(kLn2Low));
  tail = fma(V(-0.5f), square, tail);
  V y = fma(e, V(kLn2High), f + tail);
  y = select_less(x, V(kMinNormal), V(-kInf), y);
  y = select_less(x, V(0.0f), V(std::numeric_limits<float>::quiet_NaN()), y);
  y = select_less(x, V(kInf), y, V(kInf));
  return select_nan(x, x, y);
}

}  // namespace math_detail

[[gnu::always_inline]] inline float exp_(float x) { return math_detail::exp_any(x); }
[[gnu::always_inline]] inline F32x16 exp_(F32x16 x) { return math_detail::exp_any(x); }
[[gnu::always_inline]] inline float log_(float x) { return math_detail::log_any(x); }
[[gnu::always_inline]] inline F32x16 log_(F32x16 x) { return math_detail::log_any(x); }
inline float rsqrt_(float x) { return 1.0f / sqrt(x); }
inline F32x16 rsqrt_(F32x16 x) { return F32x16(1.0f) / sqrt(x); }

struct SinCos {
  float sin;
  float cos;
};
/// Correctly rounded in all but a vanishing share of arguments (computed in double and rounded once).
SinCos sin_cos_(float x);

struct SinCosDouble {
  double sin;
  double cos;
};
/// |x| <= 65536, absolute error below 2^-52.
SinCosDouble sin_cos_double(double x);
/// x in [-700, 700].
double exp_double(double x);
/// x positive and normal; absolute error below 2^-52 * max(1, |log x|).
double log_double(double x);

}  // namespace plumb
