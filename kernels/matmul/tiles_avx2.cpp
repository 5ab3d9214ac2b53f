// AVX2 + FMA microkernels: 6 x 16 (12 accumulators, two of B, a broadcast, a mask: all sixteen registers).
#include <immintrin.h>

#include "kernels/matmul/matmul_kernels.h"
#include "kernels/matmul/store_plain.h"

#define PLUMB_INLINE inline __attribute__((always_inline))

namespace plumb::matmul_detail {
namespace {

// g++ 12 reorders the intrinsics of this loop and spills (62 instead of over 90 % of peak). As volatile assembly, loads,
// broadcasts and FMAs keep their order and the accumulators their registers.
struct Bf16Panel {
  static constexpr DType dtype = DType::bf16;
  static PLUMB_INLINE __m256 odd(const char* p, __m256i mask) {
    __m256 r;
    asm volatile("vpand %1,%2,%0" : "=x"(r) : "m"(*reinterpret_cast<const __m256i_u*>(p)), "x"(mask));
    return r;
  }
  static PLUMB_INLINE __m256 even(const char* p) {
    __m256 r;
    asm volatile("vmovdqu %1,%0\n\tvpslld $16,%0,%0" : "=x"(r) : "m"(*reinterpret_cast<const __m256i_u*>(p)));
    return r;
  }
};

struct F32Panel {
  static constexpr DType dtype = DType::f32;
  static PLUMB_INLINE __m256 odd(const char* p, __m256i) { return load(p); }
  static PLUMB_INLINE __m256 even(const char* p) { return load(p + kPanelCols * 4); }

 private:
  static PLUMB_INLINE __m256 load(const char* p) {
    __m256 r;
    asm volatile("vmovups %1,%0" : "=x"(r) : "m"(*reinterpret_cast<const __m256_u*>(p)));
    return r;
  }
};

PLUMB_INLINE __m256 broadcast(const float* p) {
  __m256 r;
  asm volatile("vbroadcastss %1,%0" : "=x"(r) : "m"(*p));
  return r;
}

PLUMB_INLINE void fma_into(__m256& sum, __m256 a, __m256 b) { asm volatile("vfmadd231ps %1,%2,%0" : "+x"(sum) : "x"(a), "x"(b)); }

/// Rounds and stores a tile. Sums are never denormal: FTZ is set and a chain ends in an FMA; a NaN takes the longer way.
template <int Rows, int Groups>
PLUMB_INLINE void store_rounded(const Tile& t, const __m256 (&x)[Rows][Groups][2]) {
  __m256 nan = _mm256_setzero_ps();
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 16
    for (int g = 0; g < Groups; ++g) {
      nan = _mm256_or_ps(nan, _mm256_cmp_ps(x[i][g][0], x[i][g][1], _CMP_UNORD_Q));
      store_plain(t.rounded + i * t.rounded_stride + g * kGroupCols, {x[i][g][0], x[i][g][1]});
    }
  if (_mm256_movemask_ps(nan) == 0) return;
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 16
    for (int g = 0; g < Groups; ++g) store16(t.rounded + i * t.rounded_stride + g * kGroupCols, {x[i][g][0], x[i][g][1]});
}

template <class Panel, int Rows, int Groups, bool Prefetch>
__attribute__((noinline)) void tile(const Tile& t) {
  __m256 x[Rows][Groups][2];
  if (t.from_zero) {
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 16
      for (int g = 0; g < Groups; ++g) x[i][g][0] = x[i][g][1] = _mm256_setzero_ps();
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 16
      for (int g = 0; g < Groups; ++g) {
        x[i][g][0] = _mm256_loadu_ps(t.c + i * t.ldc + g * kGroupCols);
        x[i][g][1] = _mm256_loadu_ps(t.c + i * t.ldc + g * kGroupCols + 8);
      }
  }
  const __m256i mask = _mm256_set1_epi32(int(0xFFFF0000));
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
    }
#pragma GCC unroll 16
    for (int g = 0; g < Groups; ++g) {
      const char* row = b + group_offset(g, stride);
      __m256 b0 = Panel::odd(row, mask);
      __m256 b1 = Panel::odd(row + 32, mask);
#pragma GCC unroll 16
      for (int i = 0; i < Rows; ++i) {
        const __m256 s = broadcast(a + i);
        fma_into(x[i][g][0], s, b0);
        fma_into(x[i][g][1], s, b1);
      }
      b0 = Panel::even(row);
      b1 = Panel::even(row + 32);
#pragma GCC unroll 16
      for (int i = 0; i < Rows; ++i) {
        const __m256 s = broadcast(a + Rows + i);
        fma_into(x[i][g][0], s, b0);
        fma_into(x[i][g][1], s, b1);
      }
    }
    a += 2 * Rows;
    b += pair_bytes(Panel::dtype);
  }
  if (t.rounded != nullptr) return store_rounded(t, x);
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 16
    for (int g = 0; g < Groups; ++g) {
      _mm256_storeu_ps(t.c + i * t.ldc + g * kGroupCols, x[i][g][0]);
      _mm256_storeu_ps(t.c + i * t.ldc + g * kGroupCols + 8, x[i][g][1]);
    }
}

template <class Panel, int Rows, int Groups>
void add(Kernels& k) {
  k.tile[Rows][Groups] = tile<Panel, Rows, Groups, true>;
  k.stream[Rows][Groups] = tile<Panel, Rows, Groups, false>;
}

template <class Panel>
Kernels make() {
  Kernels k{.rows = 6, .groups = 1, .rounds = true};
  add<Panel, 1, 1>(k);
  add<Panel, 2, 1>(k);
  add<Panel, 3, 1>(k);
  add<Panel, 4, 1>(k);
  add<Panel, 5, 1>(k);
  add<Panel, 6, 1>(k);
  add<Panel, 1, 2>(k);
  add<Panel, 2, 2>(k);
  add<Panel, 3, 2>(k);
  // Up to three rows leave registers for two groups: twice the chains in flight, and the panel is read as one stream.
  for (int rows = 1; rows <= k.rows; ++rows) k.stream_groups[rows] = rows <= 3 ? 2 : 1;
  return k;
}

}  // namespace

const Kernels& kernels_avx2(DType panel) {
  static const Kernels bf16 = make<Bf16Panel>();
  static const Kernels f32 = make<F32Panel>();
  return panel == DType::bf16 ? bf16 : f32;
}

}  // namespace plumb::matmul_detail
