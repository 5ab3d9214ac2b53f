// How much each player contributes to the worth of all, from the worth of coalitions: alone, left out, and by Shapley value
// (the mean over all orders of what a player adds when its turn comes; Shapley 1953). Exact for few players, else by sampled orders,
// each with its reverse (Castro et al. 2009; Mitchell et al. 2022), with a 95 % interval. The values sum to the total either way.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

namespace plumb {

struct Worth {
  double value = 0;
  std::uint64_t bits = 0;  // equal when the outputs behind the value are equal bit for bit
};
/// The worth of the players whose bits are set. Asked for the same coalition more than once: the answer must be kept.
using CoalitionWorth = std::function<Worth(std::uint64_t coalition)>;

struct PlayerShare {
  double alone = 0;     // worth of the player alone
  double left_out = 0;  // what is missing when only this one is left out
  double shapley = 0;
  double low = 0;  // of the 95 % interval; equal to shapley when exact
  double high = 0;
  bool inert = true;  // in no coalition that was looked at did it change a bit
};

struct Attribution {
  double total = 0;  // worth of all players together
  std::vector<PlayerShare> players;
  bool exact = true;
  int orders = 0;               // sampled ones, reverses included
  std::int64_t coalitions = 0;  // different ones that were looked at
};

struct AttributionOptions {
  int exact_players = 6;  // up to so many 2^n coalitions are enumerated
  int orders = 8;         // sampled orders beyond; rounded up to pairs, at least two pairs
  std::uint64_t seed = 0;
};

/// 97.5 % quantile of Student's t, within 2 % of it from 2 degrees of freedom on.
double t_quantile(int degrees);

/// players: 0..63; the empty coalition must be worth 0. The result is a function of the worths and the options, bit for bit.
Attribution attribute(int players, const CoalitionWorth&, const AttributionOptions&);
/// How many coalitions it will ask for at most.
std::int64_t coalitions_needed(int players, const AttributionOptions&);

}  // namespace plumb
