#include "rl/algorithm/objective.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/core/rng.h"
#include "rl/algorithm/aggregation.h"

namespace plumb {
namespace {

constexpr ClipRange kClip{.low = .2, .high = .2, .dual = 3};

TEST(PolicyLoss, ReferenceNumbers) {
  EXPECT_NEAR(policy_loss(.5, 0, 1, kClip).loss, -1.2, 1e-12);
  EXPECT_NEAR(policy_loss(-.5, 0, 1, kClip).loss, -.6065307, 1e-7);
  EXPECT_NEAR(policy_loss(.5, 0, -1, kClip).loss, 1.6487213, 1e-7);
  EXPECT_NEAR(policy_loss(-.5, 0, -1, kClip).loss, .8, 1e-12);
  EXPECT_NEAR(policy_loss(2, 0, -1, kClip).loss, 3.0, 1e-12);
  EXPECT_NEAR(policy_loss(2, 0, -1, {.low = .2, .high = .2, .dual = 0}).loss, 7.3890561, 1e-7);
  EXPECT_NEAR(policy_loss(.5, 0, 1, {.low = .2, .high = .28, .dual = 3}).loss, -1.28, 1e-12);
}

TEST(PolicyLoss, ClipSides) {
  EXPECT_EQ(policy_loss(.5, 0, 1, kClip).clip, Clip::high);
  EXPECT_EQ(policy_loss(-.5, 0, 1, kClip).clip, Clip::none);
  EXPECT_EQ(policy_loss(.5, 0, -1, kClip).clip, Clip::none);
  EXPECT_EQ(policy_loss(-.5, 0, -1, kClip).clip, Clip::low);
  EXPECT_EQ(policy_loss(2, 0, -1, kClip).clip, Clip::dual);
  EXPECT_EQ(policy_loss(2, 0, 0, kClip).clip, Clip::none);
}

TEST(PolicyLoss, EqualWeightsGiveRatioOneExactly) {
  for (const double c : {-1e4, -60.0, -.1, -0.0}) {
    const PolicyTerm term = policy_loss(c, c, 2, kClip);
    EXPECT_EQ(term.loss, -2.0);
    EXPECT_EQ(term.d_logp, -2.0);
  }
}

TEST(PolicyLoss, ExtremeLogRatiosAreClampedWithZeroGradient) {
  const ClipRange no_dual{.low = .2, .high = .2, .dual = 0};
  const PolicyTerm far = policy_loss(0, -1e4, -1, no_dual);
  EXPECT_NEAR(far.loss, std::exp(20.0), 1e-3);
  EXPECT_EQ(far.d_logp, 0.0);
  EXPECT_EQ(policy_loss(-1e4, 0, 1, no_dual).d_logp, 0.0);
}

TEST(PolicyLoss, GradientIsTheFiniteDifference) {
  for (std::uint64_t i = 0; i < 400; ++i) {
    const double c = -2 + 4 * double(random_uniform({.seed = 1}, i));
    const double a = -2 + 4 * double(random_uniform({.seed = 2}, i));
    const double h = 1e-6;
    const PolicyTerm term = policy_loss(c, 0, a, kClip);
    if (policy_loss(c + h, 0, a, kClip).clip != policy_loss(c - h, 0, a, kClip).clip) continue;
    const double slope = (policy_loss(c + h, 0, a, kClip).loss - policy_loss(c - h, 0, a, kClip).loss) / (2 * h);
    EXPECT_NEAR(term.d_logp, slope, 1e-7 * (1 + std::abs(slope)));
  }
}

TEST(Kl, ReferenceNumbers) {
  EXPECT_DOUBLE_EQ(kl_estimate(KlEstimator::k1, -1, -1.5).value, .5);
  EXPECT_DOUBLE_EQ(kl_estimate(KlEstimator::k2, -1, -1.5).value, .125);
  EXPECT_NEAR(kl_estimate(KlEstimator::k3, -1, -1.5).value, .10653066, 1e-8);
  const KlTerm far = kl_estimate(KlEstimator::k3, -30, 0);
  EXPECT_EQ(far.value, 10);
  EXPECT_EQ(far.d_logp, 0);
  EXPECT_TRUE(far.clamped);
  EXPECT_EQ(kl_estimate(KlEstimator::k3, -.3, -.3).value, 0);
}

TEST(Kl, LoggedK1IsThePlainDifference) {
  const double c[] = {.5, .7, .9}, ref[] = {.4, .5, .6}, expected[] = {.1, .2, .3};
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(kl_estimate(KlEstimator::k1, c[i], ref[i]).value, expected[i], 1e-15);
}

TEST(Kl, GradientIsTheFiniteDifference) {
  for (const KlEstimator k : {KlEstimator::k1, KlEstimator::k2, KlEstimator::k3}) {
    for (double c = -2.9; c < 2; c += .37) {
      const double h = 1e-5;
      const double slope = (kl_estimate(k, c + h, -.5).value - kl_estimate(k, c - h, -.5).value) / (2 * h);
      EXPECT_NEAR(kl_estimate(k, c, -.5).d_logp, slope, 1e-8 * (1 + std::abs(slope)));
    }
  }
}

/// sum_s w_s sum_t l_st
double aggregate(Aggregation rule, const std::vector<std::vector<double>>& losses, std::int64_t constant_length = 0) {
  std::vector<std::int64_t> lengths;
  for (const auto& row : losses) lengths.push_back(std::int64_t(row.size()));
  const auto weights = aggregation_weights(rule, lengths, constant_length);
  double sum = 0;
  for (std::size_t s = 0; s < losses.size(); ++s) {
    for (const double l : losses[s]) sum += weights[s] * l;
  }
  return sum;
}

TEST(Aggregation, ReferenceNumbers) {
  for (const auto& losses : {std::vector<std::vector<double>>{{1, 2, 3}, {4}}, {{1, 2, 3}, {4}, {}}}) {
    EXPECT_DOUBLE_EQ(aggregate(Aggregation::token_mean, losses), 2.5);
    EXPECT_DOUBLE_EQ(aggregate(Aggregation::seq_mean_token_sum, losses), 5.0);
    EXPECT_DOUBLE_EQ(aggregate(Aggregation::constant, losses, 4), 1.25);
    EXPECT_DOUBLE_EQ(aggregate(Aggregation::constant, losses, 8), .625);
    EXPECT_DOUBLE_EQ(aggregate(Aggregation::seq_mean_token_mean, losses), 3.0);
  }
  EXPECT_NEAR(aggregate(Aggregation::token_mean, {std::vector<double>(100, 2.0), std::vector<double>(900, .5)}), .65, 1e-12);
  EXPECT_EQ(aggregate(Aggregation::token_mean, {{}, {}}), 0);
  EXPECT_NEAR(aggregate(Aggregation::token_mean, {{2, 2, 2}, {}}), 2, 1e-15);  // lengths [3 finished, 8 truncated and masked]
}

struct Tokens {
  std::vector<float> logprob, entropy, old_logprob, ref_logprob, advantage;
  std::vector<std::uint8_t> mask;
  explicit Tokens(std::size_t n) : logprob(n), entropy(n), old_logprob(n), ref_logprob(n), advantage(n), mask(n, 1) {
    for (std::size_t i = 0; i < n; ++i) {
      logprob[i] = -2 * random_uniform({.seed = 11}, i);
      entropy[i] = random_uniform({.seed = 12}, i);
      old_logprob[i] = -2 * random_uniform({.seed = 13}, i);
      ref_logprob[i] = -2 * random_uniform({.seed = 14}, i);
      advantage[i] = 2 * random_uniform({.seed = 15}, i) - 1;
    }
  }
  ObjectiveSequence sequence(double weight) const {
    return {.logprob = logprob,
            .entropy = entropy,
            .old_logprob = old_logprob,
            .ref_logprob = ref_logprob,
            .advantage = advantage,
            .mask = mask,
            .weight = weight};
  }
};

TEST(Objective, IsTheSumOfItsTerms) {
  const Tokens tokens(50);
  const ObjectiveSettings settings{.clip = kClip, .kl = KlEstimator::k3, .kl_coef = .02, .entropy_coef = .01};
  std::vector<float> d_logprob(50), d_entropy(50);
  const ObjectiveSums sums = policy_objective(settings, tokens.sequence(.02), d_logprob, d_entropy);
  double loss = 0;
  for (std::size_t i = 0; i < 50; ++i) {
    const PolicyTerm p = policy_loss(tokens.logprob[i], tokens.old_logprob[i], tokens.advantage[i], kClip);
    const KlTerm k = kl_estimate(KlEstimator::k3, tokens.logprob[i], tokens.ref_logprob[i]);
    loss += .02 * (p.loss + .02 * k.value - .01 * double(tokens.entropy[i]));
    EXPECT_EQ(d_logprob[i], float(.02 * (p.d_logp + .02 * k.d_logp)));
    EXPECT_EQ(d_entropy[i], float(-.02 * .01));
  }
  EXPECT_NEAR(sums.loss, loss, 1e-14);
  EXPECT_EQ(sums.tokens, 50);
}

TEST(Objective, MaskedSlotsMayHoldAnything) {
  Tokens tokens(4);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  tokens.mask = {1, 1, 0, 0};
  tokens.old_logprob[2] = nan;
  tokens.advantage[3] = nan;
  std::vector<float> d_logprob(4, 9), d_entropy(4, 9);
  const ObjectiveSums sums = policy_objective({.clip = kClip, .entropy_coef = .1}, tokens.sequence(.5), d_logprob, d_entropy);
  EXPECT_TRUE(std::isfinite(sums.loss));
  EXPECT_EQ(sums.tokens, 2);
  for (std::size_t i = 2; i < 4; ++i) {
    EXPECT_EQ(d_logprob[i], 0.0f);
    EXPECT_EQ(d_entropy[i], 0.0f);
  }
}

TEST(Objective, MaskedMeanOfLosses) {
  Tokens tokens(4);  // losses [2, 2, 0, 0], mask [1, 1, 0, 0]: 2
  tokens.mask = {1, 1, 0, 0};
  tokens.old_logprob = tokens.logprob;
  tokens.advantage = {-2, -2, 0, 0};
  std::vector<float> d_logprob(4), d_entropy(4);
  EXPECT_EQ(policy_objective({.clip = kClip}, tokens.sequence(.5), d_logprob, d_entropy).loss, 2.0);
}

TEST(Objective, KlPullsEvenWithoutAdvantages) {
  Tokens tokens(6);
  tokens.advantage.assign(6, 0.0f);
  std::vector<float> d_logprob(6), d_entropy(6);
  policy_objective({.clip = kClip, .kl = KlEstimator::k2, .kl_coef = .1}, tokens.sequence(1.0 / 6), d_logprob, d_entropy);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(d_logprob[i], .1 / 6 * (double(tokens.logprob[i]) - tokens.ref_logprob[i]), 1e-8);
    EXPECT_NE(d_logprob[i], 0.0f);
  }
}

TEST(PhantomClip, CountsWhatPrecisionAloneWouldClip) {
  const std::vector<float> trainer{-1, -1, -1, -1}, rollout{-1, -1.5f, -.5f, -1.01f}, advantage{1, 1, -1, 1};
  const std::vector<std::uint8_t> mask(4, 1);
  PhantomClip phantom;
  phantom.add(trainer, rollout, advantage, mask, kClip);
  EXPECT_EQ(phantom.fraction(), .5);
  PhantomClip none;
  none.add(trainer, trainer, advantage, mask, {.low = 1e-9, .high = 1e-9, .dual = 0});
  EXPECT_EQ(none.fraction(), 0);
}

}  // namespace
}  // namespace plumb
