// Benchmarks only: percent of a calibration measured around every sample, because shared machines change speed by the minute.
#pragma once
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/rng.h"

namespace plumb::bench {

/// Runs f repeatedly between two calibrations (units of work a second); the counter is the median of rate / calibration in
/// percent. About `sample_work` units a sample.
template <class Calibrate, class F>
void sample(benchmark::State& state, double work, double sample_work, const char* counter, Calibrate&& calibrate, F&& f) {
  using Clock = std::chrono::steady_clock;
  const int repeats = std::max(1, int(sample_work / work));
  std::vector<double> percent;
  f();
  for (auto _ : state) {
    const double before = calibrate();
    const auto start = Clock::now();
    for (int r = 0; r < repeats; ++r) f();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count() / repeats;
    const double after = calibrate();
    state.SetIterationTime(seconds);
    percent.push_back(100 * work / seconds / ((before + after) / 2));
  }
  std::nth_element(percent.begin(), percent.begin() + std::ptrdiff_t(percent.size() / 2), percent.end());
  state.counters[counter] = percent[percent.size() / 2];
}

/// A dense matrix of values from [-1/2, 1/2) that repeat after 2^20.
struct Filled {
  Buffer memory;
  Mat mat;
  Filled(std::int64_t rows, std::int64_t cols, DType dtype)
      : memory(std::size_t(rows * cols) * bytes_of(dtype) + 64), mat(make_mat(memory.data(), rows, cols, dtype)) {
    constexpr std::int64_t kPeriod = 1 << 20;
    std::vector<float> values;
    for (std::int64_t i = 0; i < std::min(kPeriod, rows * cols); ++i)
      values.push_back(random_uniform({.seed = 5}, std::uint64_t(i)) - 0.5f);
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      const float x = values[std::size_t(i % kPeriod)];
      if (dtype == DType::f32) {
        static_cast<float*>(mat.data)[i] = x;
      } else {
        static_cast<BF16*>(mat.data)[i] = to_bf16(x);
      }
    }
  }
};

inline void add(const std::string& name, auto&& f) {
  benchmark::RegisterBenchmark(name.c_str(), std::forward<decltype(f)>(f))->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(9);
}

}  // namespace plumb::bench
