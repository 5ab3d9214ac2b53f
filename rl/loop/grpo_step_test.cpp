#include "rl/loop/grpo_step.h"

#include <gtest/gtest.h>

namespace plumb {
namespace {

Rollout rollout(std::uint32_t group, std::int64_t response, double reward, FinishReason finish = FinishReason::eos) {
  Rollout r;
  r.tokens.assign(std::size_t(2 + response), 1);
  r.prompt_len = 2;
  r.logprobs.assign(std::size_t(response), -1.0f);
  r.argmax.assign(std::size_t(response), 1);
  r.group = group;
  r.finish = finish;
  r.reward.total = reward;
  return r;
}

RolloutBatch batch_of(std::vector<Rollout> rollouts) {
  RolloutBatch batch;
  batch.groups = rollouts.back().group + 1;
  batch.rollouts = std::move(rollouts);
  return batch;
}

TEST(GrpoStep, AdvantagesReachEveryToken) {
  const RolloutBatch batch = batch_of({rollout(0, 2, 1), rollout(0, 1, 0), rollout(1, 3, 4), rollout(1, 1, 4)});
  StepTokens tokens = make_step_tokens(batch, {});
  fill_advantages(batch, {.scale = AdvantageScale::none}, tokens);
  EXPECT_EQ(tokens.advantage, (std::vector<float>{.5f, .5f, -.5f, 0, 0, 0, 0}));
}

TEST(GrpoStep, AdvantagesThatTheRolloutsBroughtWin) {
  RolloutBatch batch = batch_of({rollout(0, 2, 1), rollout(0, 1, 0)});
  batch.rollouts[0].advantages = {.25, -2};
  batch.rollouts[1].advantages = {3};
  StepTokens tokens = make_step_tokens(batch, {});
  fill_advantages(batch, {}, tokens);
  EXPECT_EQ(tokens.advantage, (std::vector<float>{.25f, -2, 3}));
}

TEST(GrpoStep, TokenRewardsGiveReturnsToGo) {
  RolloutBatch batch = batch_of({rollout(0, 2, 1.5), rollout(0, 2, 0)});
  batch.rollouts[0].reward.per_token = {1, .5};
  batch.rollouts[1].reward.per_token = {0, 0};
  StepTokens tokens = make_step_tokens(batch, {});
  fill_advantages(batch, {.scale = AdvantageScale::none}, tokens);
  EXPECT_EQ(tokens.advantage, (std::vector<float>{.75f, .25f, -.75f, -.25f}));
}

TEST(GrpoStep, FailedAndCutAnswersDoNotTrain) {
  RolloutBatch batch = batch_of({rollout(0, 3, 1), rollout(0, 8, 0, FinishReason::length), rollout(0, 2, 0)});
  batch.rollouts[2].reward.status = RewardStatus::error;
  const StepTokens all = make_step_tokens(batch, {});
  EXPECT_EQ(std::count(all.mask.begin(), all.mask.end(), 1), 11);
  const StepTokens masked = make_step_tokens(batch, {.mask_truncated = true});
  EXPECT_EQ(std::count(masked.mask.begin(), masked.mask.end(), 1), 3);
  MetricSet metrics;
  report_rewards(batch, metrics);
  EXPECT_EQ(metrics.value("reward/mean"), .5);
  EXPECT_NEAR(metrics.value("reward/error_frac"), 1.0 / 3, 1e-15);
  report_responses(batch, metrics);
  EXPECT_EQ(metrics.value("response/length_max"), 8);
  EXPECT_EQ(metrics.value("tokens"), 13);
}

TEST(GrpoStep, MiniBatchesNeverSplitAGroup) {
  const RolloutBatch batch =
      batch_of({rollout(0, 1, 0), rollout(0, 1, 0), rollout(1, 1, 0), rollout(2, 1, 0), rollout(2, 1, 0), rollout(2, 1, 0)});
  EXPECT_EQ(mini_batch_bounds(batch, 1), (std::vector<std::size_t>{0, 6}));
  EXPECT_EQ(mini_batch_bounds(batch, 3), (std::vector<std::size_t>{0, 2, 3, 6}));
  EXPECT_EQ(mini_batch_bounds(batch, 2), (std::vector<std::size_t>{0, 2, 6}));
}

TEST(GrpoStep, MismatchCoversWhatTheFirstForwardSaw) {
  const RolloutBatch batch = batch_of({rollout(0, 2, 1), rollout(0, 1, 0), rollout(1, 3, 4)});
  StepTokens tokens = make_step_tokens(batch, {});
  fill_advantages(batch, {.scale = AdvantageScale::none}, tokens);
  const TokenScores first_two{.logprob = {-1, -1, -1.5f}, .entropy = {0, 0, 0}, .argmax = {1, 1, 2}};
  MetricSet metrics;
  report_mismatch(batch, tokens, first_two, {}, metrics);
  EXPECT_NEAR(metrics.value("mismatch/bitwise_equal_frac"), 2.0 / 3, 1e-15);
  EXPECT_NEAR(metrics.value("mismatch/argmax_flip_frac"), 1.0 / 3, 1e-15);
  EXPECT_NEAR(metrics.value("mismatch/kl"), .5 / 3, 1e-12);
  EXPECT_NEAR(metrics.value("actor/phantom_clip_frac"), 1.0 / 3, 1e-15);
}

}  // namespace
}  // namespace plumb
