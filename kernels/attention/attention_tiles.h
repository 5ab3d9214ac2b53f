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

/// Operands of a product of chains: c(i, 16 p + j) = chain over k of a(i, k) * b(p, k)[j], j = 0..15; k runs 1, 0, 3, 2, ...
/// or, natural, 0, 1, 2, ... Strides are in elements; n, the length of the chains, is even. carry continues the chains in c, else
/// they start at +0.
struct Chains {
  bool natural = false;
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
template <int R, int P, bool kNatural>
[[gnu::always_inline]] inline void chain_tile(const Chains& t, const float* b, float* c) {
  __m256 lo[R][P];
  __m256 hi[R][P];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      lo[i][p] = t.carry ? _mm256_loadu_ps(c + i * t.c_row + 16 * p) : _mm256_setzero_ps();
      hi[i][p] = t.carry ? _mm256_loadu_ps(c + i * t.c_row + 16 * p + 8) : _mm256_setzero_ps();
    }
  }
  const float* a = t.a;
  for (std::int64_t k = 0; k < t.n; k += 2) {
#pragma GCC unroll 2
    for (int half = 1; half >= 0; --half) {
      const int at = kNatural ? 1 - half : half;
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const __m256 b_lo = _mm256_loadu_ps(b + at * t.b_k + p * t.b_panel);
        const __m256 b_hi = _mm256_loadu_ps(b + at * t.b_k + p * t.b_panel + 8);
#pragma GCC unroll 8
        for (int i = 0; i < R; ++i) {
          const __m256 x = _mm256_broadcast_ss(a + i * t.a_row + at * t.a_k);
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
      _mm256_storeu_ps(c + i * t.c_row + 16 * p, lo[i][p]);
      _mm256_storeu_ps(c + i * t.c_row + 16 * p + 8, hi[i][p]);
    }
  }
}

inline constexpr int kTileRows = 4;

template <int R, int P, bool kNatural>
[[gnu::noinline]] void chain_panels(const Chains& t, std::int64_t panels) {
  const float* b = t.b;
  float* c = t.c;
  for (; panels >= P; panels -= P, b += P * t.b_panel, c += 16 * P) chain_tile<R, P, kNatural>(t, b, c);
  if constexpr (P > 1)
    for (; panels > 0; --panels, b += t.b_panel, c += 16) chain_tile<R, 1, kNatural>(t, b, c);
}

template <bool kNatural>
void chain_rows_in_order(std::int64_t rows, std::int64_t panels, const Chains& t) {
  switch (rows) {
    case 1: return chain_panels<1, 4, kNatural>(t, panels);
    case 2: return chain_panels<2, 2, kNatural>(t, panels);
    case 3: return chain_panels<3, 1, kNatural>(t, panels);
    default: return chain_panels<4, 1, kNatural>(t, panels);
  }
}

/// 1..kTileRows rows by any number of panels.
inline void chain_rows(std::int64_t rows, std::int64_t panels, const Chains& t) {
  if (t.natural) return chain_rows_in_order<true>(rows, panels, t);
  chain_rows_in_order<false>(rows, panels, t);
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

/// 32 bytes of eight rows, those from `count` on zeros, transposed: out[d * 16 + row].
[[gnu::always_inline]] inline void transpose_dims(const float* const* rows, std::int64_t count, std::int64_t d, float* out) {
  __m256 r[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = i < count ? _mm256_loadu_ps(rows[i] + d) : _mm256_setzero_ps();
  transpose8(r);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) _mm256_storeu_ps(out + (d + i) * 16, r[i]);
}
/// Sixteen dims: as pairs of BF16 in one 32-bit element, so that a pair moves at the price of one.
[[gnu::always_inline]] inline void transpose_dims(const BF16* const* rows, std::int64_t count, std::int64_t d, float* out) {
  __m256 r[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = i < count ? _mm256_loadu_ps(reinterpret_cast<const float*>(rows[i] + d)) : _mm256_setzero_ps();
  transpose8(r);
  const __m256i odd = _mm256_set1_epi32(int(0xFFFF0000));
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m256i pair = _mm256_castps_si256(r[i]);
    _mm256_storeu_ps(out + (d + 2 * i) * 16, _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)));
    _mm256_storeu_ps(out + (d + 2 * i + 1) * 16, _mm256_castsi256_ps(_mm256_and_si256(pair, odd)));
  }
}

/// Sixteen keys transposed: panel[d * 16 + key]; keys from `count` (0..16) on are zeros.
template <class T>
void pack_columns(const T* const* rows, std::int64_t count, std::int64_t head_dim, float* panel) {
  constexpr std::int64_t kDims = 32 / sizeof(T);
  for (int half = 0; half < 2; ++half, rows += 8, count -= 8, panel += 8) {
    if (count <= 0) {
      for (std::int64_t d = 0; d < head_dim; ++d) _mm256_storeu_ps(panel + d * 16, _mm256_setzero_ps());
      continue;
    }
    std::int64_t d = 0;
    for (; d + kDims <= head_dim; d += kDims) transpose_dims(rows, count, d, panel);
    for (; d < head_dim; ++d)
      for (std::int64_t i = 0; i < 8; ++i) panel[d * 16 + i] = i < count ? to_float(rows[i][d]) : 0.0f;
  }
}

/// Rows into panels of 16 dims: panels[(d / 16) * panel_stride + row * 16 + d % 16]; the rest of the last panel is 0.
template <class T>
void pack_rows(const T* const* rows, std::int64_t count, std::int64_t head_dim, std::int64_t panel_stride, float* panels) {
  for (std::int64_t i = 0; i < count; ++i) {
    float* out = panels + i * 16;
    std::int64_t d = 0;
    for (; d + 16 <= head_dim; d += 16, out += panel_stride) store16(out, load16(rows[i] + d));
    if (d < head_dim) store16(out, load_part(rows[i] + d, int(head_dim - d)));
  }
}

/// out[i] = the row of position first + i of one kv head whose elements start `offset` elements into a row.
template <class T>
void list_rows(const KvRows& kv, std::int64_t offset, std::int64_t first, std::int64_t count, const T** out) {
  const T* prefix = static_cast<const T*>(kv.prefix);
  const T* own = static_cast<const T*>(kv.own);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t position = first + i;
    out[i] = (position < kv.prefix_len ? prefix + position * kv.stride : own + (position - kv.prefix_len) * kv.stride) + offset;
  }
}

/// Reads one element of every cache line of the rows, in order of memory, ahead of their use head by head, which no
/// hardware prefetcher foresees. Loads, because prefetch instructions did nothing on virtual machines (1.7 times slower).
template <class T>
void touch_rows(const T* const* rows, std::int64_t count, std::int64_t n) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t d = 0; d < n; d += kLine) {
      int unused;
      asm volatile("movzbl %1, %0" : "=r"(unused) : "m"(*reinterpret_cast<const char*>(rows[i] + d)));
    }
  }
}

/// Sixteen values in two registers, in the order in which they are cheapest to widen: BF16 as even and odd elements.
inline void load_pair(const float* p, __m256& a, __m256& b) {
  a = _mm256_loadu_ps(p);
  b = _mm256_loadu_ps(p + 8);
}
inline void load_pair(const BF16* p, __m256& a, __m256& b) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  a = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
  b = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(int(0xFFFF0000))));
}
/// From natural order to that of load_pair<T>, and back.
template <class T>
void to_pair_order(__m256& a, __m256& b) {
  if constexpr (sizeof(T) == 2) {
    const __m256 even = _mm256_shuffle_ps(a, b, 0x88);
    const __m256 odd = _mm256_shuffle_ps(a, b, 0xDD);
    a = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xD8));
    b = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), 0xD8));
  }
}
template <class T>
void to_natural_order(__m256& a, __m256& b) {
  if constexpr (sizeof(T) == 2) {
    const __m256 lo = _mm256_unpacklo_ps(a, b);
    const __m256 hi = _mm256_unpackhi_ps(a, b);
    a = _mm256_permute2f128_ps(lo, hi, 0x20);
    b = _mm256_permute2f128_ps(lo, hi, 0x31);
  }
}

/// o[r][0..16 P) continues the chain over n keys of p[r][key] * rows[key][0..16 P), in pairs (an odd last key with a zero) or in
/// natural order. For few rows, where packing the values would cost more than the products.
template <class T, bool kNatural, int R, int P>
[[gnu::noinline]] void add_rows(const T* const* rows, std::int64_t n, std::int64_t dim, const float* p, std::int64_t p_row, float* o,
                                std::int64_t o_row) {
  __m256 a[R][P];
  __m256 b[R][P];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int d = 0; d < P; ++d) {
      a[r][d] = _mm256_loadu_ps(o + r * o_row + 16 * d);
      b[r][d] = _mm256_loadu_ps(o + r * o_row + 16 * d + 8);
      to_pair_order<T>(a[r][d], b[r][d]);
    }
  }
  auto step = [&](std::int64_t key) {
    const T* v = rows[key] + dim;
#pragma GCC unroll 8
    for (int d = 0; d < P; ++d) {
      __m256 x;
      __m256 y;
      load_pair(v + 16 * d, x, y);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m256 weight = _mm256_broadcast_ss(p + r * p_row + key);
        a[r][d] = _mm256_fmadd_ps(weight, x, a[r][d]);
        b[r][d] = _mm256_fmadd_ps(weight, y, b[r][d]);
      }
    }
  };
  std::int64_t key = 0;
  for (; key + 2 <= n; key += 2) {
    step(kNatural ? key : key + 1);
    step(kNatural ? key + 1 : key);
  }
  if (kNatural && key < n) step(key++);
  if (key < n) {
    const __m256 zero = _mm256_setzero_ps();
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int d = 0; d < P; ++d) {
        a[r][d] = _mm256_fmadd_ps(zero, zero, a[r][d]);
        b[r][d] = _mm256_fmadd_ps(zero, zero, b[r][d]);
      }
    }
    step(key);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int d = 0; d < P; ++d) {
      to_natural_order<T>(a[r][d], b[r][d]);
      _mm256_storeu_ps(o + r * o_row + 16 * d, a[r][d]);
      _mm256_storeu_ps(o + r * o_row + 16 * d + 8, b[r][d]);
    }
  }
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

/// Stores n FP32 values, rounded to the matrix's type.
inline void store_row(Mat m, std::int64_t row, std::int64_t col, std::int64_t n, const float* in) {
  auto copy = [&](auto* p) {
    for (std::int64_t d = 0; d < n; d += 16) {
      const int part = int(std::min<std::int64_t>(16, n - d));
      store_part(p + col + d, load_part(in + d, part), part);
    }
  };
  if (m.dtype == DType::bf16) return copy(m.row<BF16>(row));
  if (is_emulated(m.dtype)) {
    for (std::int64_t d = 0; d < n; ++d) m.row<float>(row)[col + d] = round_to(m.dtype, in[d]);
    return;
  }
  copy(m.row<float>(row));
}

}  // namespace plumb::attention_detail
