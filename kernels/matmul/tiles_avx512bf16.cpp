// AVX512-BF16 microkernels: 14 x 32. vdpbf16ps adds the odd product of a pair, then the even one, each as an FMA.
#include <immintrin.h>

#include <utility>

#include "kernels/matmul/matmul_kernels.h"

// g++ 12 warns inside its own avx512fintrin.h.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#define PLUMB_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace plumb::matmul_detail {
namespace {

constexpr int kRows = 14;

template <int Rows, int Groups, bool Prefetch>
PLUMB_TARGET __attribute__((noinline)) void tile(const Tile& t) {
  __m512 x[Rows][Groups];
  if (t.from_zero) {
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 16
      for (int g = 0; g < Groups; ++g) x[i][g] = _mm512_setzero_ps();
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 16
      for (int g = 0; g < Groups; ++g) x[i][g] = _mm512_loadu_ps(t.c + i * t.ldc + g * kGroupCols);
  }
  const std::uint32_t* a = static_cast<const std::uint32_t*>(t.a);
  const char* b = t.b;
  const std::int64_t stride = t.panel_stride;
  const char* prefetch = t.prefetch;
  const std::int64_t prefetch_step = t.prefetch_step;
  const std::int64_t pairs = t.pairs;
#pragma GCC unroll 4
  for (std::int64_t p = 0; p < pairs; ++p) {
    if (Prefetch) {
      _mm_prefetch(prefetch, _MM_HINT_T1);
      prefetch += prefetch_step;
    } else {
      prefetch_stream<pair_bytes(DType::bf16)>(b);
    }
    __m512bh w[Groups];
#pragma GCC unroll 16
    for (int g = 0; g < Groups; ++g) w[g] = (__m512bh)_mm512_loadu_si512(b + group_offset(g, stride));
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      const __m512bh s = (__m512bh)_mm512_set1_epi32(int(a[i]));
#pragma GCC unroll 16
      for (int g = 0; g < Groups; ++g) x[i][g] = _mm512_dpbf16_ps(x[i][g], s, w[g]);
    }
    a += Rows;
    b += pair_bytes(DType::bf16);
  }
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 16
    for (int g = 0; g < Groups; ++g) _mm512_storeu_ps(t.c + i * t.ldc + g * kGroupCols, x[i][g]);
}

template <int Rows>
void add(Kernels& k) {
  k.tile[Rows][1] = tile<Rows, 1, true>;
  k.tile[Rows][2] = tile<Rows, 2, true>;
  k.stream[Rows][1] = tile<Rows, 1, false>;
  k.stream[Rows][2] = tile<Rows, 2, false>;
  k.stream_groups[Rows] = 2;
}

template <int... I>
Kernels make(std::integer_sequence<int, I...>) {
  Kernels k{.rows = kRows, .groups = 2, .a = DType::bf16};
  (add<I + 1>(k), ...);
  return k;
}

}  // namespace

const Kernels& kernels_avx512bf16() {
  static const Kernels kernels = make(std::make_integer_sequence<int, kRows>{});
  return kernels;
}

}  // namespace plumb::matmul_detail
