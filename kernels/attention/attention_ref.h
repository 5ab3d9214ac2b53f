// Test only: attention in the plainest loops, one query and one head at a time, with the arithmetic of attention.h written
// out. It shares nothing with the kernels but exp_, the one elementary function. A null `chain` order is double precision.
#pragma once
#include <cmath>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/core/math.h"

namespace plumb::attention_ref {

/// One FMA chain over k = 1, 0, 3, 2, ..., an odd n padded by a zero.
template <class A, class B>
float chain(std::int64_t n, A&& a, B&& b) {
  float c = 0;
  for (std::int64_t k = 0; k < n; k += 2) {
    c = k + 1 < n ? std::fmaf(a(k + 1), b(k + 1), c) : std::fmaf(0.0f, 0.0f, c);
    c = std::fmaf(a(k), b(k), c);
  }
  return c;
}

/// Element j in lane j % 16, folded by halves.
inline float lane_sum(const std::vector<float>& x) {
  float lanes[16] = {};
  for (std::size_t j = 0; j < x.size(); ++j) lanes[j % 16] += x[j];
  for (int h = 8; h > 0; h /= 2)
    for (int i = 0; i < h; ++i) lanes[i] += lanes[i + h];
  return lanes[0];
}

inline float rounded(bool on, float x) { return on ? round_bf16(x) : x; }

struct Head {
  std::vector<float> out;  // head_dim
  float max = 0;
  float sum = 0;
};

/// One query q (head_dim) over keys k[j], values v[j], j = 0..n-1 (each head_dim).
inline Head forward(const std::vector<float>& q, const std::vector<std::vector<float>>& k, const std::vector<std::vector<float>>& v,
                    const Numerics& numerics, Sites sites) {
  const auto head_dim = std::int64_t(q.size());
  const auto n = std::int64_t(k.size());
  const float scale = float(1.0 / std::sqrt(double(head_dim)));
  const bool query = numerics.scale_at == ScaleAt::query;
  const bool normalised = numerics.softmax == Softmax::normalised;
  const bool round_probs = sites.rounded(Site::attn_probs);
  std::vector<float> s(static_cast<std::size_t>(n));
  for (std::int64_t j = 0; j < n; ++j) {
    const float dot = chain(
        head_dim, [&](std::int64_t d) { return query ? q[d] * scale : q[d]; }, [&](std::int64_t d) { return k[j][d]; });
    s[j] = rounded(sites.rounded(Site::attn_scaled), rounded(sites.rounded(Site::attn_scores), dot) * (query ? 1.0f : scale));
  }
  Head h;
  h.out.assign(q.size(), 0.0f);
  h.max = -INFINITY;
  const std::int64_t tile = normalised ? n : numerics.reductions.attention_kv_tile;
  for (std::int64_t t = 0; t < n; t += tile) {
    const std::int64_t end = std::min(n, t + tile);
    float new_max = h.max;
    for (std::int64_t j = t; j < end; ++j) new_max = std::max(new_max, s[j]);
    std::vector<float> e;
    for (std::int64_t j = t; j < end; ++j) e.push_back(exp_(s[j] - new_max));
    const float sum = lane_sum(e);
    const float shift = t == 0 ? 1.0f : exp_(h.max - new_max);
    h.sum = t == 0 ? sum : std::fmaf(h.sum, shift, sum);
    h.max = new_max;
    for (float& p : e) p = rounded(round_probs, normalised ? p * (1.0f / h.sum) : p);
    for (std::int64_t d = 0; d < head_dim; ++d) {
      float c = h.out[d] * shift;
      for (std::int64_t j = t; j < end; j += 2) {
        c = j + 1 < end ? std::fmaf(e[j + 1 - t], v[j + 1][d], c) : std::fmaf(0.0f, 0.0f, c);
        c = std::fmaf(e[j - t], v[j][d], c);
      }
      h.out[d] = c;
    }
  }
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
  const float scale = float(1.0 / std::sqrt(double(D)));
  Rows p(T, std::vector<float>(T));
  Rows ds(T, std::vector<float>(T));
  Gradients g = start;
  for (std::size_t i = 0; i < T; ++i) {
    const Head h =
        forward(q[i], Rows(k.begin(), k.begin() + std::int64_t(i) + 1), Rows(v.begin(), v.begin() + std::int64_t(i) + 1), numerics, sites);
    std::vector<float> products(i + 1);
    std::vector<float> dp(i + 1);
    for (std::size_t j = 0; j <= i; ++j) {
      const float dot = chain(
          std::int64_t(D), [&](std::int64_t d) { return query ? q[i][d] * scale : q[i][d]; }, [&](std::int64_t d) { return k[j][d]; });
      const float s = rounded(sites.rounded(Site::attn_scaled), rounded(sites.rounded(Site::attn_scores), dot) * (query ? 1.0f : scale));
      p[i][j] = exp_(s - h.max) * (1.0f / h.sum);
      dp[j] = chain(
          std::int64_t(D), [&](std::int64_t d) { return d_out[i][d]; }, [&](std::int64_t d) { return v[j][d]; });
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
          std::int64_t(i) + 1, [&](std::int64_t j) { return ds[i][j]; }, [&](std::int64_t j) { return k[j][d]; });
      g.q[i][d] = query ? c * scale : c;
    }
  }
  for (std::size_t j = 0; j < T; ++j) {
    for (std::size_t d = 0; d < D; ++d) {
      for (std::size_t i = 0; i < T; i += 2) {
        for (std::size_t r : {i + 1, i}) {
          if (r >= T) continue;
          g.k[j][d] = std::fmaf(ds[r][j], query ? q[r][d] * scale : q[r][d], g.k[j][d]);
          g.v[j][d] = std::fmaf(p[r][j], d_out[r][d], g.v[j][d]);
        }
      }
    }
  }
  return g;
}

}  // namespace plumb::attention_ref
