// The inner loops of attention: packing of keys and values into FP32 panels of 16 columns, and the one microkernel that
// every product of forward and backward uses. Internal to this folder.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/core/lanes.h"

namespace plumb::attention_detail {

inline std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

/// The row of `position` for one kv head whose elements start `offset` elements into a row.
template <class T>
const T* kv_row(const KvRows& rows, std::int64_t position, std::int64_t offset) {
  const bool in_prefix = position < rows.prefix_len;
  const T* base = static_cast<const T*>(in_prefix ? rows.prefix : rows.own);
  return base + (in_prefix ? position : position - rows.prefix_len) * rows.stride + offset;
}

/// c[i][0..16) = chain over k of a(i, k) * b[k][0..16), for R rows; carry continues the chain in c, else it starts at +0.
/// n is even; the order of k is 1, 0, 3, 2, ... Strides are in elements.
template <int R>
[[gnu::always_inline]] inline void chain_tile(std::int64_t n, const float* a, std::int64_t a_row, std::int64_t a_k, const float* b,
                                              std::int64_t b_k, float* c, std::int64_t c_row, bool carry) {
  __m256 lo[R];
  __m256 hi[R];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    lo[i] = carry ? _mm256_loadu_ps(c + i * c_row) : _mm256_setzero_ps();
    hi[i] = carry ? _mm256_loadu_ps(c + i * c_row + 8) : _mm256_setzero_ps();
  }
  for (std::int64_t k = 0; k < n; k += 2) {
#pragma GCC unroll 2
    for (int half = 1; half >= 0; --half) {
      const __m256 b_lo = _mm256_loadu_ps(b + half * b_k);
      const __m256 b_hi = _mm256_loadu_ps(b + half * b_k + 8);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) {
        const __m256 x = _mm256_broadcast_ss(a + i * a_row + half * a_k);
        lo[i] = _mm256_fmadd_ps(x, b_lo, lo[i]);
        hi[i] = _mm256_fmadd_ps(x, b_hi, hi[i]);
      }
    }
    a += 2 * a_k;
    b += 2 * b_k;
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    _mm256_storeu_ps(c + i * c_row, lo[i]);
    _mm256_storeu_ps(c + i * c_row + 8, hi[i]);
  }
}

inline constexpr int kTileRows = 4;

/// chain_tile for 1..kTileRows rows.
inline void chain_rows(int rows, std::int64_t n, const float* a, std::int64_t a_row, std::int64_t a_k, const float* b, std::int64_t b_k,
                       float* c, std::int64_t c_row, bool carry) {
  switch (rows) {
    case 1: return chain_tile<1>(n, a, a_row, a_k, b, b_k, c, c_row, carry);
    case 2: return chain_tile<2>(n, a, a_row, a_k, b, b_k, c, c_row, carry);
    case 3: return chain_tile<3>(n, a, a_row, a_k, b, b_k, c, c_row, carry);
    default: return chain_tile<4>(n, a, a_row, a_k, b, b_k, c, c_row, carry);
  }
}

/// rows x 16 outputs in blocks of kTileRows rows.
inline void chain_block(std::int64_t rows, std::int64_t n, const float* a, std::int64_t a_row, std::int64_t a_k, const float* b,
                        std::int64_t b_k, float* c, std::int64_t c_row, bool carry) {
  for (std::int64_t i = 0; i < rows; i += kTileRows)
    chain_rows(int(std::min<std::int64_t>(kTileRows, rows - i)), n, a + i * a_row, a_row, a_k, b, b_k, c + i * c_row, c_row, carry);
}

inline void transpose8(__m256 (&r)[8]) {
  __m256 t[8];
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  __m256 u[8];
  for (int i = 0; i < 2; ++i) {
    u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xEE);
    u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

/// Eight dims of eight rows, transposed: out[d * 16 + row].
inline void transpose_dims(const float* const* rows, std::int64_t d, float* out) {
  __m256 r[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(rows[i] + d);
  transpose8(r);
  for (int i = 0; i < 8; ++i) _mm256_storeu_ps(out + (d + i) * 16, r[i]);
}
inline void transpose_dims(const BF16* const* rows, std::int64_t d, float* out) {
  __m256 r[8];
  for (int i = 0; i < 8; ++i) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[i] + d));
    r[i] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
  }
  transpose8(r);
  for (int i = 0; i < 8; ++i) _mm256_storeu_ps(out + (d + i) * 16, r[i]);
}

/// Keys [first, first + 16) of one kv head, transposed: panel[d * 16 + key]. Keys from `end` on are zeros.
template <class T>
void pack_columns(const KvRows& kv, std::int64_t offset, std::int64_t first, std::int64_t end, std::int64_t head_dim, float* panel) {
  for (int half = 0; half < 2; ++half) {
    const std::int64_t key = first + half * 8;
    const std::int64_t count = std::min<std::int64_t>(8, end - key);
    const T* rows[8];
    for (std::int64_t i = 0; i < count; ++i) rows[i] = kv_row<T>(kv, key + i, offset);
    std::int64_t d = 0;
    if (count == 8)
      for (; d + 8 <= head_dim; d += 8) transpose_dims(rows, d, panel + half * 8);
    for (; d < head_dim; ++d)
      for (std::int64_t i = 0; i < 8; ++i) panel[d * 16 + half * 8 + i] = i < count ? to_float(rows[i][d]) : 0.0f;
  }
}

/// One row of head_dim elements into panels of 16 dims: panels[(d / 16) * panel_stride + d % 16]; the rest of the last is 0.
template <class T>
void spread_row(const T* row, std::int64_t head_dim, float* panels, std::int64_t panel_stride) {
  std::int64_t d = 0;
  for (; d + 16 <= head_dim; d += 16, panels += panel_stride) store16(panels, load16(row + d));
  if (d < head_dim) store16(panels, load_part(row + d, int(head_dim - d)));
}

/// Positions [first, first + count) of one kv head into panels of 16 dims: panels[(d / 16) * capacity * 16 + key * 16 + d % 16].
template <class T>
void pack_rows(const KvRows& kv, std::int64_t offset, std::int64_t first, std::int64_t count, std::int64_t head_dim, std::int64_t capacity,
               float* panels) {
  for (std::int64_t i = 0; i < count; ++i) spread_row(kv_row<T>(kv, first + i, offset), head_dim, panels + i * 16, capacity * 16);
}

/// out[0..n) = row as FP32.
inline void load_row(ConstMat m, std::int64_t row, std::int64_t col, std::int64_t n, float* out) {
  auto copy = [&](auto* p) {
    for (std::int64_t d = 0; d < n; d += 16)
      store_part(out + d, load_part(p + col + d, int(std::min<std::int64_t>(16, n - d))), int(std::min<std::int64_t>(16, n - d)));
  };
  if (m.dtype == DType::bf16) return copy(m.row<BF16>(row));
  copy(m.row<float>(row));
}

/// Stores n FP32 values, rounded where the matrix is BF16.
inline void store_row(Mat m, std::int64_t row, std::int64_t col, std::int64_t n, const float* in) {
  auto copy = [&](auto* p) {
    for (std::int64_t d = 0; d < n; d += 16) {
      const int part = int(std::min<std::int64_t>(16, n - d));
      store_part(p + col + d, load_part(in + d, part), part);
    }
  };
  if (m.dtype == DType::bf16) return copy(m.row<BF16>(row));
  copy(m.row<float>(row));
}

}  // namespace plumb::attention_detail
