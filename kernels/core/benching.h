// Benchmarks only: bytes moved a second, and how that compares with merely reading as many bytes, measured beside it.
#pragma once
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "kernels/core/testing.h"
#include "kernels/matmul/peak.h"

namespace plumb::bench {

/// Runs `op`, which touches `bytes` bytes, until the state has enough; reads as many bytes before every batch.
/// The label's figure is the median of the ratios, since a shared machine changes speed by the minute.
template <class F>
void measure(benchmark::State& state, Context& ctx, std::int64_t bytes, F&& op) {
  using Clock = std::chrono::steady_clock;
  const Buffer area{std::size_t(bytes)};
  const int batch = int(std::max<std::int64_t>(1, (8 << 20) / bytes));
  std::vector<double> ratios;
  for (auto _ : state) {
    double read = 0;
    for (int i = 0; i < batch; ++i) read += 1 / measure_read_rate(ctx, area.data(), std::size_t(bytes));
    const auto start = Clock::now();
    for (int i = 0; i < batch; ++i) op();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    state.SetIterationTime(seconds / batch);
    ratios.push_back(read * double(bytes) / seconds);
  }
  std::nth_element(ratios.begin(), ratios.begin() + std::ptrdiff_t(ratios.size() / 2), ratios.end());
  state.SetBytesProcessed(state.iterations() * bytes);
  state.SetLabel(std::to_string(int(100 * ratios[ratios.size() / 2])) + " % of reading as many bytes");
}

}  // namespace plumb::bench
