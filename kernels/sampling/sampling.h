// One token from one row of logits: greedy, or temperature with top-k and top-p, by inverting the cumulative distribution at
// one uniform number. The result depends on the row, the parameters and the number only.
//   z = R?(l / T), p ~ exp(z - max);  top-k: the k most likely;  top-p: of those the fewest whose mass reaches top_p, the
//   crossing token included; equal probabilities are kept in index order.
//   token: the first, in index order over the kept ones, at which the running mass exceeds u * (kept mass). The running mass
//   is double over blocks of 1024 tokens (16 lanes in FP32 each), within the crossing block double token by token. A token of
//   probability 0 is never drawn.
#pragma once
#include <cstdint>

#include "kernels/logprob/logprob.h"

namespace plumb {

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy (the lowest index of the maximum)
  int top_k = 0;             // 0: off
  float top_p = 1.0f;        // 1: off; keeps the smallest set whose mass reaches top_p, the crossing token included
};

struct SampledToken {
  std::int32_t token = 0;
  std::int32_t argmax = 0;  // lowest index of the largest scaled logit, as logprob_forward reports it
  float logprob = 0;        // raw: under the full distribution at this temperature (1 when greedy)
  float logprob_kept = 0;   // renormalised over the kept set; equal to logprob when nothing is cut
};

/// logits: one row as the LM head stored it. work: scratch of at least 2 * vocab floats. u in [0, 1). A row with a NaN gives
/// argmax's token with a NaN log-prob. Throws Error for an empty vocabulary or parameters out of range.
SampledToken sample_token(const void* logits, DType dtype, std::int64_t vocab, const SamplingParams&, float u, Sites, float* work);

}  // namespace plumb
