// Benchmarks only: percent of a limit measured around every sample, because shared machines change speed by the minute.
#pragma once
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/rng.h"
#include "kernels/core/testing.h"
#include "kernels/matmul/peak.h"

namespace plumb::bench {

inline double quantile(std::vector<double> v, double q) {
  std::sort(v.begin(), v.end());
  return v[std::min(v.size() - 1, std::size_t(q * double(v.size())))];
}

/// Seconds that f takes.
template <class F>
double seconds_of(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Runs f repeatedly between two calibrations (units of work a second); the counters are rate / calibration in percent: the
/// median, and the 90th percentile, which on a busy machine is nearer to what the code can do. About `sample_work` units a sample.
template <class Calibrate, class F>
void sample(benchmark::State& state, double work, double sample_work, const char* counter, Calibrate&& calibrate, F&& f) {
  const int repeats = std::max(1, int(sample_work / work));
  std::vector<double> percent;
  f();
  for (auto _ : state) {
    const double before = calibrate();
    const double seconds = seconds_of([&] {
                             for (int r = 0; r < repeats; ++r) f();
                           }) /
                           repeats;
    const double after = calibrate();
    state.SetIterationTime(seconds);
    percent.push_back(100 * work / seconds / ((before + after) / 2));
  }
  state.counters[counter] = quantile(percent, 0.5);
  state.counters[std::string(counter) + "_best"] = quantile(percent, 0.9);
}

/// For what moves memory: runs `op`, which touches `bytes` bytes, and reads as many bytes before every batch.
template <class F>
void measure(benchmark::State& state, Context& ctx, std::int64_t bytes, F&& op) {
  const Buffer area{std::size_t(bytes)};
  const int batch = int(std::max<std::int64_t>(1, (8 << 20) / bytes));
  std::vector<double> percent;
  for (auto _ : state) {
    double read = 0;
    for (int i = 0; i < batch; ++i) read += double(bytes) / measure_read_rate(ctx, area.data(), std::size_t(bytes));
    const double seconds = seconds_of([&] {
      for (int i = 0; i < batch; ++i) op();
    });
    state.SetIterationTime(seconds / batch);
    percent.push_back(100 * read / seconds);
  }
  state.SetBytesProcessed(state.iterations() * bytes);
  state.SetLabel(std::to_string(int(quantile(percent, 0.5))) + " % of reading as many bytes");
}

/// A dense matrix of values from [-1/2, 1/2) that repeat after 2^20.
struct Filled {
  Buffer memory;
  Mat mat;
  Filled(std::int64_t rows, std::int64_t cols, DType dtype)
      : memory(std::size_t(rows * cols) * bytes_of(dtype) + 64), mat(make_mat(memory.data(), rows, cols, dtype)) {
    constexpr std::int64_t kPeriod = 1 << 20;
    const std::int64_t count = rows * cols;
    const Mat flat = make_mat(memory.data(), 1, count, dtype);
    for (std::int64_t i = 0; i < std::min(count, kPeriod); ++i) test::set(flat, 0, i, random_uniform({.seed = 5}, std::uint64_t(i)) - 0.5f);
    const auto size = std::int64_t(bytes_of(dtype));
    auto* p = static_cast<char*>(memory.data());
    for (std::int64_t i = kPeriod; i < count; i += kPeriod) std::copy_n(p, std::min(kPeriod, count - i) * size, p + i * size);
  }
};

inline void add(const std::string& name, auto&& f) {
  benchmark::RegisterBenchmark(name.c_str(), std::forward<decltype(f)>(f))->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(9);
}

}  // namespace plumb::bench
