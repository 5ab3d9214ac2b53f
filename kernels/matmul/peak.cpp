#include "kernels/matmul/peak.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

// g++ 12 warns inside its own avx512fintrin.h.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

namespace plumb {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Independent chains, enough to cover the latency of the instruction. Each returns the operations of one step.
constexpr int kChains = 12;
constexpr int kWideChains = 24;

double run_avx2(std::int64_t steps) {
  __m256 x[kChains];
  const __m256 zero = _mm256_setzero_ps();
#pragma GCC unroll 12
  for (auto& v : x) v = zero;
  for (std::int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (auto& v : x) asm volatile("vfmadd231ps %1,%1,%0" : "+x"(v) : "x"(zero));
  }
  return kChains * 8 * 2;
}

__attribute__((target("avx512f"))) double run_avx512(std::int64_t steps) {
  __m512 x[kWideChains];
  const __m512 zero = _mm512_setzero_ps();
#pragma GCC unroll 24
  for (auto& v : x) v = zero;
  for (std::int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 24
    for (auto& v : x) asm volatile("vfmadd231ps %1,%1,%0" : "+v"(v) : "v"(zero));
  }
  return kWideChains * 16 * 2;
}

__attribute__((target("avx512f"))) double run_avx512bf16(std::int64_t steps) {
  __m512 x[kWideChains];
  const __m512 zero = _mm512_setzero_ps();
#pragma GCC unroll 24
  for (auto& v : x) v = zero;
  for (std::int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 24
    for (auto& v : x) asm volatile("vdpbf16ps %1,%1,%0" : "+v"(v) : "v"(zero));
  }
  return kWideChains * 16 * 4;
}

double run_chains(Isa isa, std::int64_t steps) {
  switch (isa) {
    case Isa::avx2: return run_avx2(steps);
    case Isa::avx512: return run_avx512(steps);
    case Isa::avx512bf16: return run_avx512bf16(steps);
  }
  return 0;
}

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
  double per_step = 0;
  const auto start = Clock::now();
  ctx.pool().run([&](int t) {
    const double ops = run_chains(ctx.isa(), steps);
    if (t == 0) per_step = ops;
  });
  return per_step * double(steps) * ctx.threads() / seconds_since(start);
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
