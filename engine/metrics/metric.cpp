#include "engine/metrics/metric.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/core/error.h"

namespace plumb {

double Metric::value() const {
  if (reduction != MetricReduction::mean) return sum;
  return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / count;
}

void Metric::merge(const Metric& other) {
  require(reduction == other.reduction, "internal: metrics of different reductions were merged");
  switch (reduction) {
    case MetricReduction::mean:
    case MetricReduction::sum: sum += other.sum; break;
    case MetricReduction::max: sum = std::isnan(sum) || sum >= other.sum ? sum : other.sum; break;
    case MetricReduction::min: sum = std::isnan(sum) || sum <= other.sum ? sum : other.sum; break;
    case MetricReduction::last: sum = other.sum; break;
  }
  count += other.count;
}

void MetricSet::add(const std::string& name, const Metric& metric) {
  const auto it = std::find_if(all_.begin(), all_.end(), [&](const auto& entry) { return entry.first == name; });
  if (it == all_.end()) {
    all_.emplace_back(name, metric);
  } else {
    it->second.merge(metric);
  }
}

void MetricSet::merge(const MetricSet& other) {
  for (const auto& [name, metric] : other.all_) add(name, metric);
}

const Metric* MetricSet::find(const std::string& name) const {
  const auto it = std::find_if(all_.begin(), all_.end(), [&](const auto& entry) { return entry.first == name; });
  return it == all_.end() ? nullptr : &it->second;
}

double MetricSet::value(const std::string& name) const {
  const Metric* metric = find(name);
  return metric == nullptr ? std::numeric_limits<double>::quiet_NaN() : metric->value();
}

}  // namespace plumb
