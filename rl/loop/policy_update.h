// One optimizer step of the policy on a mini-batch: scores, objective, gradients, AdamW. What GRPO does between its phases.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/trainer/trainer.h"
#include "rl/algorithm/objective.h"

namespace plumb {

/// One response to learn from; every span runs over its tokens.
struct UpdateSequence {
  TrainSequence tokens;
  std::span<const float> old_logprob;  // empty: the current one, for the first step after sampling
  std::span<const float> ref_logprob;  // empty when there is no KL
  std::span<const float> advantage;
  std::span<const std::uint8_t> mask;  // 0: does not train
};

struct UpdateSettings {
  ObjectiveSettings objective;
  Aggregation aggregation = Aggregation::token_mean;
  std::int64_t constant_length = 0;
  float temperature = 1;
};

struct UpdateResult {
  ObjectiveSums sums;
  StepResult step;
  bool nothing_to_learn = false;  // no valid token: weights and moments were left alone
};

/// The first half: adds the objective's gradients to the trainer's. scores: when given, those of all response tokens are appended.
ObjectiveSums policy_gradients(Context&, Trainer&, std::span<const UpdateSequence>, const UpdateSettings&, TokenScores* scores = nullptr);
/// Gradients and step.
UpdateResult policy_update(Context&, Trainer&, std::span<const UpdateSequence>, const UpdateSettings&, TokenScores* scores = nullptr);

}  // namespace plumb
