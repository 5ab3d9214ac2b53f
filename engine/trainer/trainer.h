// The update side: packed micro-batches, log-probs, gradients whose bits do not depend on the split, AdamW on FP32 masters.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/config/sections.h"
#include "kernels/core/context.h"
#include "kernels/numerics/numerics.h"
#include "model/qwen.h"
#include "model/weights.h"

namespace plumb {

/// One sequence to learn from or to score. The trained positions are tokens[prompt_len..]; each is predicted by its predecessor.
struct TrainSequence {
  std::span<const std::int32_t> tokens;  // (T)
  std::int64_t prompt_len = 1;           // >= 1
  std::int64_t response_len() const { return std::int64_t(tokens.size()) - prompt_len; }
};

/// Per response token of a run of sequences, concatenated in order.
struct TokenScores {
  std::vector<float> logprob;
  std::vector<float> entropy;
  std::vector<std::int32_t> argmax;
};

/// Called once per micro-batch with the scores of sequences [first, first + count): fills dL/dlogprob and dL/dentropy of
/// every response token (same order). Denominators are the caller's business and global over the step.
using TokenObjective =
    std::function<void(std::size_t first, std::size_t count, std::span<const float> logprob, std::span<const float> entropy,
                       std::span<const std::int32_t> argmax, std::span<float> d_logprob, std::span<float> d_entropy)>;

struct StepResult {
  double grad_norm = 0;  // before clipping
  double clip_factor = 1;
  double lr = 0;
  bool skipped = false;     // non-finite gradient: nothing was changed
  double update_ratio = 0;  // ||update|| / ||weights|| over all parameters
};

/// Everything of a trainer that changes; one visit serves save and load.
struct TrainerState {
  Buffer master;                     // (flat_size) f32
  Buffer m;                          // (flat_size) f32
  Buffer v;                          // (flat_size) f32
  std::int64_t optimizer_steps = 0;  // taken, skipped ones excluded: the t of AdamW
  std::int64_t schedule_steps = 0;   // attempted: the position in the schedule
  std::int64_t nonfinite_in_a_row = 0;
};

/// lr at a 0-based step: during warm-up lr*(step+1)/warmup_steps, then the schedule. Reference values: algorithms.md section 8.
double learning_rate(const OptimizerConfig&, std::int64_t step);

class Trainer {
 public:
  /// max_sequence: longest sequence in tokens. Throws UsageError for impossible settings. Allocates everything here.
  Trainer(const ModelConfig&, const Numerics&, const ExecutionConfig&, const OptimizerConfig&, std::int64_t max_sequence);
  ~Trainer();

  const ModelConfig& model_config() const;
  const ParameterList& parameters() const;
  const Numerics& numerics() const;
  Weights& weights();
  TrainerState& state();
  /// After state() was written (initialisation, load): recomputes the weights' compute copy.
  void refresh_weights(Context&);
  /// Fresh moments and step counts, new optimizer settings (between phases of a run).
  void reset_optimizer(const OptimizerConfig&);

  /// Forward only, with `weights` (this trainer's own, or a reference model's of the same shape).
  TokenScores score(Context&, const Weights& weights, std::span<const TrainSequence>, float temperature);
  /// Forward and backward over all sequences, in micro-batches of consecutive sequences; adds to the gradients.
  void accumulate(Context&, std::span<const TrainSequence>, float temperature, const TokenObjective&);
  /// Applies the accumulated gradients (clip, AdamW, weights' copy) and clears them. Throws Error after too many
  /// non-finite gradients in a row.
  StepResult step(Context&);
  /// FP32 gradients as accumulated and finished (flat_size); for `score --gradients` and tests.
  const float* gradients(Context&);
  void clear_gradients();

  std::size_t memory_bytes() const;
  static std::size_t memory_bytes(const ModelConfig&, const Numerics&, const ExecutionConfig&, const OptimizerConfig&,
                                  std::int64_t max_sequence);

 private:
  struct State;
  std::unique_ptr<State> impl_;
};

}  // namespace plumb
