#include "rl/drift/distribution.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace plumb {

double Distribution::bin_start(int bin) {
  if (bin <= 1) return 0;
  return kLowest * std::pow(10.0, double(bin - 2) / kBinsPerDecade);
}

std::vector<bool> bit_equal(std::span<const float> a, std::span<const float> b) {
  std::vector<bool> out;
  for (std::size_t i = 0; i < a.size(); ++i) out.push_back(std::bit_cast<std::uint32_t>(a[i]) == std::bit_cast<std::uint32_t>(b[i]));
  return out;
}

Distribution describe_difference(std::span<const float> a, std::span<const float> b, const std::vector<bool>& equal) {
  Distribution out{.tokens = std::int64_t(a.size())};
  for (const auto& [from, to] : {std::pair{0.0, 1e-4}, std::pair{1e-4, 1e-3}, std::pair{1e-3, 1e-2}, std::pair{1e-2, 0.1},
                                 std::pair{0.1, 0.5}, std::pair{0.5, 0.9}, std::pair{0.9, 1.0}}) {
    out.by_probability.push_back({.from = from, .to = to});
  }
  if (a.empty()) return out;
  const double n = double(a.size());
  std::vector<double> sizes;
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = double(b[i]) - a[i], size = std::abs(d);
    sizes.push_back(size);
    out.mean += d / n;
    out.mean_abs += size / n;
    out.max_abs = std::max(out.max_abs, size);
    squares += d * d / n;
    int bin = equal[i] ? 0 : 1;
    while (!equal[i] && bin + 1 < Distribution::kBins && size >= Distribution::bin_start(bin + 1)) ++bin;
    ++out.histogram[std::size_t(bin)];
    const double p = std::exp(double(a[i]));
    auto bucket = std::find_if(out.by_probability.begin(), out.by_probability.end(), [&](const auto& x) { return p < x.to; });
    if (bucket == out.by_probability.end()) --bucket;
    ++bucket->tokens;
    bucket->mean += d;
    bucket->mean_abs += size;
  }
  for (auto& bucket : out.by_probability) {
    if (bucket.tokens == 0) continue;
    bucket.mean /= double(bucket.tokens);
    bucket.mean_abs /= double(bucket.tokens);
  }
  out.equal_share = double(std::count(equal.begin(), equal.end(), true)) / n;
  out.deviation = std::sqrt(std::max(0.0, squares - out.mean * out.mean));
  std::sort(sizes.begin(), sizes.end());
  for (double q : {0.5, 0.9, 0.99, 0.999}) {
    const auto rank = std::size_t(std::ceil(q * n));
    out.quantiles.emplace_back(q, sizes[std::max<std::size_t>(rank, 1) - 1]);
  }
  return out;
}

}  // namespace plumb
