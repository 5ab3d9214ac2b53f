#include "rl/algorithm/advantages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/core/rng.h"
#include "rl/algorithm/pass_at_k.h"

namespace plumb {
namespace {

using Doubles = std::vector<double>;
using Groups = std::vector<std::uint32_t>;

Doubles one_group(const Doubles& rewards, AdvantageScale scale, double eps = 1e-6) {
  return group_advantages(rewards, Groups(rewards.size(), 0), {}, scale, eps);
}

void expect_near(const Doubles& actual, const Doubles& expected, double tolerance = 1e-7) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], tolerance) << i;
}

TEST(Advantages, ReferenceNumbers) {
  expect_near(one_group({1, 0, 0, 1}, AdvantageScale::group), {.8660239, -.8660239, -.8660239, .8660239});
  expect_near(one_group({1, 0, 0, 1}, AdvantageScale::none), {.5, -.5, -.5, .5});
  expect_near(one_group({1, 0, 0, 0}, AdvantageScale::group), {1.499997, -.499999, -.499999, -.499999}, 1e-6);
  const Doubles rest = one_group({0, .95, .95, .95, .95, .95, .95, .95}, AdvantageScale::none);
  EXPECT_NEAR(rest[0], -.83125, 1e-12);
}

TEST(Advantages, ScaleOfGroupAndBatch) {
  const Doubles rewards{0, 1, 0, 10};
  const Groups groups{0, 0, 1, 1};
  expect_near(group_advantages(rewards, groups, {}, AdvantageScale::group, 1e-6), {-.7071058, .7071058, -.7071067, .7071067});
  expect_near(group_advantages(rewards, groups, {}, AdvantageScale::batch, 1e-6), {-.1029597, .1029597, -1.0295969, 1.0295969}, 3e-7);
}

TEST(Advantages, EqualRewardsGiveExactlyZero) {
  for (const AdvantageScale scale : {AdvantageScale::group, AdvantageScale::batch, AdvantageScale::none}) {
    for (const double a : one_group(Doubles(7, .95), scale)) EXPECT_EQ(a, 0.0);
  }
  EXPECT_EQ(all_equal_fraction(Doubles{.95, .95, 0, 1}, Groups{0, 0, 1, 1}, {}), .5);
}

TEST(Advantages, GroupsAreDrawsAndDoNotMix) {
  const Doubles rewards{1, 0, 0, 0};
  const Doubles a = group_advantages(rewards, Groups{0, 0, 1, 1}, {}, AdvantageScale::group, 1e-6);
  expect_near(a, {.7071058, -.7071058, 0, 0});
  EXPECT_EQ(a[2], 0.0);
  EXPECT_EQ(a[3], 0.0);
}

TEST(Advantages, OrderOfSamplesChangesNoBit) {
  const RandomKey key{.seed = 5};
  const std::size_t n = 40;
  Doubles rewards(n);
  Groups groups(n);
  for (std::size_t i = 0; i < n; ++i) {
    rewards[i] = random_uniform(key, i) * 3.7;
    groups[i] = std::uint32_t(i / 8);
  }
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = n; i > 1; --i) std::swap(order[i - 1], order[random_below(key, 1000 + i, i)]);
  Doubles shuffled(n);
  Groups shuffled_groups(n);
  for (std::size_t i = 0; i < n; ++i) {
    shuffled[i] = rewards[order[i]];
    shuffled_groups[i] = groups[order[i]];
  }
  for (const AdvantageScale scale : {AdvantageScale::group, AdvantageScale::batch, AdvantageScale::none}) {
    const Doubles straight = group_advantages(rewards, groups, {}, scale, 1e-6);
    const Doubles mixed = group_advantages(shuffled, shuffled_groups, {}, scale, 1e-6);
    for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(mixed[i], straight[order[i]]);
  }
}

TEST(Advantages, FailedRewardsLeaveTheStatistics) {
  const std::vector<std::uint8_t> failed{0, 1, 0, 0, 1, 0};
  const Doubles a = group_advantages(Doubles{1, 123, 0, 0, -7, 1}, Groups(6, 0), failed, AdvantageScale::group, 1e-6);
  expect_near(a, {.8660239, 0, -.8660239, -.8660239, 0, .8660239});
  const Doubles lonely = group_advantages(Doubles{1, 5}, Groups(2, 0), std::vector<std::uint8_t>{0, 1}, AdvantageScale::group, 1e-6);
  expect_near(lonely, {0, 0});
}

TEST(TokenAdvantages, OutcomeAtTheEndEqualsTheGroupAdvantage) {
  const std::vector<Doubles> rewards{{0, 0, 1}, {0, 0, 0}, {0, 0, 0}, {0, 0, 1}};
  const auto a = token_advantages(rewards, Groups(4, 0), {}, AdvantageScale::none, 0);
  for (std::size_t i = 0; i < 4; ++i) expect_near(a[i], Doubles(3, i == 0 || i == 3 ? .5 : -.5));
}

TEST(TokenAdvantages, ReturnsToGoAgainstThePositionsMean) {
  // G = {1.5, .5}, {1}, {0, 0}; position means: 2.5/3, .5/3 (an ended answer has nothing to go).
  const std::vector<Doubles> rewards{{1, .5}, {1}, {0, 0}};
  const auto a = token_advantages(rewards, Groups(3, 0), {}, AdvantageScale::none, 0);
  expect_near(a[0], {1.5 - 2.5 / 3, .5 - .5 / 3}, 1e-12);
  expect_near(a[1], {1 - 2.5 / 3}, 1e-12);
  expect_near(a[2], {-2.5 / 3, -.5 / 3}, 1e-12);
  const double divisor =
      std::sqrt((.6666667 * .6666667 + .3333333 * .3333333 + .1666667 * .1666667 + .8333333 * .8333333 + .1666667 * .1666667) / 4);
  const auto scaled = token_advantages(rewards, Groups(3, 0), {}, AdvantageScale::group, 0);
  EXPECT_NEAR(scaled[0][0], a[0][0] / divisor, 1e-6);
  const auto batch = token_advantages(rewards, Groups(3, 0), {}, AdvantageScale::batch, 0);
  EXPECT_EQ(batch[2][1], scaled[2][1]);
}

TEST(TokenAdvantages, EqualAnswersGiveExactlyZero) {
  const std::vector<Doubles> rewards(3, Doubles{.1, .2, .3});
  for (const auto& row : token_advantages(rewards, Groups(3, 0), {}, AdvantageScale::group, 1e-6)) {
    for (const double a : row) EXPECT_EQ(a, 0.0);
  }
}

TEST(PassAtK, ReferenceNumbers) {
  EXPECT_DOUBLE_EQ(pass_at_k(4, 1, 1), .25);
  EXPECT_DOUBLE_EQ(pass_at_k(4, 1, 2), .5);
  EXPECT_DOUBLE_EQ(pass_at_k(4, 1, 3), .75);
  EXPECT_DOUBLE_EQ(pass_at_k(4, 1, 4), 1.0);
  EXPECT_NEAR(pass_at_k(10, 3, 5), .91666667, 1e-8);
  EXPECT_EQ(pass_at_k(8, 0, 8), 0.0);
}

}  // namespace
}  // namespace plumb
