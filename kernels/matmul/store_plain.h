// Inside the matmul only.
#pragma once
#include "kernels/core/lanes.h"

namespace plumb::matmul_detail {

/// Rounds to BF16 what is neither NaN nor denormal: half the instructions of store16, which decides where K is small.
[[gnu::always_inline]] inline void store_plain(BF16* p, F32x16 x) {
  const auto rounded = [](__m256 v) __attribute__((always_inline)) {
    const __m256i u = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7FFF)), odd), 16);
  };
  const __m256i packed = _mm256_packus_epi32(rounded(x.lo), rounded(x.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
}

}  // namespace plumb::matmul_detail
