// A run in progress: all its parts, built once, and the phases that every algorithm shares (evaluate, save, stop).
#pragma once
#include <memory>
#include <optional>

#include "rl/loop/evaluate.h"
#include "rl/loop/peak_meter.h"
#include "rl/loop/run_inputs.h"
#include "rl/loop/run_output.h"
#include "rl/loop/session.h"
#include "rl/loop/train.h"

namespace plumb {

class TrainingRun {
 public:
  /// Builds everything that the configuration asks for and starts it: from the model's parameters, or from a checkpoint.
  TrainingRun(std::unique_ptr<RunInputs>, const TrainOptions&);

  /// Before step `number` computes anything: what numerics.schedule says of it. Sides that change are built anew; nothing else does.
  void begin_step(std::int64_t number);
  /// Held-out evaluation into `metrics` when this step (0: before the first) is one for it. An interruption waits for its end,
  /// so that the line of this step is whole.
  void evaluate_if_due(std::int64_t step, MetricSet& metrics);
  /// The line of step 0, before the first update.
  void evaluate_start();
  /// After the last step, unless that one was evaluated: only a message, since a longer run has no such figures.
  void evaluate_end();
  /// Saves when this step is one for it, or the last.
  void save_if_due(std::int64_t step, const MetricSet& metrics);
  /// The checkpoint of an interruption.
  void save_interrupted();
  /// Adds what every update logs, and a message when the step was skipped.
  void log_update(std::int64_t step, const StepResult&);
  /// After an update: what the sampler reads follows the trainer.
  void refresh_rollout_weights() { rollout_weights_->refresh(*ctx); }
  /// FLOPs of a forward over `rows` tokens whose head sees `head_rows` of them, attention left out.
  double forward_flops(double rows, double head_rows) const;
  /// time/tokens_per_s of `tokens` and, once the peak is known, time/peak_percent of `flops` over the seconds of the step.
  void log_speed(MetricSet&, double seconds, double tokens, double flops);

  const std::unique_ptr<RunInputs> inputs;
  const RunConfig& config;  // that of the inputs
  NumericsSetup numerics;
  std::unique_ptr<Context> ctx;
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<Sampler> sampler;      // null when nothing is sampled
  std::unique_ptr<Reference> reference;  // null without KL
  RunOutput output;
  RunState state;

  /// Resumed where nothing is left to do.
  bool finished() const { return state.steps > 0 && state.steps >= config.run.steps; }
  const Weights& rollout_weights() const { return rollout_weights_->get(); }
  bool warm_start_left() const {
    return config.run.algorithm != Algorithm::sft && !state.warm_start_done && state.warm_start_steps < config.warm_start.steps;
  }

 private:
  bool evaluation_due(std::int64_t step) const;
  void start();
  bool resume(bool fresh_optimizer);
  std::unique_ptr<Sampler> new_sampler() const;
  EvalReport evaluate_now();
  void message_resumed(const std::string& checkpoint, bool fresh_optimizer);
  std::optional<double> best_metric(const MetricSet&) const;

  std::unique_ptr<RolloutWeights> rollout_weights_;
  PeakMeter peak_;
};

}  // namespace plumb
