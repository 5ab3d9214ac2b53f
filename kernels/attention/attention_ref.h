// Test only: attention in the plainest loops, one query and one head at a time, with the arithmetic of attention.h written
// out. It shares nothing with the kernels but exp_, the engine's own exp.
#pragma once
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/core/math.h"

namespace plumb::attention_ref {

/// One FMA chain: over k = 1, 0, 3, 2, ..., an odd n padded by a zero, or over k = 0, 1, 2, ...
template <class A, class B>
float chain(MatmulOrder order, std::int64_t n, A&& a, B&& b, float start = 0) {
  float c = start;
  if (order == MatmulOrder::natural) {
    for (std::int64_t k = 0; k < n; ++k) c = std::fmaf(a(k), b(k), c);
    return c;
  }
  for (std::int64_t k = 0; k < n; k += 2) {
    c = k + 1 < n ? std::fmaf(a(k + 1), b(k + 1), c) : std::fmaf(0.0f, 0.0f, c);
    c = std::fmaf(a(k), b(k), c);
  }
  return c;
}

/// exp_u20 and exp_fast as they are published, in double with every FP32 rounding spelled out.
inline float exp_u20(float x) {
  if (x < -0x1.5D58A0p+6f) return 0;
  const double n = std::floor(double(float(double(x) * 0x1.715476p+0 + 0.5)));
  const float r = float(double(x) - n * 0x1.62E430p-1);
  float p = 0.00828929059f;
  for (const float c : {0.0418978221f, 0.166676521f, 0.499991506f, 0.999999701f, 1.0f}) p = float(double(p) * r + double(c));
  return n > -126 ? std::ldexp(p, int(n)) : 0.0f;
}
inline float exp_fast(float x) {
  if (x < -0x1.5D58A0p+6f) return 0;
  const float y = x * 0x1.715476p+0f;
  const float t = y - std::floor(y);
  float p = -0.079204240219773236f;
  for (const float c : {-0.22433836478672356f, 0.30354260500649682f, 0.00010703434948458272f}) p = float(double(p) * t + double(c));
  return std::bit_cast<float>(std::int32_t(float(8388608.0 * double(y - p) + 127 * 8388608.0)));
}

/// The exponential of the score of key j in a sequence of `length`.
inline float exp_of(const Reductions& r, float x, std::int64_t j, std::int64_t length) {
  if (r.attention_exp == AttentionExp::u20) return exp_u20(x);
  if (r.attention_exp == AttentionExp::torch_fast_all) return exp_fast(x);
  if (r.attention_exp == AttentionExp::torch_fast && j < length - length % 16) return exp_fast(x);
  return exp_(x);
}

/// Element j in lane j % 16, folded by halves.
inline float lane_sum(const std::vector<float>& x) {
  float lanes[16] = {};
  for (std::size_t j = 0; j < x.size(); ++j) lanes[j % 16] += x[j];
  for (int h = 8; h > 0; h /= 2)
    for (int i = 0; i < h; ++i) lanes[i] += lanes[i + h];
  return lanes[0];
}

/// The sum of e of the keys first.. of a sequence of `length`.
inline float exp_sum(const Reductions& r, const std::vector<float>& e, std::int64_t first, std::int64_t length) {
  if (r.attention_sum == AttentionSum::lanes16) return lane_sum(e);
  const std::int64_t whole = std::clamp<std::int64_t>(length - length % 16 - first, 0, std::int64_t(e.size()));
  float sum = lane_sum({e.begin(), e.begin() + whole});
  for (std::size_t j = std::size_t(whole); j < e.size(); ++j) sum += e[j];
  return sum;
}

inline float rounded(bool on, float x) { return on ? round_bf16(x) : x; }

struct Head {
  std::vector<float> out;  // head_dim
  float max = 0;
  float sum = 0;
};

/// Scaled scores of one query q (head_dim) with the keys k[j] (head_dim each).
inline std::vector<float> scores(const std::vector<float>& q, const std::vector<std::vector<float>>& k, const Numerics& numerics,
                                 Sites sites) {
  const bool query = numerics.scale_at == ScaleAt::query;
  const float scale = float(1.0 / std::sqrt(double(q.size())));
  std::vector<float> s;
  for (const std::vector<float>& key : k) {
    const float dot = chain(
        numerics.reductions.attention_qk, std::int64_t(q.size()), [&](std::int64_t d) { return query ? q[d] * scale : q[d]; },
        [&](std::int64_t d) { return key[d]; });
    s.push_back(rounded(sites.rounded(Site::attn_scaled), rounded(sites.rounded(Site::attn_scores), dot) * (query ? 1.0f : scale)));
  }
  return s;
}

/// Keys first..end of a row with scores s, summed from nothing, tile by tile: out is not yet divided by the sum.
inline Head sum_keys(const std::vector<float>& s, const std::vector<std::vector<float>>& v, std::int64_t first, std::int64_t end,
                     std::int64_t tile, const Numerics& numerics, bool round_probs, std::int64_t length) {
  const bool normalised = numerics.softmax == Softmax::normalised;
  Head h;
  h.out.assign(v[0].size(), 0.0f);
  h.max = -INFINITY;
  for (std::int64_t t = first; t < end; t += tile) {
    const std::int64_t stop = std::min(end, t + tile);
    float new_max = h.max;
    for (std::int64_t j = t; j < stop; ++j) new_max = std::max(new_max, s[j]);
    std::vector<float> e;
    for (std::int64_t j = t; j < stop; ++j) e.push_back(exp_of(numerics.reductions, s[j] - new_max, j, length));
    const float sum = exp_sum(numerics.reductions, e, t, length);
    const float shift = t == first ? 1.0f : exp_(h.max - new_max);
    h.sum = t == first ? sum : std::fmaf(h.sum, shift, sum);
    h.max = new_max;
    for (float& p : e) p = rounded(round_probs, normalised ? p * (1.0f / h.sum) : p);
    for (std::size_t d = 0; d < h.out.size(); ++d)
      h.out[d] = chain(
          numerics.reductions.attention_pv, stop - t, [&](std::int64_t j) { return e[j]; }, [&](std::int64_t j) { return v[t + j][d]; },
          h.out[d] * shift);
  }
  return h;
}

inline Head merged(const Head& a, const Head& b) {
  Head h{.out = a.out, .max = std::max(a.max, b.max)};
  const float shift_a = exp_(a.max - h.max);
  const float shift_b = exp_(b.max - h.max);
  for (std::size_t d = 0; d < h.out.size(); ++d) h.out[d] = std::fmaf(a.out[d], shift_a, b.out[d] * shift_b);
  h.sum = std::fmaf(a.sum, shift_a, b.sum * shift_b);
  return h;
}

/// One query q (head_dim) over keys k[j], values v[j], j = 0..n-1 (each head_dim), of a sequence of `length` >= n.
inline Head forward(const std::vector<float>& q, const std::vector<std::vector<float>>& k, const std::vector<std::vector<float>>& v,
                    const Numerics& numerics, Sites sites, std::int64_t length) {
  const auto n = std::int64_t(k.size());
  const bool normalised = numerics.softmax == Softmax::normalised;
  const std::vector<float> s = scores(q, k, numerics, sites);
  const std::int64_t tile = normalised ? n : numerics.reductions.attention_kv_tile;
  const std::int64_t tiles = (n + tile - 1) / tile;
  const std::int64_t range = (tiles + numerics.reductions.attention_kv_split - 1) / numerics.reductions.attention_kv_split * tile;
  std::vector<Head> parts;
  for (std::int64_t t = 0; t < n; t += range)
    parts.push_back(sum_keys(s, v, t, std::min(n, t + range), tile, numerics, sites.rounded(Site::attn_probs), length));
  while (parts.size() > 1) {
    std::vector<Head> half;
    for (std::size_t i = 0; i < parts.size(); i += 2) half.push_back(i + 1 < parts.size() ? merged(parts[i], parts[i + 1]) : parts[i]);
    parts = half;
  }
  Head h = parts[0];
  for (float& o : h.out) o = rounded(sites.rounded(Site::attn_out), normalised ? o : o * (1.0f / h.sum));
  return h;
}

using Rows = std::vector<std::vector<float>>;  // (T, head_dim)

struct Gradients {
  Rows q;
  Rows k;
  Rows v;
};

/// One query head of one sequence: d_k and d_v are its share, unrounded chains over the queries. start continues the chains
/// of an earlier head (fused) or is zeros.
inline Gradients backward(const Rows& q, const Rows& k, const Rows& v, const Rows& out, const Rows& d_out, const Numerics& numerics,
                          Sites sites, BackwardMode mode, const Gradients& start) {
  const std::size_t T = q.size();
  const std::size_t D = q[0].size();
  const bool query = numerics.scale_at == ScaleAt::query;
  const bool mirror = mode == BackwardMode::mirror;
  const MatmulOrder qk = numerics.reductions.attention_qk;
  const MatmulOrder pv = numerics.reductions.attention_pv;
  const float scale = float(1.0 / std::sqrt(double(D)));
  Rows p(T, std::vector<float>(T));
  Rows ds(T, std::vector<float>(T));
  Gradients g = start;
  for (std::size_t i = 0; i < T; ++i) {
    const Rows keys(k.begin(), k.begin() + std::int64_t(i) + 1);
    const Head h = forward(q[i], keys, Rows(v.begin(), v.begin() + std::int64_t(i) + 1), numerics, sites, std::int64_t(T));
    const std::vector<float> s = scores(q[i], keys, numerics, sites);
    std::vector<float> products(i + 1);
    std::vector<float> dp(i + 1);
    for (std::size_t j = 0; j <= i; ++j) {
      p[i][j] = exp_of(numerics.reductions, s[j] - h.max, std::int64_t(j), std::int64_t(T)) * (1.0f / h.sum);
      dp[j] = chain(
          pv, std::int64_t(D), [&](std::int64_t d) { return d_out[i][d]; }, [&](std::int64_t d) { return v[j][d]; });
      if (mirror) dp[j] = rounded(sites.rounded(Site::attn_probs), dp[j]);
      products[j] = dp[j] * p[i][j];
    }
    float lanes[16] = {};
    for (std::size_t d = 0; d < D; ++d) lanes[d % 16] = std::fmaf(d_out[i][d], out[i][d], lanes[d % 16]);
    const float row_dot = mirror ? lane_sum(products) : lane_sum(std::vector<float>(lanes, lanes + 16));
    for (std::size_t j = 0; j <= i; ++j) {
      const float soft = rounded(mirror && sites.rounded(Site::attn_scaled), (dp[j] - row_dot) * p[i][j]);
      ds[i][j] = rounded(mirror && sites.rounded(Site::attn_scores), soft * (query ? 1.0f : scale));
      p[i][j] = rounded(mirror && sites.rounded(Site::attn_probs), p[i][j]);
    }
    for (std::size_t d = 0; d < D; ++d) {
      const float c = chain(
          qk, std::int64_t(i) + 1, [&](std::int64_t j) { return ds[i][j]; }, [&](std::int64_t j) { return k[j][d]; });
      g.q[i][d] = query ? c * scale : c;
    }
  }
  for (std::size_t j = 0; j < T; ++j) {
    for (std::size_t d = 0; d < D; ++d) {
      auto of_query = [&](std::int64_t i) { return query ? q[i][d] * scale : q[i][d]; };
      g.k[j][d] = chain(
          qk, std::int64_t(T), [&](std::int64_t i) { return ds[i][j]; }, of_query, g.k[j][d]);
      g.v[j][d] = chain(
          pv, std::int64_t(T), [&](std::int64_t i) { return p[i][j]; }, [&](std::int64_t i) { return d_out[i][d]; }, g.v[j][d]);
    }
  }
  return g;
}

}  // namespace plumb::attention_ref
