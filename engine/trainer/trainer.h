// The update side: packed micro-batches, log-probs, gradients whose bits do not depend on the split, AdamW on FP32 masters.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/config/sections.h"
#include "engine/trainer/loss_scaling.h"
#include "engine/trainer/packing.h"
#include "engine/trainer/scorer.h"
#include "kernels/core/buffer.h"
#include "kernels/core/context.h"
#include "kernels/numerics/numerics.h"
#include "model/qwen.h"
#include "model/weights.h"

namespace plumb {

struct StepResult {
  double grad_norm = 0;  // before clipping, of the unscaled gradient
  double clip_factor = 1;
  double lr = 0;
  bool skipped = false;              // the gradient's norm is no finite FP32 number: nothing was changed
  std::string nonfinite;             // then: the first parameter of which that is true
  double update_ratio = 0;           // ||update|| / ||weights|| over all parameters
  std::optional<double> loss_scale;  // of this step; none without loss scaling
};

/// Everything of a trainer that changes; one visit serves save and load.
struct TrainerState {
  Buffer master;                     // (flat_size) f32
  Buffer m;                          // (flat_size) f32
  Buffer v;                          // (flat_size) f32
  std::int64_t optimizer_steps = 0;  // taken, skipped ones excluded: the t of AdamW
  std::int64_t schedule_steps = 0;   // attempted: the position in the schedule
  std::int64_t nonfinite_in_a_row = 0;
  LossScale loss_scale;
};

template <class V>
void visit_state(V& v, TrainerState& s) {
  const auto flat = [&](const char* name, Buffer& buffer) {
    v.buffer(name, buffer, std::int64_t(buffer.size() / sizeof(float)), DType::f32);
  };
  flat("master/parameters", s.master);
  flat("optimizer/m", s.m);
  flat("optimizer/v", s.v);
  v.value("optimizer_steps", s.optimizer_steps);
  v.value("schedule_steps", s.schedule_steps);
  v.value("nonfinite_in_a_row", s.nonfinite_in_a_row);
  visit_state(v, s.loss_scale);
}

/// lr at a 0-based step: during warm-up lr*(step+1)/warmup_steps, then the schedule as a function of
/// (step - warmup_steps) / (total_steps - warmup_steps), final_ratio * lr from total_steps on.
double learning_rate(const OptimizerConfig&, std::int64_t step);

class Trainer {
 public:
  /// max_sequence: longest sequence in tokens. Throws UsageError for impossible settings. Allocates everything here.
  Trainer(const ModelConfig&, const Numerics&, const ExecutionConfig&, const OptimizerConfig&, std::int64_t max_sequence);
  ~Trainer();

  const ModelConfig& model_config() const;
  const ParameterList& parameters() const;
  const Numerics& numerics() const;
  /// From now on, between steps: other sites, the same compute dtype. Weights, moments and counts stay.
  void set_numerics(const Numerics&);
  Weights& weights();
  TrainerState& state();
  /// After state() was written (initialisation, load): recomputes the weights' compute copy.
  void refresh_weights(Context&);
  /// Fresh moments, step counts and loss scale, new optimizer settings (between phases of a run). Throws UsageError when
  /// precision.weights is another one.
  void reset_optimizer(const OptimizerConfig&);

  /// Forward only, with `weights` (this trainer's own, or a reference model's of the same shape). See Scorer::score.
  TokenScores score(Context&, const Weights& weights, std::span<const TrainSequence>, float temperature, Mat logits = {});
  /// Forward and backward over all sequences, in micro-batches of consecutive sequences; adds to the gradients.
  void accumulate(Context&, std::span<const TrainSequence>, float temperature, const TokenObjective&);
  /// Applies the accumulated gradients (unscale, clip, AdamW, weights' copy) and clears them. A gradient that is not finite leaves
  /// weights, moments and optimizer_steps as they are; throws Error after max_nonfinite_steps such steps in a row, not counting those
  /// that let a dynamic loss scale fall to 1.
  StepResult step(Context&);
  /// FP32 gradients as accumulated, finished and unscaled (flat_size); for `score --gradients` and tests. Nothing can be accumulated
  /// between this and the next step() or clear_gradients().
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
