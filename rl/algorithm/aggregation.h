// How token losses become one number. Every rule is a weight per sequence: loss = sum_s w_s sum_t l_st over valid tokens.
//   token-mean          w = 1 / (valid tokens of the step)                         (DAPO, arXiv 2503.14476)
//   seq-mean-token-sum  w = 1 / (sequences)
//   seq-mean-token-mean w = 1 / (sequences * valid tokens of this one)             (GRPO's paper)
//   constant            w = 1 / (sequences * constant_length)                      (Dr.GRPO, arXiv 2503.20783)
// The denominators are those of the whole optimizer step and known before its first micro-batch: splitting a batch cannot
// change the gradient. A sequence without valid tokens does not count as a sequence.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "rl/run_config.h"

namespace plumb {

/// valid_tokens: of each sequence of the optimizer step. A weight is 0 where there are none. constant_length > 0 for `constant`.
std::vector<double> aggregation_weights(Aggregation, std::span<const std::int64_t> valid_tokens, std::int64_t constant_length);

}  // namespace plumb
