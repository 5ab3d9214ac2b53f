#include "engine/metrics/peak.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace plumb {
namespace {

// Twelve independent chains hide the latency of any of these instructions. Volatile assembly: g++ would otherwise fold
// the loop or keep accumulators in memory.
constexpr int kChains = 12;

void fma_avx2(std::int64_t iterations) {
  for (std::int64_t i = 0; i < iterations; ++i) {
    asm volatile(
        "vfmadd231ps %%ymm12, %%ymm13, %%ymm0\n\tvfmadd231ps %%ymm12, %%ymm13, %%ymm1\n\t"
        "vfmadd231ps %%ymm12, %%ymm13, %%ymm2\n\tvfmadd231ps %%ymm12, %%ymm13, %%ymm3\n\t"
        "vfmadd231ps %%ymm12, %%ymm13, %%ymm4\n\tvfmadd231ps %%ymm12, %%ymm13, %%ymm5\n\t"
        "vfmadd231ps %%ymm12, %%ymm13, %%ymm6\n\tvfmadd231ps %%ymm12, %%ymm13, %%ymm7\n\t"
        "vfmadd231ps %%ymm12, %%ymm13, %%ymm8\n\tvfmadd231ps %%ymm12, %%ymm13, %%ymm9\n\t"
        "vfmadd231ps %%ymm12, %%ymm13, %%ymm10\n\tvfmadd231ps %%ymm12, %%ymm13, %%ymm11\n\t" ::
            : "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", "ymm11");
  }
}

__attribute__((target("avx512f"))) void fma_avx512(std::int64_t iterations) {
  for (std::int64_t i = 0; i < iterations; ++i) {
    asm volatile(
        "vfmadd231ps %%zmm12, %%zmm13, %%zmm0\n\tvfmadd231ps %%zmm12, %%zmm13, %%zmm1\n\t"
        "vfmadd231ps %%zmm12, %%zmm13, %%zmm2\n\tvfmadd231ps %%zmm12, %%zmm13, %%zmm3\n\t"
        "vfmadd231ps %%zmm12, %%zmm13, %%zmm4\n\tvfmadd231ps %%zmm12, %%zmm13, %%zmm5\n\t"
        "vfmadd231ps %%zmm12, %%zmm13, %%zmm6\n\tvfmadd231ps %%zmm12, %%zmm13, %%zmm7\n\t"
        "vfmadd231ps %%zmm12, %%zmm13, %%zmm8\n\tvfmadd231ps %%zmm12, %%zmm13, %%zmm9\n\t"
        "vfmadd231ps %%zmm12, %%zmm13, %%zmm10\n\tvfmadd231ps %%zmm12, %%zmm13, %%zmm11\n\t" ::
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11");
  }
}

__attribute__((target("avx512f,avx512bf16"))) void dot_avx512bf16(std::int64_t iterations) {
  for (std::int64_t i = 0; i < iterations; ++i) {
    asm volatile(
        "vdpbf16ps %%zmm12, %%zmm13, %%zmm0\n\tvdpbf16ps %%zmm12, %%zmm13, %%zmm1\n\t"
        "vdpbf16ps %%zmm12, %%zmm13, %%zmm2\n\tvdpbf16ps %%zmm12, %%zmm13, %%zmm3\n\t"
        "vdpbf16ps %%zmm12, %%zmm13, %%zmm4\n\tvdpbf16ps %%zmm12, %%zmm13, %%zmm5\n\t"
        "vdpbf16ps %%zmm12, %%zmm13, %%zmm6\n\tvdpbf16ps %%zmm12, %%zmm13, %%zmm7\n\t"
        "vdpbf16ps %%zmm12, %%zmm13, %%zmm8\n\tvdpbf16ps %%zmm12, %%zmm13, %%zmm9\n\t"
        "vdpbf16ps %%zmm12, %%zmm13, %%zmm10\n\tvdpbf16ps %%zmm12, %%zmm13, %%zmm11\n\t" ::
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11");
  }
}

void spin(Isa isa, std::int64_t iterations) {
  switch (isa) {
    case Isa::avx2: return fma_avx2(iterations);
    case Isa::avx512: return fma_avx512(iterations);
    case Isa::avx512bf16: return dot_avx512bf16(iterations);
  }
}

double flops_per_instruction(Isa isa) {
  switch (isa) {
    case Isa::avx2: return 8 * 2;
    case Isa::avx512: return 16 * 2;
    case Isa::avx512bf16: return 32 * 2;
  }
  return 0;
}

}  // namespace

double measure_peak_flops(Context& context) {
  constexpr std::int64_t kIterations = 100'000;  // about half a millisecond
  constexpr int kSamples = 20;
  double best = 0;
  for (int sample = 0; sample < kSamples; ++sample) {
    const auto start = std::chrono::steady_clock::now();
    context.pool().run([&](int) { spin(context.isa(), kIterations); });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, flops_per_instruction(context.isa()) * double(kIterations) * kChains * context.threads() / seconds);
  }
  return best;
}

}  // namespace plumb
