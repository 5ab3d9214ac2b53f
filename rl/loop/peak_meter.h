// The machine's peak, for the progress line: on a shared machine one probe may fall into a busy moment, so short ones are spread
// over the run, the best counts, and it counts only once a second probe has confirmed it.
#pragma once
#include <chrono>
#include <functional>

namespace plumb {

class PeakMeter {
 public:
  /// probe: one short measurement, in FLOP/s.
  explicit PeakMeter(std::function<double()> probe);

  /// Takes some probes when the last ones are `interval` ago or more. Between steps: the probe uses all threads.
  void probe_if_due(std::chrono::steady_clock::time_point now);
  /// FLOP/s; 0 while the best two probes differ by more than 5 %.
  double flops() const;

  static constexpr std::chrono::seconds interval{2};

 private:
  std::function<double()> probe_;
  std::chrono::steady_clock::time_point last_;
  bool any_ = false;
  double best_ = 0;
  double second_ = 0;
};

}  // namespace plumb
