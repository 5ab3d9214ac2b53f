// Group-relative advantages (GRPO: DeepSeekMath, arXiv 2402.03300; without the division: Dr.GRPO, arXiv 2503.20783).
//   A = (r - mean_group) / (std + std_eps),  std unbiased, of the group or of the whole batch; scale none: A = r - mean_group
// A group is a draw of a prompt, never a prompt's text. Rewards that failed leave every statistic and get 0. Where minimum and
// maximum agree the advantages are exactly 0: a sum of equal floats divided by their number need not give them back.
// Sums run over sorted values, so that the order of the samples changes no bit.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "rl/run_config.h"

namespace plumb {

/// One reward per answer; `groups` numbers the prompt draws, `failed` (may be empty) marks rewards that could not be had.
std::vector<double> group_advantages(std::span<const double> rewards, std::span<const std::uint32_t> groups,
                                     std::span<const std::uint8_t> failed, AdvantageScale scale, double std_eps);

/// The same for rewards that stand at tokens: with G_t = r_t + r_t+1 + ... (0 after the end),
///   A_t = (G_t - mean over the group of G_t) / (s + std_eps),  s^2 = sum of those centred G_t^2 / (n - 1)
/// over the n tokens of the group (scale group) or of the batch (scale batch). The baseline of a position looks at no token
/// before it that the answers do not share, so it is as unbiased as the group mean.
std::vector<std::vector<double>> token_advantages(const std::vector<std::vector<double>>& rewards, std::span<const std::uint32_t> groups,
                                                  std::span<const std::uint8_t> failed, AdvantageScale scale, double std_eps);

/// Share of the groups (with at least two rewards that did not fail) whose rewards are all equal: they teach nothing.
double all_equal_fraction(std::span<const double> rewards, std::span<const std::uint32_t> groups, std::span<const std::uint8_t> failed);

}  // namespace plumb
