// What a run shows while it works: one status line that redraws itself on a terminal, plain lines elsewhere.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "engine/metrics/metric.h"

namespace plumb {

/// A terminal that shows colour: not when NO_COLOR is set or TERM is dumb.
bool has_colours(int fd);

/// "1h02m", "3m20s", "45s".
std::string format_duration(double seconds);

/// "step 12/100  reward 0.523  mismatch 0  1234 tok/s  45% of peak  ETA 1m20s": what is in the metrics, no more.
/// Steps below 0 are those of a warm start. seconds_per_step <= 0: no ETA.
std::string status_text(std::int64_t step, std::int64_t total, const MetricSet& metrics, double seconds_per_step);

class Progress {
 public:
  /// Writes to the descriptor. A terminal gets colour unless NO_COLOR is set or TERM is dumb.
  Progress(int fd, bool quiet, std::int64_t total_steps);
  ~Progress();

  void step(std::int64_t step, const MetricSet& metrics);
  void message(const std::string& text);

 private:
  void put(const std::string& text) const;

  int fd_;
  bool quiet_;
  bool terminal_;
  bool colour_;
  bool line_open_ = false;  // a status line stands there without its newline
  std::int64_t total_;
  std::chrono::steady_clock::time_point last_;
  double seconds_per_step_ = 0;  // exponential mean
};

}  // namespace plumb
