#include "rl/cli/bench_work.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/rng.h"
#include "kernels/matmul/peak.h"
#include "rl/loop/session.h"

namespace plumb {

std::unique_ptr<Context> make_context(const BenchArguments& a) {
  ExecutionConfig execution{.threads = a.threads};
  for (const auto& [isa, name] : enum_names(IsaChoice{}))
    if (name == a.isa) execution.isa = isa;
  return make_context(execution);
}

double seconds_at_limit(Context& ctx, const Work& work, double calibration) {
  const double compute = work.flops / measure_peak_flops(ctx, calibration);
  if (!work.read) return compute;
  const double bytes = double(work.read.cols) * double(bytes_of(work.read.dtype));
  return std::max(compute, work.reads * bytes / measure_read_rate(ctx, work.read.data, std::size_t(bytes)));
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[std::size_t(std::lround(q * double(values.size() - 1)))];
}

double forward_flops(const ModelConfig& c) {
  double weights = double(c.vocab_size) * double(c.hidden_size);
  const ParameterList list(c);
  for (const Parameter& p : list.all()) {
    if (p.layer >= 0 && p.rows > 1) weights += double(p.size());
  }
  return 2 * weights;
}

std::vector<std::int32_t> random_tokens(const ModelConfig& c, std::int64_t count, std::uint32_t draw) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < count; ++i)
    ids.push_back(std::int32_t(random_below({.draw = draw}, std::uint64_t(i), std::uint64_t(c.vocab_size))));
  return ids;
}

}  // namespace plumb
