#include "kernels/matmul/peak.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "kernels/core/multiply_add.h"

namespace plumb {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void read_all(const char* p, std::size_t bytes) {
  constexpr std::size_t kStep = 128;
  __m256i x[4] = {};
  for (std::size_t i = 0; i + kStep <= bytes; i += kStep)
#pragma GCC unroll 4
    for (std::size_t j = 0; j < 4; ++j) {
      x[j] = _mm256_xor_si256(x[j], _mm256_load_si256(reinterpret_cast<const __m256i*>(p + i + 32 * j)));
      asm volatile("" : "+x"(x[j]));
    }
}

}  // namespace

double measure_peak_flops(Context& ctx, double seconds) {
  constexpr double kStepsPerSecond = 2.5e8;  // of any of the loops, roughly: 12 cycles a step
  const auto steps = std::int64_t(seconds * kStepsPerSecond) + 1;
  double operations = 0;
  const auto start = Clock::now();
  ctx.pool().run([&](int t) {
    const double mine = run_multiply_adds(ctx.isa(), steps);
    if (t == 0) operations = mine;
  });
  return operations * ctx.threads() / seconds_since(start);
}

double best_peak_flops(Context& ctx) {
  constexpr int kSamples = 20;
  constexpr double kSampleSeconds = 5e-4;
  double best = 0;
  for (int sample = 0; sample < kSamples; ++sample) best = std::max(best, measure_peak_flops(ctx, kSampleSeconds));
  return best;
}

double measure_read_rate(Context& ctx, const void* data, std::size_t bytes) {
  constexpr std::size_t kLine = 128;
  const auto threads = std::size_t(ctx.threads());
  const std::size_t share = bytes / threads / kLine * kLine;
  const auto start = Clock::now();
  ctx.pool().run([&](int t) { read_all(static_cast<const char*>(data) + share * std::size_t(t), share); });
  return double(share * threads) / seconds_since(start);
}

}  // namespace plumb
