// The GRPO objective over the tokens of one optimizer step, micro-batch by micro-batch:
//   sum over valid tokens of w_t * (policy_loss + kl_coef * KL(c, ref) - entropy_coef * H)
// with w from aggregation_weights. It returns dL/dlogp and dL/dentropy of every token; no objective touches a kernel.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rl/algorithm/kl.h"
#include "rl/algorithm/policy_loss.h"
#include "rl/run_config.h"

namespace plumb {

struct ObjectiveSettings {
  ClipRange clip;
  KlEstimator kl = KlEstimator::none;
  double kl_coef = 0;
  double entropy_coef = 0;
};
ObjectiveSettings objective_settings(const GrpoConfig&);

/// One response. A token whose mask is 0 is not read, its gradients are exactly 0.
struct ObjectiveSequence {
  std::span<const float> logprob;      // (n) current
  std::span<const float> entropy;      // (n)
  std::span<const float> old_logprob;  // (n)
  std::span<const float> ref_logprob;  // (n); empty when kl is none
  std::span<const float> advantage;    // (n)
  std::span<const std::uint8_t> mask;  // (n)
  double weight = 0;                   // of each valid token
};

/// What the tokens of a step add up to; sequence sums are added in canonical order.
struct ObjectiveSums {
  double loss = 0;         // the whole objective
  double policy_loss = 0;  // its first term
  double kl = 0;           // plain sum over valid tokens
  double entropy = 0;      // likewise
  double log_ratio = 0;    // of old - c
  std::int64_t tokens = 0;
  std::int64_t clipped_low = 0;
  std::int64_t clipped_high = 0;
  std::int64_t clipped_dual = 0;
  std::int64_t kl_clamped = 0;
  ObjectiveSums& operator+=(const ObjectiveSums&);
};

/// d_logprob, d_entropy: (n), overwritten.
ObjectiveSums policy_objective(const ObjectiveSettings&, const ObjectiveSequence&, std::span<float> d_logprob, std::span<float> d_entropy);

/// Share of the tokens that the clip would drop at equal weights, through the sampler's and the trainer's different roundings
/// alone: their ratio is taken between the trainer's log-prob before the update and the rollout's. 0 when nothing differs.
struct PhantomClip {
  std::int64_t tokens = 0;
  std::int64_t clipped = 0;
  void add(std::span<const float> trainer, std::span<const float> rollout, std::span<const float> advantage,
           std::span<const std::uint8_t> mask, const ClipRange&);
  double fraction() const { return tokens == 0 ? 0.0 : double(clipped) / double(tokens); }
};

}  // namespace plumb
