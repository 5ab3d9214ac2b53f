#include "rl/algorithm/advantages.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace plumb {

namespace {

using Members = std::vector<std::size_t>;

/// The answers of each group whose reward is good, by group number.
std::map<std::uint32_t, Members> good_members(std::span<const std::uint32_t> groups, std::span<const std::uint8_t> failed) {
  std::map<std::uint32_t, Members> members;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (failed.empty() || !failed[i]) members[groups[i]].push_back(i);
  }
  return members;
}

/// Mean and unbiased standard deviation of values whose order must not matter.
struct Moments {
  double mean = 0;
  double std = 0;
  bool all_equal = true;
};

Moments moments(std::vector<double> x) {
  Moments out;
  if (x.empty()) return out;
  std::sort(x.begin(), x.end());
  if (x.front() == x.back()) {
    out.mean = x.front();
    return out;
  }
  out.all_equal = false;
  double sum = 0;
  for (const double v : x) sum += v;
  out.mean = sum / double(x.size());
  double squares = 0;
  for (const double v : x) squares += (v - out.mean) * (v - out.mean);
  out.std = std::sqrt(squares / double(x.size() - 1));
  return out;
}

std::vector<double> pick(std::span<const double> x, const Members& members) {
  std::vector<double> out;
  for (const std::size_t i : members) out.push_back(x[i]);
  return out;
}

/// sqrt(sum x^2 / (n - 1)), independent of the order.
double root_mean_square(std::vector<double> x) {
  if (x.size() < 2) return 0;
  for (double& v : x) v *= v;
  std::sort(x.begin(), x.end());
  double sum = 0;
  for (const double v : x) sum += v;
  return std::sqrt(sum / double(x.size() - 1));
}

void divide(std::vector<double>& x, double by) {
  for (double& v : x) v /= by;
}

/// Returns to go, minus their mean over the group at the same position.
void centre_returns(std::vector<std::vector<double>>& returns, const Members& members) {
  std::size_t longest = 0;
  for (const std::size_t i : members) longest = std::max(longest, returns[i].size());
  for (std::size_t t = 0; t < longest; ++t) {
    std::vector<double> at;
    for (const std::size_t i : members) at.push_back(t < returns[i].size() ? returns[i][t] : 0.0);
    const double mean = moments(std::move(at)).mean;
    for (const std::size_t i : members) {
      if (t < returns[i].size()) returns[i][t] -= mean;
    }
  }
}

std::vector<double> gather(const std::vector<std::vector<double>>& x, const Members& members) {
  std::vector<double> out;
  for (const std::size_t i : members) out.insert(out.end(), x[i].begin(), x[i].end());
  return out;
}

}  // namespace

std::vector<double> group_advantages(std::span<const double> rewards, std::span<const std::uint32_t> groups,
                                     std::span<const std::uint8_t> failed, AdvantageScale scale, double std_eps) {
  const auto members = good_members(groups, failed);
  Members everyone;
  for (const auto& [group, list] : members) everyone.insert(everyone.end(), list.begin(), list.end());
  const double batch_std = scale == AdvantageScale::batch ? moments(pick(rewards, everyone)).std : 0.0;

  std::vector<double> advantages(rewards.size(), 0.0);
  for (const auto& [group, list] : members) {
    const Moments m = moments(pick(rewards, list));
    if (m.all_equal) continue;
    double divisor = 1;
    if (scale == AdvantageScale::group) divisor = m.std + std_eps;
    if (scale == AdvantageScale::batch) divisor = batch_std + std_eps;
    for (const std::size_t i : list) advantages[i] = (rewards[i] - m.mean) / divisor;
  }
  return advantages;
}

std::vector<std::vector<double>> token_advantages(const std::vector<std::vector<double>>& rewards, std::span<const std::uint32_t> groups,
                                                  std::span<const std::uint8_t> failed, AdvantageScale scale, double std_eps) {
  std::vector<std::vector<double>> advantages = rewards;
  for (std::size_t i = 0; i < rewards.size(); ++i) {
    if (!failed.empty() && failed[i]) {
      std::fill(advantages[i].begin(), advantages[i].end(), 0.0);
      continue;
    }
    for (std::size_t t = rewards[i].size(); t-- > 1;) advantages[i][t - 1] += advantages[i][t];
  }

  const auto members = good_members(groups, failed);
  Members everyone;
  for (const auto& [group, list] : members) {
    centre_returns(advantages, list);
    everyone.insert(everyone.end(), list.begin(), list.end());
    if (scale != AdvantageScale::group) continue;
    const double divisor = root_mean_square(gather(advantages, list)) + std_eps;
    for (const std::size_t i : list) divide(advantages[i], divisor);
  }
  if (scale == AdvantageScale::batch) {
    const double divisor = root_mean_square(gather(advantages, everyone)) + std_eps;
    for (const std::size_t i : everyone) divide(advantages[i], divisor);
  }
  return advantages;
}

double all_equal_fraction(std::span<const double> rewards, std::span<const std::uint32_t> groups, std::span<const std::uint8_t> failed) {
  std::int64_t equal = 0;
  std::int64_t counted = 0;
  for (const auto& [group, list] : good_members(groups, failed)) {
    if (list.size() < 2) continue;
    ++counted;
    equal += moments(pick(rewards, list)).all_equal;
  }
  return counted == 0 ? 0.0 : double(equal) / double(counted);
}

}  // namespace plumb
