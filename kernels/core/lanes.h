// Sixteen FP32 lanes on two AVX2 registers: the unit of every row operation. The same bits on every machine.
// A reduction over a row always uses 16 lanes (element i goes to lane i % 16, absent elements are +0) and one fold
// by halves, so its result depends on nothing but the row.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "kernels/core/dtype.h"

namespace plumb {

inline constexpr int kLanes = 16;

struct F32x16 {
  __m256 lo;
  __m256 hi;

  F32x16() = default;
  F32x16(__m256 l, __m256 h) : lo(l), hi(h) {}
  F32x16(float x) : lo(_mm256_set1_ps(x)), hi(lo) {}  // NOLINT(google-explicit-constructor): scalars mix with lanes

  friend F32x16 operator+(F32x16 a, F32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  friend F32x16 operator-(F32x16 a, F32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
  friend F32x16 operator*(F32x16 a, F32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  friend F32x16 operator/(F32x16 a, F32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
  F32x16 operator-() const {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_xor_ps(lo, sign), _mm256_xor_ps(hi, sign)};
  }
};

// The scalar twins have the same names, so that an op's _math.h is written once for both.
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline float max(float a, float b) { return a > b ? a : b; }  // b when unordered, like vmaxps
inline float min(float a, float b) { return a < b ? a : b; }

inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
inline F32x16 sqrt(F32x16 x) { return {_mm256_sqrt_ps(x.lo), _mm256_sqrt_ps(x.hi)}; }
inline F32x16 max(F32x16 a, F32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline F32x16 min(F32x16 a, F32x16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }

/// R(x) on eight lanes, as to_bf16 in dtype.h: the BF16 bits in the upper half of each lane.
inline __m256 round_bf16(__m256 x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i magnitude = _mm256_and_si256(u, _mm256_set1_epi32(0x7FFFFFFF));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, odd), _mm256_set1_epi32(0x7FFF));
  r = _mm256_and_si256(r, _mm256_set1_epi32(int(0xFFFF0000)));
  const __m256i denormal = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x00800000), magnitude);
  const __m256i sign = _mm256_and_si256(u, _mm256_set1_epi32(int(0x80000000)));
  r = _mm256_blendv_epi8(r, sign, denormal);
  const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7F800000));
  r = _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7FC00000), nan);
  return _mm256_castsi256_ps(r);
}
inline F32x16 round_bf16(F32x16 x) { return {round_bf16(x.lo), round_bf16(x.hi)}; }

/// As the scalar round_to of dtype.h. A call: loops of BF16 paths may not contain it, not even where it is never reached.
F32x16 round_to(DType t, F32x16 x);

/// A rounding site: x rounded to its format when the site is `b`, x when it is `f`. `to` is known at compile time or not BF16.
template <class V>
[[gnu::always_inline]] inline V round_if(bool rounded, V x, DType to = DType::bf16) {
  if (!rounded) return x;
  return to == DType::bf16 ? round_bf16(x) : round_to(to, x);
}

inline F32x16 load16(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline F32x16 load16(const BF16* p) {
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i lo = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(h)), 16);
  const __m256i hi = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(h, 1)), 16);
  return {_mm256_castsi256_ps(lo), _mm256_castsi256_ps(hi)};
}
inline void store16(float* p, F32x16 x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
/// Rounds.
inline void store16(BF16* p, F32x16 x) {
  const __m256i lo = _mm256_srli_epi32(_mm256_castps_si256(round_bf16(x.lo)), 16);
  const __m256i hi = _mm256_srli_epi32(_mm256_castps_si256(round_bf16(x.hi)), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xD8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
}

/// Half of the lanes: what is left of rows whose length is an odd multiple of eight, as heads of 16 rotate in halves.
inline constexpr int kHalfLanes = kLanes / 2;
inline F32x16 load8(const float* p) { return {_mm256_loadu_ps(p), _mm256_setzero_ps()}; }
inline F32x16 load8(const BF16* p) {
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)), _mm256_setzero_ps()};
}
inline void store8(float* p, F32x16 x) { _mm256_storeu_ps(p, x.lo); }
/// Rounds.
inline void store8(BF16* p, F32x16 x) {
  const __m256i lo = _mm256_srli_epi32(_mm256_castps_si256(round_bf16(x.lo)), 16);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(lo), _mm256_extracti128_si256(lo, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}

/// The first n (0..16) elements, the rest +0.
template <class T>
F32x16 load_part(const T* p, int n) {
  if (n >= kLanes) return load16(p);
  if (n == kHalfLanes) return load8(p);
  float tmp[kLanes] = {};
  for (int i = 0; i < n; ++i) tmp[i] = to_float(p[i]);
  return load16(tmp);
}
inline void store_part(float* p, F32x16 x, int n) {
  if (n >= kLanes) return store16(p, x);
  if (n == kHalfLanes) return store8(p, x);
  float tmp[kLanes];
  store16(tmp, x);
  for (int i = 0; i < n; ++i) p[i] = tmp[i];
}
inline void store_part(BF16* p, F32x16 x, int n) {
  if (n >= kLanes) return store16(p, x);
  if (n == kHalfLanes) return store8(p, x);
  BF16 tmp[kLanes];
  store16(tmp, x);
  for (int i = 0; i < n; ++i) p[i] = tmp[i];
}

/// Fold by halves: lane j += lane j + 8, then + 4, + 2, + 1.
inline float fold_sum(F32x16 x) {
  const __m256 a = _mm256_add_ps(x.lo, x.hi);
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
inline float fold_max(F32x16 x) {
  const __m256 a = _mm256_max_ps(x.lo, x.hi);
  const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}

}  // namespace plumb
