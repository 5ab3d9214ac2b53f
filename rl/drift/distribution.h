// The difference of two log-probs per token, d = b - a, described.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace plumb {

struct Distribution {
  std::int64_t tokens = 0;
  double equal_share = 0;  // of tokens with |d| <= tolerance (bit-equal when the tolerance is 0)
  double mean_abs = 0;
  double mean = 0;
  double deviation = 0;  // standard deviation of d
  double max_abs = 0;
  /// Smallest |d| that at least this share of the tokens does not exceed.
  std::vector<std::pair<double, double>> quantiles;  // .5, .9, .99, .999

  /// Tokens by |d|: those that are equal, below 1e-6, then four bins a decade up to 10, the last open.
  static constexpr int kBinsPerDecade = 4;
  static constexpr double kLowest = 1e-6;
  static constexpr int kBins = 2 + 7 * kBinsPerDecade;
  std::array<std::int64_t, kBins> histogram{};
  static double bin_start(int bin);

  /// Tokens by the probability that a gives them: is the difference the same for likely and unlikely tokens?
  struct ByProbability {
    double from = 0, to = 0;
    std::int64_t tokens = 0;
    double mean_abs = 0;
    double mean = 0;
  };
  std::vector<ByProbability> by_probability;
};

/// a, b: log-probs (n); equal[i]: within what is counted as equal.
Distribution describe_difference(std::span<const float> a, std::span<const float> b, const std::vector<bool>& equal);
std::vector<bool> bit_equal(std::span<const float> a, std::span<const float> b);

}  // namespace plumb
