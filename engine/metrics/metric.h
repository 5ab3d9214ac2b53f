// Metric values that merge: (sum, count, reduction), so that micro-batches, sequences and ranks give one value.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace plumb {

enum class MetricReduction : std::uint8_t { mean, sum, max, min, last };

/// One metric. mean: sum / count; the others hold their value in `sum`. NaN wins in max and min: it must be seen.
struct Metric {
  double sum = 0;
  double count = 0;
  MetricReduction reduction = MetricReduction::mean;
  /// NaN for a mean of nothing.
  double value() const;
  /// Throws Error when the reductions differ.
  void merge(const Metric& other);
};

/// Named metrics in the order in which they were first added. Sums are added in the order of the calls: callers keep a
/// canonical one. Keys that start with "time/" are wall-clock: all others must be a function of the configuration.
class MetricSet {
 public:
  void mean(const std::string& name, double sum, double count) { add(name, {sum, count, MetricReduction::mean}); }
  void sum(const std::string& name, double x) { add(name, {x, 1, MetricReduction::sum}); }
  void max(const std::string& name, double x) { add(name, {x, 1, MetricReduction::max}); }
  void min(const std::string& name, double x) { add(name, {x, 1, MetricReduction::min}); }
  /// Overwrites.
  void set(const std::string& name, double x) { add(name, {x, 1, MetricReduction::last}); }
  void add(const std::string& name, const Metric&);
  void merge(const MetricSet&);

  const std::vector<std::pair<std::string, Metric>>& all() const { return all_; }
  const Metric* find(const std::string& name) const;
  /// NaN when there is none.
  double value(const std::string& name) const;
  bool empty() const { return all_.empty(); }

 private:
  std::vector<std::pair<std::string, Metric>> all_;
};

}  // namespace plumb
