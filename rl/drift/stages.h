// Where the bits of two numerics part: per token the first op whose output differs, and how the difference grows with depth.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model/trace.h"
#include "rl/drift/evaluator.h"

namespace plumb {

/// Of one token: the first output that differs in the row which predicts it.
struct FirstDifference {
  enum class Kind : std::uint8_t {
    none,     // not even the log-prob differs
    stage,    // the output of `stage` in `layer`
    context,  // attention in `layer`, through keys and values of earlier tokens alone
    head,     // the hidden state is equal, the log-prob is not
  };
  Kind kind = Kind::none;
  int layer = 0;
  Stage stage = Stage::embedding;
};

struct StageComparison {
  std::vector<FirstDifference> tokens;  // of each response token
  /// (layers + 1): ||stream_a - stream_b|| / ||stream_b|| over the scored rows, after the embedding and after each block.
  std::vector<double> growth;
};

/// Runs both forwards over the evaluator's sequences.
StageComparison compare_stages(Evaluator&, const Numerics& a, const Numerics& b);

/// The sites and facts which differ between a and b that the stage itself depends on: "rope.products b > f", joined by ", ".
std::string suspects(const Numerics& a, const Numerics& b, const ModelConfig&, const FirstDifference&);

}  // namespace plumb
