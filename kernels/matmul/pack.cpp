// Copies of operands in the order in which the microkernels read them. Bits are moved, never computed.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/matmul/matmul_kernels.h"

#define PLUMB_INLINE inline __attribute__((always_inline))

namespace plumb::matmul_detail {
namespace {

constexpr std::int64_t kChunk = 32;  // bytes of a row that are transposed at a time: 16 BF16 or 8 FP32 elements
// Where k runs over rows, one read touches a line of each of many rows: no stream that the hardware would follow.
constexpr std::int64_t kLine = 64;
constexpr std::int64_t kRowsAhead = 16;    // of a panel being packed
constexpr std::int64_t kDepthChunk = 128;  // rows that blocks of A are packed from together: their lines stay in L1

PLUMB_INLINE __m256i load8(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
PLUMB_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
PLUMB_INLINE void store8(void* p, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
PLUMB_INLINE __m256i odd_half(__m256i pair) { return _mm256_and_si256(pair, _mm256_set1_epi32(int(0xFFFF0000))); }
PLUMB_INLINE __m256i even_half(__m256i pair) { return _mm256_slli_epi32(pair, 16); }

/// Transposes eight rows of eight dwords.
PLUMB_INLINE void transpose8(__m256i (&r)[8]) {
  __m256i t[8];
  __m256i u[8];
#pragma GCC unroll 8
  for (int j = 0; j < 8; j += 2) {
    t[j] = _mm256_unpacklo_epi32(r[j], r[j + 1]);
    t[j + 1] = _mm256_unpackhi_epi32(r[j], r[j + 1]);
  }
#pragma GCC unroll 8
  for (int j = 0; j < 8; j += 4) {
    u[j] = _mm256_unpacklo_epi64(t[j], t[j + 2]);
    u[j + 1] = _mm256_unpackhi_epi64(t[j], t[j + 2]);
    u[j + 2] = _mm256_unpacklo_epi64(t[j + 1], t[j + 3]);
    u[j + 3] = _mm256_unpackhi_epi64(t[j + 1], t[j + 3]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    r[j] = _mm256_permute2x128_si256(u[j], u[j + 4], 0x20);
    r[j + 4] = _mm256_permute2x128_si256(u[j], u[j + 4], 0x31);
  }
}

/// r[j] = dword j of rows 0..7, each `stride` bytes from the last; zero from row `rows` and from byte `bytes` on.
PLUMB_INLINE void load_transposed(const char* p, std::int64_t stride, std::int64_t rows, std::int64_t bytes, __m256i (&r)[8]) {
  if (bytes >= kChunk && rows >= 8) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) r[i] = load8(p + i * stride);
  } else if (bytes >= kChunk) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) r[i] = i < rows ? load8(p + i * stride) : _mm256_setzero_si256();
  } else {
    alignas(32) char part[8][kChunk] = {};
    for (int i = 0; i < 8 && i < rows; ++i) std::memcpy(part[i], p + i * stride, std::size_t(bytes));
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) r[i] = load8(part[i]);
  }
  transpose8(r);
}

/// Elements [0, n) of a row, n <= 8, as dwords (BF16 in the low half); the rest zero.
PLUMB_INLINE __m256i load_dwords(const BF16* p, std::int64_t n) {
  if (n >= 8) return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  alignas(16) BF16 part[8] = {};
  if (n > 0) std::memcpy(part, p, std::size_t(n) * sizeof(BF16));
  return _mm256_cvtepu16_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(part)));
}
PLUMB_INLINE __m256i load_dwords(const float* p, std::int64_t n) {
  if (n >= 8) return load8(p);
  alignas(32) float part[8] = {};
  if (n > 0) std::memcpy(part, p, std::size_t(n) * sizeof(float));
  return load8(part);
}

/// One group of 16 columns whose rows are contiguous in k; n of them exist. `out` is its place in the panel.
template <class T>
void pack_group(const ConstMat& b, std::int64_t first, std::int64_t n, std::int64_t k0, std::int64_t k1, char* out) {
  constexpr std::int64_t kStep = kChunk / std::int64_t(sizeof(T));
  constexpr DType kType = sizeof(T) == 2 ? DType::bf16 : DType::f32;
  const std::int64_t stride = b.stride * std::int64_t(sizeof(T));
  for (std::int64_t k = k0; k < k1; k += kStep, out += kStep / 2 * pair_bytes(kType)) {
    const std::int64_t left = std::min(kStep, k1 - k);
    const int pairs = int(left + 1) / 2;
    for (int half = 0; half < 2; ++half) {
      __m256i r[8];
      const std::int64_t rows = n - half * 8;
      if (rows > 0) {
        load_transposed(reinterpret_cast<const char*>(b.row<T>(first + half * 8) + k), stride, rows, left * std::int64_t(sizeof(T)), r);
      } else {
        for (auto& x : r) x = _mm256_setzero_si256();
      }
      char* d = out + half * 32;
      auto store = [&](int j) __attribute__((always_inline)) {
        if constexpr (sizeof(T) == 2) {
          store8(d + j * pair_bytes(kType), r[j]);
        } else {
          store8(d + j * pair_bytes(kType), r[2 * j + 1]);
          store8(d + j * pair_bytes(kType) + kPanelCols * 4, r[2 * j]);
        }
      };
      if (left == kStep) {
#pragma GCC unroll 8
        for (int j = 0; j < int(kStep / 2); ++j) store(j);
      } else {
        for (int j = 0; j < pairs; ++j) store(j);
      }
    }
  }
}

/// One pair of k of a group when k runs over rows: the columns of one k are contiguous.
PLUMB_INLINE void pack_pair(const BF16* even, const BF16* odd, std::int64_t n, char* out) {
  if (n >= kGroupCols && odd != nullptr) {
    const __m256i e = load8(even);
    const __m256i o = load8(odd);
    const __m256i lo = _mm256_unpacklo_epi16(e, o);
    const __m256i hi = _mm256_unpackhi_epi16(e, o);
    store8(out, _mm256_permute2x128_si256(lo, hi, 0x20));
    store8(out + 32, _mm256_permute2x128_si256(lo, hi, 0x31));
    return;
  }
  for (int half = 0; half < 2; ++half) {
    const __m256i e = load_dwords(even + half * 8, n - half * 8);
    const __m256i o = odd != nullptr ? load_dwords(odd + half * 8, n - half * 8) : _mm256_setzero_si256();
    store8(out + half * 32, _mm256_or_si256(e, _mm256_slli_epi32(o, 16)));
  }
}
PLUMB_INLINE void pack_pair(const float* even, const float* odd, std::int64_t n, char* out) {
  for (int half = 0; half < 2; ++half) {
    store8(out + half * 32, odd != nullptr ? load_dwords(odd + half * 8, n - half * 8) : _mm256_setzero_si256());
    store8(out + half * 32 + kPanelCols * 4, load_dwords(even + half * 8, n - half * 8));
  }
}

template <class T>
void pack_panels_of(const MatmulOperand& b, std::int64_t first, std::int64_t count, std::int64_t k0, std::int64_t k1, char* panels,
                    std::int64_t panel_stride) {
  constexpr DType kType = sizeof(T) == 2 ? DType::bf16 : DType::f32;
  const std::int64_t groups = (count + kGroupCols - 1) / kGroupCols;
  if (!b.transposed) {
    for (std::int64_t g = 0; g < groups; ++g)
      pack_group<T>(b.mat, first + g * kGroupCols, std::min<std::int64_t>(kGroupCols, count - g * kGroupCols), k0, k1,
                    panels + group_offset(g, panel_stride));
    return;
  }
  for (std::int64_t k = k0; k < k1; k += 2) {
    const T* even = b.mat.row<T>(k) + first;
    const T* odd = k + 1 < k1 ? b.mat.row<T>(k + 1) + first : nullptr;
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t col = g * kGroupCols;
      // A line of BF16 spans two groups: one fetches that of the even row, the other that of the odd one.
      if (sizeof(T) == 4 || g % 2 == 0) prefetch(even + kRowsAhead * b.mat.stride + col);
      if (sizeof(T) == 4 || g % 2 == 1) prefetch(even + (kRowsAhead + 1) * b.mat.stride + col);
      pack_pair(even + col, odd != nullptr ? odd + col : nullptr, std::min<std::int64_t>(kGroupCols, count - col),
                panels + group_offset(g, panel_stride) + (k - k0) / 2 * pair_bytes(kType));
    }
  }
}

/// Writes `pairs` pairs of a block of `rows` rows from transposed dwords; returns the place of the next pair. Every store
/// is eight lanes wide and spills into the place of the next row of dwords, which is written after it.
template <class T, DType Layout, int Eights>
PLUMB_INLINE std::uint32_t* store_pairs(const __m256i (&r)[Eights][8], int pairs, int rows, std::uint32_t* d) {
#pragma GCC unroll 8
  for (int j = 0; j < pairs; ++j) {
    if constexpr (Layout == DType::bf16) {
      for (int e = 0; e < Eights; ++e) store8(d + 8 * e, r[e][j]);
      d += rows;
    } else {
      for (int e = 0; e < Eights; ++e) store8(d + 8 * e, sizeof(T) == 2 ? odd_half(r[e][j]) : r[e][2 * j + 1]);
      for (int e = 0; e < Eights; ++e) store8(d + rows + 8 * e, sizeof(T) == 2 ? even_half(r[e][j]) : r[e][2 * j]);
      d += 2 * rows;
    }
  }
  return d;
}

template <class T, DType Layout, int Eights>
void pack_block_rows(const ConstMat& a, std::int64_t first, int rows, std::int64_t k0, std::int64_t k1, std::uint32_t* d) {
  constexpr std::int64_t kStep = kChunk / std::int64_t(sizeof(T));
  const std::int64_t stride = a.stride * std::int64_t(sizeof(T));
  for (std::int64_t k = k0; k < k1; k += kStep) {
    const std::int64_t left = std::min(kStep, k1 - k);
    __m256i r[Eights][8];
    for (int e = 0; e < Eights; ++e)
      load_transposed(reinterpret_cast<const char*>(a.row<T>(first + 8 * e) + k), stride, rows - 8 * e, left * std::int64_t(sizeof(T)),
                      r[e]);
    d = left == kStep ? store_pairs<T, Layout, Eights>(r, int(kStep / 2), rows, d)
                      : store_pairs<T, Layout, Eights>(r, int(left + 1) / 2, rows, d);
  }
}

/// The same when k runs over rows of a: `rows` elements of each k are contiguous.
template <class T, DType Layout, int Eights>
void pack_block_cols(const ConstMat& a, std::int64_t first, int rows, std::int64_t k0, std::int64_t k1, std::uint32_t* d) {
  // At the right edge the eight elements that end the row are read and moved to the left: what follows a row is not ours.
  const std::int64_t over = first + 8 * Eights - a.cols;
  const int shift = over > 0 && a.cols >= 8 * Eights ? int(over) : 0;
  const __m256i lanes =
      _mm256_and_si256(_mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(shift)), _mm256_set1_epi32(7));
  const auto load = [&](std::int64_t k, int e) __attribute__((always_inline)) {
    if (k >= k1) return _mm256_setzero_si256();
    const T* p = a.row<T>(k) + first + 8 * e;
    if (over <= 0) {
      prefetch(reinterpret_cast<const char*>(p) + kLine);  // for the blocks to come
      return load_dwords(p, 8);
    }
    if (shift > 0 && e == Eights - 1) return _mm256_permutevar8x32_epi32(load_dwords(p - shift, 8), lanes);
    return load_dwords(p, a.cols - first - 8 * e);
  };
  const auto widen = [](__m256i x) { return sizeof(T) == 2 ? _mm256_slli_epi32(x, 16) : x; };
  for (std::int64_t k = k0; k < k1; k += 2) {
    if constexpr (Layout == DType::bf16) {
      for (int e = 0; e < Eights; ++e) store8(d + 8 * e, _mm256_or_si256(load(k, e), _mm256_slli_epi32(load(k + 1, e), 16)));
      d += rows;
    } else {
      for (int e = 0; e < Eights; ++e) store8(d + 8 * e, widen(load(k + 1, e)));
      for (int e = 0; e < Eights; ++e) store8(d + rows + 8 * e, widen(load(k, e)));
      d += 2 * rows;
    }
  }
}

template <class T, DType Layout, int Eights>
void pack_block_of(const MatmulOperand& a, std::int64_t first, int rows, std::int64_t k0, std::int64_t k1, void* block) {
  auto* d = static_cast<std::uint32_t*>(block);
  if (a.transposed) {
    pack_block_cols<T, Layout, Eights>(a.mat, first, rows, k0, k1, d);
  } else {
    pack_block_rows<T, Layout, Eights>(a.mat, first, rows, k0, k1, d);
  }
}

}  // namespace

void pack_panels(const MatmulOperand& b, std::int64_t first, std::int64_t count, std::int64_t k0, std::int64_t k1, char* panels,
                 std::int64_t panel_stride) {
  if (b.mat.dtype == DType::bf16) {
    pack_panels_of<BF16>(b, first, count, k0, k1, panels, panel_stride);
  } else {
    pack_panels_of<float>(b, first, count, k0, k1, panels, panel_stride);
  }
}

void pack_block(const MatmulOperand& a, std::int64_t first, int rows, std::int64_t k0, std::int64_t k1, DType layout, void* block) {
  const bool tall = rows > 8;
  if (a.mat.dtype == DType::f32) {
    (tall ? pack_block_of<float, DType::f32, 2> : pack_block_of<float, DType::f32, 1>)(a, first, rows, k0, k1, block);
  } else if (layout == DType::f32) {
    (tall ? pack_block_of<BF16, DType::f32, 2> : pack_block_of<BF16, DType::f32, 1>)(a, first, rows, k0, k1, block);
  } else {
    (tall ? pack_block_of<BF16, DType::bf16, 2> : pack_block_of<BF16, DType::bf16, 1>)(a, first, rows, k0, k1, block);
  }
}

void pack_blocks(const MatmulOperand& a, std::int64_t first, std::int64_t k0, std::int64_t k1, DType layout, const Blocks& blocks,
                 char* out) {
  const std::int64_t step = a.transposed ? kDepthChunk : std::max<std::int64_t>(k1 - k0, 1);
  for (std::int64_t k = k0; k < k1; k += step) {
    for (std::int64_t b = 0; b < blocks.count(); ++b) {
      const int rows = blocks.rows_of(b);
      char* chunk = out + blocks.offset(b, (k1 - k0 + 1) / 2, layout) + (k - k0) * rows * std::int64_t(bytes_of(layout));
      pack_block(a, first + blocks.first_row(b), rows, k, std::min(k1, k + step), layout, chunk);
    }
  }
}

}  // namespace plumb::matmul_detail
