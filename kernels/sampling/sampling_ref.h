// Test only: which tokens are kept and with what probability each is drawn, in double, by sorting everything.
#pragma once
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/sampling/sampling.h"

namespace plumb::sampling_ref {

/// Probabilities after the cuts, renormalised; temperature > 0.
inline std::vector<double> distribution(const std::vector<float>& logits, const SamplingParams& params) {
  std::vector<double> p;
  const double top = *std::max_element(logits.begin(), logits.end());
  for (float l : logits) p.push_back(std::exp((double(l) - top) / double(params.temperature)));
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t(0));
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return p[a] > p[b]; });
  if (params.top_k > 0 && std::size_t(params.top_k) < order.size()) order.resize(std::size_t(params.top_k));
  double total = 0;
  for (std::size_t v : order) total += p[v];
  double reached = 0;
  std::size_t kept = 0;
  while (kept < order.size() && (kept == 0 || params.top_p == 1.0f || reached < double(params.top_p) * total)) reached += p[order[kept++]];
  order.resize(kept);
  std::vector<double> out(p.size(), 0.0);
  for (std::size_t v : order) out[v] = p[v] / reached;
  return out;
}

}  // namespace plumb::sampling_ref
