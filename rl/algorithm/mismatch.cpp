#include "rl/algorithm/mismatch.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/core/math.h"

namespace plumb {

namespace {

/// exp over the whole line: outside the polynomial's range the result is 0 or infinite, and NaN passes.
double exp_wide(double x) {
  if (x > 700) return std::numeric_limits<double>::infinity();
  if (x < -700) return 0;
  return exp_double(x);
}

/// exp(d) - d - 1 without the cancellation at small d.
double k3_of(double d) {
  if (std::abs(d) > 0.01) return exp_wide(d) - d - 1;
  return d * d * (1.0 / 2 + d * (1.0 / 6 + d * (1.0 / 24 + d * (1.0 / 120 + d * (1.0 / 720)))));
}

/// Smallest value that at least 99 % do not exceed.
double percentile_99(std::vector<double> x) {
  const std::size_t rank = (x.size() * 99 + 99) / 100;
  const auto at = x.begin() + std::ptrdiff_t(rank - 1);
  std::nth_element(x.begin(), at, x.end());
  return *at;
}

/// (sum w)^2 / (n sum w^2), which is 1 exactly when all weights are 1.
double effective_share(double sum, double squares, std::int64_t n) { return sum / squares * (sum / double(n)); }

}  // namespace

void Mismatch::add(const MismatchSequence& sequence) {
  const std::size_t n = sequence.trainer.size();
  if (n == 0) return;
  Sums s{.tokens = std::int64_t(n)};
  for (std::size_t i = 0; i < n; ++i) {
    const double t = sequence.trainer[i];
    const double g = sequence.rollout[i];
    const double d = t - g;
    const double w = exp_wide(d);
    s.difference += d;
    s.k3 += k3_of(d);
    s.abs_max = std::max(s.abs_max, std::abs(d));
    s.prob_diff += std::abs(exp_wide(t) - exp_wide(g));
    s.mult_error += exp_wide(std::abs(d));
    s.weight += w;
    s.weight_squared += exp_wide(2 * d);
    s.log_ratio_min = i == 0 ? d : std::min(s.log_ratio_min, d);
    s.log_ratio_max = i == 0 ? d : std::max(s.log_ratio_max, d);
    s.trainer += t;
    s.rollout += g;
    s.bitwise_equal += std::bit_cast<std::uint32_t>(sequence.trainer[i]) == std::bit_cast<std::uint32_t>(sequence.rollout[i]);
    abs_differences_.push_back(std::abs(d));
    if (sequence.trainer_argmax.empty() || sequence.rollout_argmax.empty()) continue;
    ++s.argmax_known;
    s.argmax_flips += sequence.trainer_argmax[i] != sequence.rollout_argmax[i];
  }
  sequences_.push_back(s);
}

std::vector<std::pair<std::string, double>> Mismatch::metrics() const {
  if (sequences_.empty()) return {};
  Sums all{.log_ratio_min = sequences_.front().log_ratio_min, .log_ratio_max = sequences_.front().log_ratio_max};
  double chi2_seq = 0, seq_weight = 0, seq_weight_squared = 0;
  double ppl_train = 0, ppl_rollout = 0, log_ppl_diff = 0;
  for (const Sums& s : sequences_) {
    all.tokens += s.tokens;
    all.difference += s.difference;
    all.k3 += s.k3;
    all.abs_max = std::max(all.abs_max, s.abs_max);
    all.prob_diff += s.prob_diff;
    all.mult_error += s.mult_error;
    all.weight += s.weight;
    all.weight_squared += s.weight_squared;
    all.log_ratio_min = std::min(all.log_ratio_min, s.log_ratio_min);
    all.log_ratio_max = std::max(all.log_ratio_max, s.log_ratio_max);
    all.bitwise_equal += s.bitwise_equal;
    all.argmax_known += s.argmax_known;
    all.argmax_flips += s.argmax_flips;

    const double n = double(s.tokens);
    chi2_seq += exp_wide(2 * s.difference);
    seq_weight += exp_wide(s.difference);
    seq_weight_squared += exp_wide(2 * s.difference);
    ppl_train += exp_wide(-s.trainer / n);
    ppl_rollout += exp_wide(-s.rollout / n);
    log_ppl_diff += -s.difference / n;
  }

  const double n = double(all.tokens);
  const double sequences = double(sequences_.size());
  double abs_sum = 0;
  for (const double d : abs_differences_) abs_sum += d;
  std::vector<std::pair<std::string, double>> out{
      {"mismatch/kl", -all.difference / n + 0.0},
      {"mismatch/k3", all.k3 / n},
      {"mismatch/abs_logp_diff_mean", abs_sum / n},
      {"mismatch/abs_logp_diff_max", all.abs_max},
      {"mismatch/abs_logp_diff_p99", percentile_99(abs_differences_)},
      {"mismatch/prob_diff_mean", all.prob_diff / n},
      {"mismatch/token_mult_prob_error", all.mult_error / n},
      {"mismatch/chi2_token", all.weight_squared / n - 1},
      {"mismatch/chi2_seq", chi2_seq / sequences - 1},
      {"mismatch/ess", effective_share(all.weight, all.weight_squared, all.tokens)},
      {"mismatch/ess_seq", effective_share(seq_weight, seq_weight_squared, std::int64_t(sequences_.size()))},
      {"mismatch/ppl_train", ppl_train / sequences},
      {"mismatch/ppl_rollout", ppl_rollout / sequences},
      {"mismatch/log_ppl_diff", log_ppl_diff / sequences + 0.0},
      {"mismatch/ratio_min", exp_wide(all.log_ratio_min)},
      {"mismatch/ratio_max", exp_wide(all.log_ratio_max)},
  };
  if (all.argmax_known == all.tokens) out.emplace_back("mismatch/argmax_flip_frac", double(all.argmax_flips) / n);
  out.emplace_back("mismatch/bitwise_equal_frac", double(all.bitwise_equal) / n);
  return out;
}

}  // namespace plumb
