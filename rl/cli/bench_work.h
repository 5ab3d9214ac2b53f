// What the benchmarks of `plumb bench` share: arguments, amounts of work, the time that the machine needs at least.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"
#include "model/config.h"

namespace plumb {

struct BenchArguments {
  std::string what;
  int threads = 0;
  std::string isa = "auto";
  int repeats = 7;
  std::string numerics = "fused";
  std::string json;
  std::string model;                 // folder; of `model`
  std::string config;                // name or file; of `presets`, as are the rest
  std::vector<std::string> presets;  // empty: all
  int sequences = 0;                 // 0: as many as make 256 tokens
  int tokens = 0;                    // of a sequence; 0: 256, or what the model takes
};

/// Threads and instruction set as asked for; throws UsageError when this machine lacks them.
std::unique_ptr<Context> make_context(const BenchArguments&);

/// What a piece of work needs at least: multiply-adds (times two), and memory to be read once.
struct Work {
  double flops = 0;
  ConstMat read;             // (1, elements); empty when everything stays in the caches
  double reads = 1;          // times that `read` is read
  double answer_tokens = 0;  // 0: none are made
  double prompt_tokens = 0;  // likewise
};

/// Seconds that the work takes at the peak, measured now for `calibration` seconds, and the read rate, whichever is longer.
double seconds_at_limit(Context&, const Work&, double calibration);

/// Seconds of one of `calls` calls of f.
template <class F>
double seconds_of_call(int calls, F&& f) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (int c = 0; c < calls; ++c) f();
  return std::chrono::duration<double>(Clock::now() - start).count() / calls;
}

/// The value at share q (0 to 1) of the sorted values.
double quantile(std::vector<double> values, double q);

/// Multiply-adds of the matmuls for one token, forward, times two: the parameters once, and the head's even where tied.
double forward_flops(const ModelConfig&);

std::vector<std::int32_t> random_tokens(const ModelConfig&, std::int64_t count, std::uint32_t draw);

}  // namespace plumb
