// What a run writes: metrics.jsonl, TensorBoard events, samples.jsonl, log.txt, and its progress on the terminal.
//
// metrics.jsonl has one object per step: "step", "config" and "numerics" (hashes), then the metrics in their order. Numbers are
// the shortest text that reads back to the same double; NaN and infinities are the strings "NaN", "Infinity", "-Infinity".
// Wall-clock values have keys that start with "time/": without those, a resumed run's file equals a straight run's.
#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/metrics/metric.h"

namespace plumb {

struct RunLogOptions {
  std::uint64_t config_hash = 0;
  std::uint64_t rollout_numerics = 0;
  std::uint64_t update_numerics = 0;
  bool tensorboard = true;
  bool quiet = false;            // no progress on the terminal; messages still go to log.txt
  std::int64_t total_steps = 0;  // for the status line and the ETA
};

class RunLog {
 public:
  /// folder: the run folder, locked by the caller (RunFolder). Appends to what is there. Throws Error when it cannot write.
  RunLog(const std::filesystem::path& folder, const RunLogOptions&);
  ~RunLog();

  /// Drops what was logged for steps beyond `step` (and a torn last line): call before continuing a run from a checkpoint.
  void truncate_after(std::int64_t step);
  /// The hashes that lines carry from now on.
  void set_numerics(std::uint64_t rollout, std::uint64_t update);
  /// One line of metrics.jsonl, the scalars of TensorBoard, the status line. The status line shows, where present:
  /// reward/mean or the loss, mismatch/abs_logp_diff_mean, time/tokens_per_s, time/peak_percent.
  void step(std::int64_t step, const MetricSet& metrics);
  /// One line of samples.jsonl, "step" first.
  void sample(std::int64_t step, const nlohmann::ordered_json& sample);
  /// An event worth a line: log.txt (with the time) and the terminal.
  void message(const std::string& text);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace plumb
