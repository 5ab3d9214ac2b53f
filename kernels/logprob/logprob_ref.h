// Test only: the log-prob in the plainest loops with the arithmetic of logprob.h written out, and in double without any
// rounding. The first shares exp_ and log_ with the kernels, the second nothing.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/core/math.h"
#include "kernels/numerics/numerics.h"

namespace plumb::logprob_ref {

inline float rounded(bool on, float x) { return on ? round_bf16(x) : x; }

/// One FMA chain over k = 1, 0, 3, 2, ..., an odd n padded by a zero.
template <class A, class B>
float chain(std::int64_t n, float start, A&& a, B&& b) {
  float c = start;
  for (std::int64_t k = 0; k < n; k += 2) {
    c = k + 1 < n ? std::fmaf(a(k + 1), b(k + 1), c) : std::fmaf(0.0f, 0.0f, c);
    c = std::fmaf(a(k), b(k), c);
  }
  return c;
}

inline float lane_sum(const std::vector<float>& x) {
  float lanes[16] = {};
  for (std::size_t j = 0; j < x.size(); ++j) lanes[j % 16] += x[j];
  for (int h = 8; h > 0; h /= 2)
    for (int i = 0; i < h; ++i) lanes[i] += lanes[i + h];
  return lanes[0];
}

struct Row {
  std::vector<float> z;
  std::vector<float> logp;
  float entropy = 0;
  int argmax = 0;
};

/// logits: as stored (already rounded at lm_head.logits).
inline Row forward(const std::vector<float>& logits, float temperature, Sites sites) {
  Row r;
  const bool round = temperature != 1.0f && sites.rounded(Site::logits_temperature);
  for (float l : logits) r.z.push_back(rounded(round, l / temperature));
  for (std::size_t v = 0; v < r.z.size(); ++v)
    if (r.z[v] > r.z[std::size_t(r.argmax)]) r.argmax = int(v);
  const float top = r.z[std::size_t(r.argmax)];
  std::vector<float> e;
  float lanes[16] = {};
  for (std::size_t v = 0; v < r.z.size(); ++v) {
    e.push_back(exp_(r.z[v] - top));
    if (e[v] > 0) lanes[v % 16] = std::fmaf(e[v], r.z[v] - top, lanes[v % 16]);
  }
  const float sum = lane_sum(e);
  const float log_sum = std::isfinite(sum) ? float(std::log(double(sum))) : log_(sum);
  for (float z : r.z) r.logp.push_back((z - top) - log_sum);
  r.entropy = log_sum - lane_sum(std::vector<float>(lanes, lanes + 16)) / sum;
  return r;
}

/// The FP32 gradient of the logits, before its rounding to their storage type.
inline std::vector<float> backward(const Row& r, std::int32_t target, float d_logprob, float d_entropy, float temperature, Sites sites) {
  std::vector<float> dl(r.z.size(), 0.0f);
  if (target < 0 || (d_logprob == 0 && d_entropy == 0)) return dl;
  const bool round = temperature != 1.0f && sites.rounded(Site::logits_temperature);
  for (std::size_t v = 0; v < dl.size(); ++v) {
    const float p = exp_(r.logp[v]);
    float dz = std::int32_t(v) == target ? std::fmaf(p, -d_logprob, d_logprob) : p * -d_logprob;
    if (d_entropy != 0 && p > 0) dz = std::fmaf(-d_entropy, p * (r.logp[v] + r.entropy), dz);
    dl[v] = rounded(round, dz) / temperature;
  }
  return dl;
}

/// sum over rows of d_logprob * logprob + d_entropy * entropy, in double, from hidden (N, D) and weight (V, D).
inline double objective(const std::vector<double>& hidden, const std::vector<double>& weight, std::int64_t depth,
                        const std::vector<std::int32_t>& targets, const std::vector<float>& d_logprob, const std::vector<float>& d_entropy,
                        double temperature) {
  const auto vocab = std::int64_t(weight.size()) / depth;
  double total = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] < 0) continue;
    std::vector<double> z(static_cast<std::size_t>(vocab));
    double top = -INFINITY;
    for (std::int64_t v = 0; v < vocab; ++v) {
      for (std::int64_t d = 0; d < depth; ++d)
        z[std::size_t(v)] += hidden[i * std::size_t(depth) + std::size_t(d)] * weight[std::size_t(v * depth + d)] / temperature;
      top = std::max(top, z[std::size_t(v)]);
    }
    double sum = 0;
    for (double x : z) sum += std::exp(x - top);
    const double lse = top + std::log(sum);
    double entropy = 0;
    for (double x : z) entropy -= std::exp(x - lse) * (x - lse);
    total += double(d_logprob[i]) * (z[std::size_t(targets[i])] - lse) + double(d_entropy[i]) * entropy;
  }
  return total;
}

}  // namespace plumb::logprob_ref
