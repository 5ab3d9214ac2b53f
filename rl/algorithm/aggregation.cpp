#include "rl/algorithm/aggregation.h"

namespace plumb {

std::vector<double> aggregation_weights(Aggregation rule, std::span<const std::int64_t> valid_tokens, std::int64_t constant_length) {
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  for (const std::int64_t n : valid_tokens) {
    tokens += n;
    sequences += n > 0;
  }
  std::vector<double> weights(valid_tokens.size(), 0.0);
  for (std::size_t s = 0; s < weights.size(); ++s) {
    if (valid_tokens[s] == 0) continue;
    switch (rule) {
      case Aggregation::token_mean: weights[s] = 1.0 / double(tokens); break;
      case Aggregation::seq_mean_token_sum: weights[s] = 1.0 / double(sequences); break;
      case Aggregation::seq_mean_token_mean: weights[s] = 1.0 / (double(sequences) * double(valid_tokens[s])); break;
      case Aggregation::constant: weights[s] = 1.0 / (double(sequences) * double(constant_length)); break;
    }
  }
  return weights;
}

}  // namespace plumb
