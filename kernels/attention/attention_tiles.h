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

/// Operands of a product of chains: c(i, 16 p + j) = chain over k = 1, 0, 3, 2, ... of a(i, k) * b(p, k)[j], j = 0..15.
/// Strides are in elements; n, the length of the chains, is even. carry continues the chains in c, else they start at +0.
struct Chains {
  std::int64_t n = 0;
  const float* a = nullptr;
  std::int64_t a_row = 0;
  std::int64_t a_k = 0;
  const float* b = nullptr;
  std::int64_t b_k = 0;
  std::int64_t b_panel = 0;
  float* c = nullptr;
  std::int64_t c_row = 0;
  bool carry = false;
};

/// R rows by P panels: R * P pairs of accumulators, enough of them to hide the latency of an FMA.
template <int R, int P>
[[gnu::noinline]] void chain_tile(const Chains& t) {
  __m256 lo[R][P];
  __m256 hi[R][P];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      lo[i][p] = t.carry ? _mm256_loadu_ps(t.c + i * t.c_row + 16 * p) : _mm256_setzero_ps();
      hi[i][p] = t.carry ? _mm256_loadu_ps(t.c + i * t.c_row + 16 * p + 8) : _mm256_setzero_ps();
    }
  }
  const float* a = t.a;
  const float* b = t.b;
  for (std::int64_t k = 0; k < t.n; k += 2) {
#pragma GCC unroll 2
    for (int half = 1; half >= 0; --half) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const __m256 b_lo = _mm256_loadu_ps(b + half * t.b_k + p * t.b_panel);
        const __m256 b_hi = _mm256_loadu_ps(b + half * t.b_k + p * t.b_panel + 8);
#pragma GCC unroll 8
        for (int i = 0; i < R; ++i) {
          const __m256 x = _mm256_broadcast_ss(a + i * t.a_row + half * t.a_k);
          lo[i][p] = _mm256_fmadd_ps(x, b_lo, lo[i][p]);
          hi[i][p] = _mm256_fmadd_ps(x, b_hi, hi[i][p]);
        }
      }
    }
    a += 2 * t.a_k;
    b += 2 * t.b_k;
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      _mm256_storeu_ps(t.c + i * t.c_row + 16 * p, lo[i][p]);
      _mm256_storeu_ps(t.c + i * t.c_row + 16 * p + 8, hi[i][p]);
    }
  }
}

inline constexpr int kTileRows = 4;

template <int R, int P>
void chain_panels(Chains t, std::int64_t panels) {
  for (; panels >= P; panels -= P, t.b += P * t.b_panel, t.c += 16 * P) chain_tile<R, P>(t);
  for (; panels > 0; --panels, t.b += t.b_panel, t.c += 16) chain_tile<R, 1>(t);
}

/// 1..kTileRows rows by any number of panels.
inline void chain_rows(std::int64_t rows, std::int64_t panels, const Chains& t) {
  switch (rows) {
    case 1: return chain_panels<1, 4>(t, panels);
    case 2: return chain_panels<2, 2>(t, panels);
    case 3: return chain_panels<3, 1>(t, panels);
    default: return chain_panels<4, 1>(t, panels);
  }
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

/// 32 bytes of eight rows, transposed: out[d * 16 + row].
inline void transpose_dims(const float* const* rows, std::int64_t d, float* out) {
  __m256 r[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(rows[i] + d);
  transpose8(r);
  for (int i = 0; i < 8; ++i) _mm256_storeu_ps(out + (d + i) * 16, r[i]);
}
/// Sixteen dims: as pairs of BF16 in one 32-bit element, so that a pair moves at the price of one.
inline void transpose_dims(const BF16* const* rows, std::int64_t d, float* out) {
  __m256 r[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(rows[i] + d));
  transpose8(r);
  const __m256i odd = _mm256_set1_epi32(int(0xFFFF0000));
  for (int i = 0; i < 8; ++i) {
    const __m256i pair = _mm256_castps_si256(r[i]);
    _mm256_storeu_ps(out + (d + 2 * i) * 16, _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)));
    _mm256_storeu_ps(out + (d + 2 * i + 1) * 16, _mm256_castsi256_ps(_mm256_and_si256(pair, odd)));
  }
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
    constexpr std::int64_t kDims = 32 / sizeof(T);
    if (count == 8)
      for (; d + kDims <= head_dim; d += kDims) transpose_dims(rows, d, panel + half * 8);
    for (; d < head_dim; ++d)
      for (std::int64_t i = 0; i < 8; ++i) panel[d * 16 + half * 8 + i] = i < count ? to_float(rows[i][d]) : 0.0f;
  }
}

/// Into the second-level cache. g++ takes a function that only calls __builtin_prefetch for one without effect and drops
/// it, hence asm.
inline void prefetch(const void* p) { asm volatile("prefetcht1 %0" : : "m"(*static_cast<const char*>(p))); }

/// Asks for the rows [first, first + count) of one kv head ahead of their use: rows lie far apart, which no hardware
/// prefetcher foresees.
template <class T>
void prefetch_rows(const KvRows& kv, std::int64_t offset, std::int64_t first, std::int64_t count, std::int64_t head_dim) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = 0; i < count; ++i) {
    const T* row = kv_row<T>(kv, first + i, offset);
    for (std::int64_t d = 0; d < head_dim; d += kLine) prefetch(row + d);
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
