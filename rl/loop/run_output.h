// What a run leaves behind: metrics, samples, messages and checkpoints.
#pragma once
#include <chrono>
#include <optional>
#include <set>
#include <string>

#include "engine/checkpoint/checkpoint.h"
#include "engine/metrics/metric.h"
#include "engine/metrics/run_log.h"
#include "rl/loop/session.h"
#include "rl/loop/train.h"
#include "rl/rollout/rollout.h"

namespace plumb {

class RunOutput {
 public:
  RunOutput(const RunConfig&, const TrainOptions&, const NumericsSetup&);

  /// What metrics and checkpoints say of both sides from now on.
  void set_numerics(const NumericsSetup&);
  void step(std::int64_t step, const MetricSet& metrics);
  void message(const std::string& text);
  /// The first `logging.samples` answers of the step, when it is one to show.
  void samples(std::int64_t step, const RolloutBatch&, const Tokenizer&);
  /// `metric`: the value of checkpoint.keep_best, when it was evaluated at this step.
  void save(std::int64_t step, RunState&, Trainer&, Reference*, const Tokenizer&, std::optional<double> metric);
  /// The newest whole checkpoint, if any; damaged newer ones are named in messages. skip: see CheckpointReader.
  std::optional<CheckpointReader> newest_checkpoint(const std::set<std::string>& skip);
  /// Drops what was logged for later steps: a run goes on behind `step`.
  void continue_after(std::int64_t step);
  /// The checkpoint of `step` is there already.
  void mark_saved(std::int64_t step) { saved_ = step; }

 private:
  const RunConfig& config_;
  std::uint64_t config_hash_;
  RunLog log_;
  CheckpointStore checkpoints_;
  std::optional<std::int64_t> saved_;  // step of the last save
};

/// Seconds between calls.
class Stopwatch {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace plumb
