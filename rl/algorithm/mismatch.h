// How far the sampler's log-probs g are from the trainer's t for the same tokens at the same weights; d = t - g, w = exp(d).
//   mismatch/kl mean(g - t); k3 mean(exp d - d - 1); abs_logp_diff_{mean,max,p99}; prob_diff_mean mean|exp t - exp g|;
//   token_mult_prob_error mean exp|d|; chi2_token mean(exp 2d) - 1; chi2_seq mean over sequences of exp(2 sum d), - 1;
//   ess 1 / mean((w / mean w)^2) over tokens; ess_seq the same over sequences with exp(sum d);
//   ppl_{train,rollout}, log_ppl_diff (train - rollout): means over sequences of per-sequence token means;
//   ratio_{min,max} of w; argmax_flip_frac; bitwise_equal_frac
// (Sources: Schulman's k3; verl's rollout correction metrics; NeMo-RL's token_mult_prob_error.) Every figure but the two
// perplexities has its identity value exactly when nothing differs: 0, or 1 for ratios, ess, token_mult_prob_error and
// bitwise_equal_frac. Nothing is clamped. p99 is the smallest |d| that at least 99 % of the tokens do not exceed.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace plumb {

/// One response's tokens, trained ones only.
struct MismatchSequence {
  std::span<const float> trainer;                // (n) before the update
  std::span<const float> rollout;                // (n)
  std::span<const std::int32_t> trainer_argmax;  // (n); empty: not known
  std::span<const std::int32_t> rollout_argmax;  // (n); empty: not known (recorded rollouts)
};

/// Partial sums per sequence, merged in the order in which they were added: any split into micro-batches gives the same bits.
class Mismatch {
 public:
  void add(const MismatchSequence&);
  /// In the order above; empty without tokens. argmax_flip_frac is left out where an argmax is not known.
  std::vector<std::pair<std::string, double>> metrics() const;
  bool empty() const { return sequences_.empty(); }

 private:
  struct Sums {
    std::int64_t tokens = 0;
    double difference = 0;  // sum d
    double k3 = 0;
    double abs_max = 0;
    double prob_diff = 0;
    double mult_error = 0;
    double weight = 0;  // sum w
    double weight_squared = 0;
    double log_ratio_min = 0;
    double log_ratio_max = 0;
    double trainer = 0;  // sum t
    double rollout = 0;  // sum g
    std::int64_t bitwise_equal = 0;
    std::int64_t argmax_known = 0;
    std::int64_t argmax_flips = 0;
  };
  std::vector<Sums> sequences_;
  std::vector<double> abs_differences_;
};

}  // namespace plumb
