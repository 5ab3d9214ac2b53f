#include "kernels/core/lanes.h"

namespace plumb {
namespace {

__m256 canonical_nan(__m256 x, __m256 rounded) {
  return _mm256_blendv_ps(rounded, _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000)), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

__m256 round_f16(__m256 x) { return canonical_nan(x, _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT))); }

/// round_e8 on eight lanes.
__m256 round_e8(__m256 x, int bits) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i sign = _mm256_and_si256(u, _mm256_set1_epi32(int(0x80000000)));
  const __m256i denormal = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x00800000), _mm256_andnot_si256(_mm256_set1_epi32(int(0x80000000)), u));
  __m256i r = u;
  if (bits < 23) {
    const int shift = 23 - bits;
    const __m256i odd = _mm256_and_si256(_mm256_srl_epi32(u, _mm_cvtsi32_si128(shift)), _mm256_set1_epi32(1));
    r = _mm256_add_epi32(_mm256_add_epi32(u, odd), _mm256_set1_epi32((1 << (shift - 1)) - 1));
    r = _mm256_and_si256(r, _mm256_set1_epi32(-(1 << shift)));
  }
  return canonical_nan(x, _mm256_castsi256_ps(_mm256_blendv_epi8(r, sign, denormal)));
}

}  // namespace

F32x16 round_to(DType t, F32x16 x) {
  if (t == DType::f32) return x;
  if (t == DType::bf16) return round_bf16(x);
  if (t == DType::f16) return {round_f16(x.lo), round_f16(x.hi)};
  return {round_e8(x.lo, e8_mantissa_bits(t)), round_e8(x.hi, e8_mantissa_bits(t))};
}

}  // namespace plumb
