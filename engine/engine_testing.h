// Test only: small models with lively weights, trainers of them, random sequences.
#pragma once
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/trainer/trainer.h"
#include "kernels/core/rng.h"
#include "model/model_testing.h"

namespace plumb::testing_engine {

using Ids = std::vector<std::int32_t>;

using testing_model::lively_parameters;

/// The model room's, smaller still: a trainer's tests take many steps.
inline ModelConfig small_config(Family family, bool tied = true) {
  ModelConfig c = testing_model::small_config(family, tied);
  c.vocab_size = 61;
  c.layers = 2;
  return c;
}

constexpr Family kFamilies[] = {Family::qwen3, Family::qwen2, Family::llama};

inline OptimizerConfig fast_optimizer() { return {.lr = 1e-2, .weight_decay = 0.01}; }

inline std::unique_ptr<Trainer> make_trainer(Context& ctx, const ModelConfig& c, const Numerics& numerics,
                                             const ExecutionConfig& execution = {}, const OptimizerConfig& optimizer = fast_optimizer(),
                                             std::int64_t max_sequence = 40) {
  auto trainer = std::make_unique<Trainer>(c, numerics, execution, optimizer, max_sequence);
  trainer->state().master = lively_parameters(c, 5);
  trainer->refresh_weights(ctx);
  return trainer;
}

inline Ids random_ids(const ModelConfig& c, std::int64_t length, std::uint64_t seed) {
  Ids ids(static_cast<std::size_t>(length));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = std::int32_t(random_below({.seed = seed}, i, std::uint64_t(c.vocab_size)));
  return ids;
}

/// Token ids with prompt lengths, and views of them as a trainer wants them.
struct Sequences {
  std::vector<Ids> tokens;
  std::vector<std::int64_t> prompt_lens;
  std::vector<TrainSequence> views() const {
    std::vector<TrainSequence> out;
    for (std::size_t i = 0; i < tokens.size(); ++i) out.push_back({.tokens = tokens[i], .prompt_len = prompt_lens[i]});
    return out;
  }
};

/// Lengths and prompt lengths odd and even, a sequence without response among them.
inline Sequences mixed_sequences(const ModelConfig& c) {
  const std::int64_t lengths[][2] = {{9, 1}, {14, 4}, {7, 7}, {21, 8}, {2, 1}, {16, 5}, {33, 20}, {10, 9}};
  Sequences out;
  for (const auto& [length, prompt_len] : lengths) {
    out.tokens.push_back(random_ids(c, length, 100 + out.tokens.size()));
    out.prompt_lens.push_back(prompt_len);
  }
  return out;
}

/// A loss with both gradients: sum over response tokens j of the step of w_j * (logprob_j + 0.1 * entropy_j), w_j fixed.
/// Counts the response tokens of the sequences before the micro-batch itself.
inline TokenObjective weighted_objective(const std::vector<TrainSequence>& sequences) {
  return [sequences](std::size_t first, std::size_t, std::span<const float>, std::span<const float>, std::span<const std::int32_t>,
                     std::span<float> d_logprob, std::span<float> d_entropy) {
    std::uint64_t j = 0;
    for (std::size_t i = 0; i < first; ++i) j += std::uint64_t(sequences[i].response_len());
    for (std::size_t i = 0; i < d_logprob.size(); ++i, ++j) {
      d_logprob[i] = float(random_normal({.seed = 9}, j));
      d_entropy[i] = 0.1f * d_logprob[i];
    }
  };
}

inline std::string bytes_of_buffer(const Buffer& b) {
  std::string out(b.size(), '\0');
  b.read(out.data(), 0, b.size());
  return out;
}

inline std::string bytes_of_floats(const float* x, std::int64_t n) {
  return {reinterpret_cast<const char*>(x), std::size_t(n) * sizeof(float)};
}
inline std::string bytes_of_floats(const std::vector<float>& x) { return bytes_of_floats(x.data(), std::int64_t(x.size())); }

/// Everything a step leaves behind, for comparison bit by bit.
inline std::string state_bytes(Trainer& trainer) {
  const TrainerState& s = trainer.state();
  const auto weights = std::size_t(trainer.parameters().flat_size()) * plumb::bytes_of(trainer.weights().dtype());
  return bytes_of_buffer(s.master) + bytes_of_buffer(s.m) + bytes_of_buffer(s.v) +
         std::string(static_cast<const char*>(trainer.weights().flat()), weights);
}

}  // namespace plumb::testing_engine
