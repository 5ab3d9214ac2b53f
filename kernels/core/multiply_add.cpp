#include "kernels/core/multiply_add.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>

// g++ 12 warns inside its own avx512fintrin.h.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

namespace plumb {
namespace {

// Independent chains, enough to cover the latency of the instruction. Each function returns the operations of one step.
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

__attribute__((target("avx512f"))) double run_dpbf16(std::int64_t steps) {
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

/// Operations a second of one short run; the caller takes the best of several, which a busy moment cannot raise.
double rate(Isa isa) {
  constexpr std::int64_t kSteps = 4000;  // about 20 us
  const auto start = std::chrono::steady_clock::now();
  const double operations = run_multiply_adds(isa, kSteps);
  return operations / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool time_fma_against_dpbf16() {
  // FMA kernels also widen BF16 to FP32: they must be clearly faster.
  constexpr double kClearly = 1.2;
  constexpr int kRounds = 20;
  double fma = 0;
  double dpbf16 = 0;
  for (int round = 0; round < kRounds; ++round) {
    fma = std::max(fma, rate(Isa::avx512));
    dpbf16 = std::max(dpbf16, rate(Isa::avx512bf16));
  }
  return fma > kClearly * dpbf16;
}

}  // namespace

double run_multiply_adds(Isa isa, std::int64_t steps) {
  switch (isa) {
    case Isa::avx2: return run_avx2(steps) * double(steps);
    case Isa::avx512:
    case Isa::avx512mixed: return run_avx512(steps) * double(steps);
    case Isa::avx512bf16: return run_dpbf16(steps) * double(steps);
  }
  return 0;
}

bool fma_beats_dpbf16() {
  static const bool faster = time_fma_against_dpbf16();
  return faster;
}

}  // namespace plumb
