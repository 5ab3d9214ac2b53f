// Test only: a small random model with tokens to compare on.
#pragma once
#include "model/model_testing.h"
#include "rl/drift/evaluator.h"

namespace plumb::testing_drift {

struct SmallCase {
  explicit SmallCase(Family family, std::uint64_t seed, std::initializer_list<int> lengths = {14, 21, 2})
      : config(testing_model::small_config(family, seed % 2 == 0)),
        model(ctx, config, testing_model::lively_parameters(config, seed)),
        ids(testing_model::random_sequences(config, std::span(lengths.begin(), lengths.size()), seed)) {}
  Evaluator evaluator() {
    std::vector<TrainSequence> sequences;
    for (const auto& s : ids) sequences.push_back({.tokens = s, .prompt_len = 1});
    return Evaluator(model, sequences, 1.0f);
  }
  Context ctx{1};
  ModelConfig config;
  DriftModel model;
  std::vector<testing_model::Ids> ids;
};

}  // namespace plumb::testing_drift
