// The approximations of exp that the attention of other stacks uses, bit for bit, beside the engine's own (math.h): each one
// formula for scalars and lanes. NaN passes, which the originals do not do: a bad score must not turn into a probability.
#pragma once
#include "kernels/core/math.h"

namespace plumb {

namespace math_detail {

inline float floor_(float x) { return __builtin_floorf(x); }
inline F32x16 floor_(F32x16 x) { return {_mm256_floor_ps(x.lo), _mm256_floor_ps(x.hi)}; }

/// The number whose bits are the integer part of x, in [0, 2^31).
inline float from_bits_of(float x) { return std::bit_cast<float>(std::int32_t(x)); }
inline F32x16 from_bits_of(F32x16 x) {
  return {_mm256_castsi256_ps(_mm256_cvttps_epi32(x.lo)), _mm256_castsi256_ps(_mm256_cvttps_epi32(x.hi))};
}

/// 2^n for a whole n in [-126, 127].
inline float power_of_two(float n) { return std::bit_cast<float>((std::int32_t(n) + 127) << 23); }
inline __m256 power_of_two(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvttps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline F32x16 power_of_two(F32x16 n) { return {power_of_two(n.lo), power_of_two(n.hi)}; }

inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLnMin = -0x1.5D58A0p+6f;  // about the least argument whose exp is normal
inline constexpr float kLnMax = 0x1.62E430p+6f;

// x = n ln(2) + r with n to the nearest: p(r) 2^n by way of 2^(n - 1), so that n = 128 stays in range and n = -126 gives 0.
template <class V>
[[gnu::always_inline]] inline V exp_u20_any(V x) {
  constexpr float kP[] = {1.0f, 0.999999701f, 0.499991506f, 0.166676521f, 0.0418978221f, 0.00828929059f};
  const V clamped = max(min(x, V(kLnMax)), V(kLnMin));
  const V n = floor_(fma(clamped, V(kLog2E), V(0.5f)));
  const V r = fma(-n, V(0.693147182f), clamped);
  const V half_scale = select_less(x, V(kLnMin), V(0.0f), power_of_two(n - V(1.0f)));
  return select_nan(x, x, V(2.0f) * polynomial(r, kP) * half_scale);
}

// The bits of 2^y are 2^23 (y + 127) but for the mantissa, which is 2^t - 1 rather than t = y - floor(y): a cubic corrects it.
template <class V>
[[gnu::always_inline]] inline V exp_fast_any(V x) {
  constexpr float kP[] = {0.00010703434948458272f, 0.30354260500649682f, -0.22433836478672356f, -0.079204240219773236f};
  constexpr float kUnit = 8388608.0f;  // 2^23
  const V y = min(max(x, V(kLnMin)), V(kLnMax)) * V(kLog2E);
  const V bits = fma(V(kUnit), y - polynomial(y - floor_(y), kP), V(127 * kUnit));
  return select_nan(x, x, select_less(x, V(kLnMin), V(0.0f), from_bits_of(bits)));
}

}  // namespace math_detail

/// vLLM's on a CPU: relative error <= 20 ulp on [-86.98, 88.72], 0 below (half of the result is formed first).
[[gnu::always_inline]] inline float exp_u20(float x) { return math_detail::exp_u20_any(x); }
[[gnu::always_inline]] inline F32x16 exp_u20(F32x16 x) { return math_detail::exp_u20_any(x); }
/// PyTorch's flash attention on a CPU (Malossi et al., "Fast exponential computation on SIMD architectures", 2015): relative
/// error <= 2e-4 on [-87.33, 88.72], 0 below.
[[gnu::always_inline]] inline float exp_fast(float x) { return math_detail::exp_fast_any(x); }
[[gnu::always_inline]] inline F32x16 exp_fast(F32x16 x) { return math_detail::exp_fast_any(x); }

}  // namespace plumb
