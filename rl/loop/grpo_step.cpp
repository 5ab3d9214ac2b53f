#include "rl/loop/grpo_step.h"

#include <algorithm>
#include <cmath>

#include "rl/algorithm/advantages.h"
#include "rl/algorithm/mismatch.h"

namespace plumb {

namespace {

struct GroupRewards {
  std::vector<double> totals;
  std::vector<std::uint32_t> groups;
  std::vector<std::uint8_t> failed;
};

GroupRewards rewards_of(const RolloutBatch& batch) {
  GroupRewards out;
  for (const Rollout& r : batch.rollouts) {
    out.totals.push_back(r.reward.total);
    out.groups.push_back(r.group);
    out.failed.push_back(r.reward.status == RewardStatus::error);
  }
  return out;
}

bool brought_advantages(const RolloutBatch& batch) {
  return std::any_of(batch.rollouts.begin(), batch.rollouts.end(), [](const Rollout& r) { return !r.advantages.empty(); });
}

bool rewards_tokens(const RolloutBatch& batch) {
  return std::any_of(batch.rollouts.begin(), batch.rollouts.end(), [](const Rollout& r) { return !r.reward.per_token.empty(); });
}

std::vector<std::vector<double>> token_rewards(const RolloutBatch& batch) {
  std::vector<std::vector<double>> out;
  for (const Rollout& r : batch.rollouts) {
    out.push_back(r.reward.per_token);
    out.back().resize(std::size_t(r.response_len()), 0.0);
  }
  return out;
}

}  // namespace

StepTokens make_step_tokens(const RolloutBatch& batch, const GrpoConfig& config) {
  StepTokens tokens;
  tokens.first.push_back(0);
  for (const Rollout& r : batch.rollouts) {
    const bool trains = r.reward.status == RewardStatus::ok && !(config.mask_truncated && r.finish == FinishReason::length);
    tokens.mask.insert(tokens.mask.end(), std::size_t(r.response_len()), trains);
    tokens.first.push_back(tokens.mask.size());
  }
  return tokens;
}

void fill_advantages(const RolloutBatch& batch, const GrpoConfig& config, StepTokens& tokens) {
  tokens.advantage.assign(tokens.mask.size(), 0.0f);
  const auto fill = [&](std::size_t i, const auto& value_at) {
    for (std::size_t t = 0; t < tokens.count(i); ++t) tokens.advantage[tokens.first[i] + t] = float(value_at(t));
  };
  const GroupRewards r = rewards_of(batch);
  if (brought_advantages(batch)) {
    for (std::size_t i = 0; i < batch.rollouts.size(); ++i) {
      if (!batch.rollouts[i].advantages.empty()) fill(i, [&](std::size_t t) { return batch.rollouts[i].advantages[t]; });
    }
  } else if (rewards_tokens(batch)) {
    const auto advantages = token_advantages(token_rewards(batch), r.groups, r.failed, config.scale, config.std_eps);
    for (std::size_t i = 0; i < advantages.size(); ++i) fill(i, [&](std::size_t t) { return advantages[i][t]; });
  } else {
    const auto advantages = group_advantages(r.totals, r.groups, r.failed, config.scale, config.std_eps);
    for (std::size_t i = 0; i < advantages.size(); ++i) fill(i, [&](std::size_t) { return advantages[i]; });
  }
}

std::vector<UpdateSequence> update_sequences(const RolloutBatch& batch, const StepTokens& tokens, std::size_t first, std::size_t count) {
  std::vector<UpdateSequence> out;
  for (std::size_t i = first; i < first + count; ++i) {
    out.push_back({.tokens = batch.rollouts[i].sequence(),
                   .old_logprob = tokens.of(tokens.old_logprob, i),
                   .ref_logprob = tokens.of(tokens.ref_logprob, i),
                   .advantage = tokens.of(tokens.advantage, i),
                   .mask = tokens.of(tokens.mask, i)});
  }
  return out;
}

std::vector<std::size_t> mini_batch_bounds(const RolloutBatch& batch, int mini_batches) {
  std::vector<std::size_t> bounds{0};
  for (int m = 1; m <= mini_batches; ++m) {
    const std::uint32_t group_end = std::uint32_t(std::uint64_t(batch.groups) * std::uint64_t(m) / std::uint64_t(mini_batches));
    std::size_t at = bounds.back();
    while (at < batch.rollouts.size() && batch.rollouts[at].group < group_end) ++at;
    bounds.push_back(at);
  }
  return bounds;
}

void report_rewards(const RolloutBatch& batch, MetricSet& metrics) {
  if (brought_advantages(batch)) return;
  const GroupRewards r = rewards_of(batch);
  double sum = 0, n = 0, errors = 0;
  for (std::size_t i = 0; i < r.totals.size(); ++i) {
    errors += r.failed[i];
    if (r.failed[i]) continue;
    sum += r.totals[i];
    n += 1;
  }
  double squares = 0;
  for (std::size_t i = 0; i < r.totals.size(); ++i) {
    if (!r.failed[i]) squares += (r.totals[i] - sum / n) * (r.totals[i] - sum / n);
  }
  metrics.mean("reward/mean", sum, n);
  metrics.set("reward/std", n > 1 ? std::sqrt(squares / (n - 1)) : 0.0);
  metrics.mean("reward/error_frac", errors, double(r.totals.size()));
  metrics.set("groups/all_equal_frac", all_equal_fraction(r.totals, r.groups, r.failed));
}

void report_responses(const RolloutBatch& batch, MetricSet& metrics) {
  double truncated = 0;
  std::int64_t longest = 0;
  for (const Rollout& r : batch.rollouts) {
    truncated += r.finish == FinishReason::length;
    longest = std::max(longest, r.response_len());
  }
  const double n = double(batch.rollouts.size());
  metrics.mean("response/length_mean", double(batch.response_tokens()), n);
  metrics.max("response/length_max", double(longest));
  metrics.mean("response/truncated_frac", truncated, n);
  metrics.sum("tokens", double(batch.response_tokens()));
}

void report_updates(std::span<const UpdateResult> updates, const GrpoConfig& config, MetricSet& metrics) {
  ObjectiveSums all;
  double loss = 0, policy_loss = 0, grad_norm = 0, update_ratio = 0, steps = 0, skipped = 0;
  for (const UpdateResult& u : updates) {
    all += u.sums;
    if (u.nothing_to_learn) continue;
    loss += u.sums.loss;
    policy_loss += u.sums.policy_loss;
    grad_norm += u.step.grad_norm;
    update_ratio += u.step.update_ratio;
    steps += 1;
    skipped += u.step.skipped;
  }
  const double tokens = double(all.tokens);
  if (steps == 0) return;  // nothing could be learned from: there is no figure to report
  metrics.mean("actor/loss", loss, steps);
  metrics.mean("actor/policy_loss", policy_loss, steps);
  metrics.mean("actor/clip_frac_low", double(all.clipped_low), tokens);
  metrics.mean("actor/clip_frac_high", double(all.clipped_high), tokens);
  metrics.mean("actor/clip_frac_dual", double(all.clipped_dual), tokens);
  metrics.mean("actor/grad_norm", grad_norm, steps);
  metrics.set("actor/lr", updates.back().step.lr);
  if (updates.back().step.loss_scale) metrics.set("actor/loss_scale", *updates.back().step.loss_scale);
  metrics.mean("actor/update_ratio", update_ratio, steps);
  metrics.mean("actor/skipped_frac", skipped, steps);
  metrics.mean("actor/entropy", all.entropy, tokens);
  metrics.mean("actor/log_ratio", -all.log_ratio, tokens);
  if (config.kl == KlEstimator::none) return;
  metrics.mean("actor/kl", all.kl, tokens);
  metrics.mean("actor/kl_clamped_frac", double(all.kl_clamped), tokens);
}

void report_mismatch(const RolloutBatch& batch, const StepTokens& tokens, const TokenScores& scores, const GrpoConfig& config,
                     MetricSet& metrics) {
  Mismatch mismatch;
  PhantomClip phantom;
  const ClipRange clip = objective_settings(config).clip;
  for (std::size_t i = 0; i < batch.rollouts.size() && tokens.first[i + 1] <= scores.logprob.size(); ++i) {
    const Rollout& r = batch.rollouts[i];
    const auto trainer = tokens.of(scores.logprob, i);
    mismatch.add({.trainer = trainer, .rollout = r.logprobs, .trainer_argmax = tokens.of(scores.argmax, i), .rollout_argmax = r.argmax});
    phantom.add(trainer, r.logprobs, tokens.of(tokens.advantage, i), tokens.of(tokens.mask, i), clip);
  }
  for (const auto& [name, value] : mismatch.metrics()) metrics.set(name, value);
  metrics.mean("actor/phantom_clip_frac", double(phantom.clipped), double(phantom.tokens));
}

}  // namespace plumb
