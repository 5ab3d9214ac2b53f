// AVX-512 FMA microkernels: 12 x 32.
#include <immintrin.h>

#include <utility>

#include "kernels/matmul/matmul_kernels.h"

// g++ 12 warns inside its own avx512fintrin.h.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#define PLUMB_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define PLUMB_INLINE inline __attribute__((always_inline))

namespace plumb::matmul_detail {
namespace {

constexpr int kRows = 12;

struct Bf16Panel {
  static constexpr DType dtype = DType::bf16;
  PLUMB_TARGET static PLUMB_INLINE __m512 odd(const char* p) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(int(0xFFFF0000))));
  }
  PLUMB_TARGET static PLUMB_INLINE __m512 even(const char* p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16)); }
};

struct F32Panel {
  static constexpr DType dtype = DType::f32;
  PLUMB_TARGET static PLUMB_INLINE __m512 odd(const char* p) { return _mm512_loadu_ps(p); }
  PLUMB_TARGET static PLUMB_INLINE __m512 even(const char* p) { return _mm512_loadu_ps(p + kPanelCols * 4); }
};

template <class Panel, int Rows, int Groups, bool Prefetch>
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
  const float* a = static_cast<const float*>(t.a);
  const char* b = t.b;
  const std::int64_t stride = t.panel_stride;
  const char* prefetch = t.prefetch;
  const std::int64_t prefetch_step = t.prefetch_step;
  const std::int64_t pairs = t.pairs;
#pragma GCC unroll 2
  for (std::int64_t p = 0; p < pairs; ++p) {
    if (Prefetch) {
      _mm_prefetch(prefetch, _MM_HINT_T1);
      prefetch += prefetch_step;
    } else {
      prefetch_stream<pair_bytes(Panel::dtype)>(b);
    }
    __m512 w[Groups];
#pragma GCC unroll 16
    for (int g = 0; g < Groups; ++g) w[g] = Panel::odd(b + group_offset(g, stride));
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      const __m512 s = _mm512_set1_ps(a[i]);
#pragma GCC unroll 16
      for (int g = 0; g < Groups; ++g) x[i][g] = _mm512_fmadd_ps(s, w[g], x[i][g]);
    }
#pragma GCC unroll 16
    for (int g = 0; g < Groups; ++g) w[g] = Panel::even(b + group_offset(g, stride));
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      const __m512 s = _mm512_set1_ps(a[Rows + i]);
#pragma GCC unroll 16
      for (int g = 0; g < Groups; ++g) x[i][g] = _mm512_fmadd_ps(s, w[g], x[i][g]);
    }
    a += 2 * Rows;
    b += pair_bytes(Panel::dtype);
  }
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 16
    for (int g = 0; g < Groups; ++g) _mm512_storeu_ps(t.c + i * t.ldc + g * kGroupCols, x[i][g]);
}

template <class Panel, int Rows>
void add(Kernels& k) {
  k.tile[Rows][1] = tile<Panel, Rows, 1, true>;
  k.tile[Rows][2] = tile<Panel, Rows, 2, true>;
  k.stream[Rows][1] = tile<Panel, Rows, 1, false>;
  k.stream[Rows][2] = tile<Panel, Rows, 2, false>;
  k.stream_groups[Rows] = 2;
}

template <class Panel, int... I>
Kernels make(std::integer_sequence<int, I...>) {
  Kernels k{.rows = kRows, .groups = 2};
  (add<Panel, I + 1>(k), ...);
  return k;
}

}  // namespace

const Kernels& kernels_avx512(DType panel) {
  static const Kernels bf16 = make<Bf16Panel>(std::make_integer_sequence<int, kRows>{});
  static const Kernels f32 = make<F32Panel>(std::make_integer_sequence<int, kRows>{});
  return panel == DType::bf16 ? bf16 : f32;
}

}  // namespace plumb::matmul_detail
