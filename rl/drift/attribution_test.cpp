#include "rl/drift/attribution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "kernels/core/rng.h"

namespace plumb {
namespace {

/// A game with interactions: a random worth for every coalition.
CoalitionWorth random_game(std::uint64_t seed) {
  return [seed](std::uint64_t coalition) {
    if (coalition == 0) return Worth{};
    return Worth{.value = random_normal({.seed = seed}, coalition), .bits = coalition};
  };
}

double sum_of(const Attribution& a) {
  double sum = 0;
  for (const PlayerShare& s : a.players) sum += s.shapley;
  return sum;
}

/// By the definition: every order of the players.
std::vector<double> by_all_orders(int n, const CoalitionWorth& worth) {
  std::vector<int> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::vector<double> out(static_cast<std::size_t>(n));
  int orders = 0;
  do {
    std::uint64_t before = 0;
    for (int p : order) {
      const std::uint64_t after = before | std::uint64_t(1) << p;
      out[std::size_t(p)] += worth(after).value - worth(before).value;
      before = after;
    }
    ++orders;
  } while (std::next_permutation(order.begin(), order.end()));
  for (double& x : out) x /= orders;
  return out;
}

TEST(Attribution, ExactIsTheMeanOverAllOrdersAndSumsToTheTotal) {
  for (int n = 0; n <= 6; ++n) {
    const auto game = random_game(std::uint64_t(n) + 1);
    const Attribution a = attribute(n, game, {});
    const std::vector<double> want = by_all_orders(n, game);
    EXPECT_TRUE(a.exact);
    EXPECT_EQ(a.coalitions, 1 << n);
    EXPECT_NEAR(sum_of(a), a.total, 1e-12);
    for (int p = 0; p < n; ++p) {
      const PlayerShare& s = a.players[std::size_t(p)];
      EXPECT_NEAR(s.shapley, want[std::size_t(p)], 1e-12);
      EXPECT_EQ(s.low, s.shapley);
      const std::uint64_t all = (1u << n) - 1;
      EXPECT_EQ(s.alone, game(1u << p).value);
      EXPECT_EQ(s.left_out, game(all).value - game(all & ~(std::uint64_t(1) << p)).value);
      EXPECT_FALSE(s.inert);
    }
  }
}

TEST(Attribution, SampledSumsToTheTotalAndItsIntervalHoldsTheTruth) {
  const int n = 6;
  int held = 0, players = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const auto game = random_game(seed);
    const Attribution exact = attribute(n, game, {});
    const Attribution sampled = attribute(n, game, {.exact_players = 0, .orders = 24, .seed = seed});
    EXPECT_FALSE(sampled.exact);
    EXPECT_NEAR(sum_of(sampled), exact.total, 1e-12);
    for (int p = 0; p < n; ++p) {
      ++players;
      held += sampled.players[std::size_t(p)].low <= exact.players[std::size_t(p)].shapley &&
              exact.players[std::size_t(p)].shapley <= sampled.players[std::size_t(p)].high;
    }
  }
  // 240 intervals of 95 %: 228 expected, s.d. 3.4; the seeds are fixed, so this is no matter of luck at run time.
  EXPECT_GE(held, 215) << players;
}

TEST(Attribution, IsReproducibleBitForBitAndFollowsTheSeed) {
  const auto game = random_game(7);
  const AttributionOptions options{.exact_players = 0, .orders = 8, .seed = 3};
  const Attribution a = attribute(9, game, options), b = attribute(9, game, options);
  const Attribution c = attribute(9, game, {.exact_players = 0, .orders = 8, .seed = 4});
  bool differs = false;
  for (std::size_t p = 0; p < 9; ++p) {
    EXPECT_EQ(std::bit_cast<std::uint64_t>(a.players[p].shapley), std::bit_cast<std::uint64_t>(b.players[p].shapley));
    EXPECT_EQ(std::bit_cast<std::uint64_t>(a.players[p].low), std::bit_cast<std::uint64_t>(b.players[p].low));
    differs |= a.players[p].shapley != c.players[p].shapley;
  }
  EXPECT_TRUE(differs);
}

TEST(Attribution, AnAdditiveGameHasNoInterval) {
  const auto game = [](std::uint64_t coalition) {
    double x = 0;
    for (int p = 0; p < 10; ++p) x += (coalition >> p & 1u) != 0 ? p : 0;
    return Worth{.value = x, .bits = coalition & ~std::uint64_t(1)};  // player 0 changes no bit
  };
  const Attribution a = attribute(10, game, {.orders = 4});
  for (std::size_t p = 0; p < 10; ++p) {
    EXPECT_EQ(a.players[p].shapley, double(p));
    EXPECT_EQ(a.players[p].low, a.players[p].high);
    EXPECT_EQ(a.players[p].inert, p == 0);
  }
  EXPECT_LE(a.coalitions, coalitions_needed(10, {.orders = 4}));
}

}  // namespace
}  // namespace plumb
