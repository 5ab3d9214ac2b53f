#include "rl/drift/attribution.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "kernels/core/rng.h"

namespace plumb {
namespace {

using Mask = std::uint64_t;

Mask bit(int player) { return Mask(1) << player; }

class Game {
 public:
  Game(int players, const CoalitionWorth& worth) : players_(players), worth_(worth) {}

  const Worth& of(Mask coalition) {
    const auto it = known_.find(coalition);
    if (it != known_.end()) return it->second;
    return known_.emplace(coalition, worth_(coalition)).first->second;
  }
  /// What the player adds to a coalition without it.
  double gain(Mask without, int player, PlayerShare& share) {
    const Worth before = of(without);
    const Worth after = of(without | bit(player));
    share.inert = share.inert && before.bits == after.bits;
    return after.value - before.value;
  }
  Mask everyone() const { return players_ == 0 ? 0 : ~Mask(0) >> (64 - players_); }
  std::int64_t size() const { return std::int64_t(known_.size()); }
  int players() const { return players_; }

 private:
  int players_;
  const CoalitionWorth& worth_;
  std::unordered_map<Mask, Worth> known_;
};

double binomial(int n, int k) {
  double x = 1;
  for (int i = 1; i <= k; ++i) x = x * (n - k + i) / i;
  return x;
}

void exact_values(Game& game, std::vector<PlayerShare>& shares) {
  const int n = game.players();
  for (int p = 0; p < n; ++p) {
    PlayerShare& share = shares[std::size_t(p)];
    for (Mask rest = 0; rest <= game.everyone(); ++rest) {
      if ((rest & bit(p)) != 0) continue;
      share.shapley += game.gain(rest, p, share) / (n * binomial(n - 1, std::popcount(rest)));
    }
    share.low = share.high = share.shapley;
  }
}

std::vector<int> random_order(int n, std::uint64_t seed, int index) {
  std::vector<int> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  const RandomKey key{.seed = seed, .purpose = Purpose::shuffle, .draw = std::uint32_t(index)};
  for (int i = n - 1; i > 0; --i) std::swap(order[std::size_t(i)], order[random_below(key, std::uint64_t(i), std::uint64_t(i) + 1)]);
  return order;
}

void add_order(Game& game, const std::vector<int>& order, std::vector<PlayerShare>& shares, std::vector<double>& gains) {
  Mask before = 0;
  for (int p : order) {
    gains[std::size_t(p)] += game.gain(before, p, shares[std::size_t(p)]) / 2;
    before |= bit(p);
  }
}

int pairs_of(const AttributionOptions& options) { return std::max(2, (options.orders + 1) / 2); }

void sampled_values(Game& game, const AttributionOptions& options, std::vector<PlayerShare>& shares) {
  const int n = game.players();
  const int pairs = pairs_of(options);
  std::vector<std::vector<double>> gains;  // (pairs, players) mean of an order and its reverse
  for (int i = 0; i < pairs; ++i) {
    std::vector<double>& g = gains.emplace_back(std::size_t(n), 0.0);
    std::vector<int> order = random_order(n, options.seed, i);
    add_order(game, order, shares, g);
    std::reverse(order.begin(), order.end());
    add_order(game, order, shares, g);
  }
  for (int p = 0; p < n; ++p) {
    PlayerShare& share = shares[std::size_t(p)];
    double mean = 0, squares = 0;
    for (const auto& g : gains) mean += g[std::size_t(p)] / pairs;
    for (const auto& g : gains) squares += (g[std::size_t(p)] - mean) * (g[std::size_t(p)] - mean);
    const double half = t_quantile(pairs - 1) * std::sqrt(squares / (pairs - 1) / pairs);
    share.shapley = mean;
    share.low = mean - half;
    share.high = mean + half;
  }
}

}  // namespace

// Cornish-Fisher around the normal's.
double t_quantile(int degrees) {
  const double z = 1.959964, v = degrees;
  if (degrees == 1) return 12.706;
  const double z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;
  return z + (z3 + z) / (4 * v) + (5 * z5 + 16 * z3 + 3 * z) / (96 * v * v) + (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * v * v * v);
}

std::int64_t coalitions_needed(int players, const AttributionOptions& options) {
  if (players <= options.exact_players) return std::int64_t(1) << players;
  return 2 + 2 * players + std::int64_t(2 * pairs_of(options)) * (players - 1);
}

Attribution attribute(int players, const CoalitionWorth& worth, const AttributionOptions& options) {
  Game game(players, worth);
  Attribution out{.players = std::vector<PlayerShare>(std::size_t(players))};
  out.total = game.of(game.everyone()).value;
  for (int p = 0; p < players; ++p) {
    PlayerShare& share = out.players[std::size_t(p)];
    share.alone = game.gain(0, p, share);
    share.left_out = game.gain(game.everyone() & ~bit(p), p, share);
  }
  out.exact = players <= options.exact_players;
  if (out.exact) {
    exact_values(game, out.players);
  } else {
    out.orders = 2 * pairs_of(options);
    sampled_values(game, options, out.players);
  }
  out.coalitions = game.size();
  return out;
}

}  // namespace plumb
