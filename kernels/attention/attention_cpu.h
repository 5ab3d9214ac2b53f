// What attention.cpp validates and the CPU computes. Internal to this folder.
#pragma once
#include <algorithm>

#include "kernels/attention/attention.h"

namespace plumb::attention_detail {

void forward_cpu(Context&, const AttentionForward&, const Numerics&, Sites);
void backward_cpu(Context&, const AttentionBackward&, const Numerics&, Sites, BackwardMode);

/// 1/sqrt(head_dim) as PyTorch forms it: in double, then FP32.
float attention_scale(int head_dim);

/// Runs work(unit, thread) for every unit that for_each(f) enumerates by calling f(unit, cost): contiguous runs of about
/// equal cost per thread. Units are independent, so which thread runs one changes no bit.
template <class ForEach, class Work>
void split_by_cost(Context& ctx, double serial_below, ForEach&& for_each, Work&& work) {
  double total = 0;
  for_each([&](const auto&, double cost) { total += cost; });
  const std::int64_t parts = total < serial_below ? 1 : ctx.threads();
  ctx.parallel_for(parts, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    double before = 0;
    for_each([&](const auto& unit, double cost) {
      const auto owner = std::min<std::int64_t>(parts - 1, std::int64_t(before * double(parts) / total));
      before += cost;
      if (owner >= begin && owner < end) work(unit, thread);
    });
  });
}

}  // namespace plumb::attention_detail
