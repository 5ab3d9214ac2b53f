// What one GRPO step knows of its batch, token by token, and the figures that it reports.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/metrics/metric.h"
#include "engine/trainer/scorer.h"
#include "rl/loop/policy_update.h"
#include "rl/rollout/rollout.h"

namespace plumb {

/// Per response token of all rollouts, concatenated in their order.
struct StepTokens {
  std::vector<std::size_t> first;  // (rollouts + 1) where each rollout's tokens start
  std::vector<float> advantage;
  std::vector<std::uint8_t> mask;  // 0: does not train
  std::vector<float> old_logprob;  // empty: the current ones of the first update
  std::vector<float> ref_logprob;  // empty without KL
  std::size_t count(std::size_t rollout) const { return first[rollout + 1] - first[rollout]; }
  template <class T>
  std::span<const T> of(const std::vector<T>& x, std::size_t rollout) const {
    return x.empty() ? std::span<const T>() : std::span(x).subspan(first[rollout], count(rollout));
  }
};

/// Offsets and the training mask: answers whose reward failed do not train, nor, with mask_truncated, those that were cut.
StepTokens make_step_tokens(const RolloutBatch&, const GrpoConfig&);
/// The rollouts' own advantages where they brought them; from rewards per token where the task gives those; else from totals.
void fill_advantages(const RolloutBatch&, const GrpoConfig&, StepTokens&);
/// The rollouts [first, first + count) as the update takes them.
std::vector<UpdateSequence> update_sequences(const RolloutBatch&, const StepTokens&, std::size_t first, std::size_t count);
/// Index of the first rollout of each mini-batch and the end: groups are never split. (mini_batches + 1)
std::vector<std::size_t> mini_batch_bounds(const RolloutBatch&, int mini_batches);

/// reward/..., groups/...
void report_rewards(const RolloutBatch&, MetricSet&);
/// response/..., tokens
void report_responses(const RolloutBatch&, MetricSet&);
/// actor/... of all updates of a step.
void report_updates(std::span<const UpdateResult>, const GrpoConfig&, MetricSet&);
/// mismatch/... and actor/phantom_clip_frac, of the rollouts that `scores` (the trainer's, before any update) covers.
void report_mismatch(const RolloutBatch&, const StepTokens&, const TokenScores& scores, const GrpoConfig&, MetricSet&);

}  // namespace plumb
