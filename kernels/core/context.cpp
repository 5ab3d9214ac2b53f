#include "kernels/core/context.h"

#include <immintrin.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/core/dtype.h"
#include "kernels/core/error.h"
#include "kernels/core/multiply_add.h"

namespace plumb {
namespace {

bool cpu_has(Isa isa) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  switch (isa) {
    case Isa::avx2: return avx2;
    case Isa::avx512: return avx512;
    case Isa::avx512bf16:
    case Isa::avx512mixed: return avx512 && __builtin_cpu_supports("avx512bf16");
  }
  return false;
}

// The exact matmul rests on vdpbf16ps being two FMAs, the odd element first. One deterministic block of hard cases
// (ties, cancellations, denormals) decides; a machine that computes anything else falls back to FMA kernels.
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"))) bool dpbf16_is_two_fmas() {
  FtzScope ftz;
  std::uint64_t state = 1;
  auto next = [&state] {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return std::uint32_t(state >> 32);
  };
  for (int trial = 0; trial < 4096; ++trial) {
    alignas(64) std::uint32_t a[16];
    alignas(64) std::uint32_t b[16];
    alignas(64) float c[16];
    alignas(64) float got[16];
    for (int i = 0; i < 16; ++i) {
      // exponents near each other so that the order of the two additions shows
      auto half = [&] { return (next() & 0x807Fu) | ((0x7Du + (next() & 3u)) << 7); };
      a[i] = half() | half() << 16;
      b[i] = half() | half() << 16;
      if (trial % 8 == 7) a[i] &= 0x807F807Fu;  // BF16 denormals
      const std::uint32_t bits = (next() & 0x807FFFFFu) | ((0x7Du + (next() & 3u)) << 23);
      std::memcpy(&c[i], &bits, 4);
    }
    const __m512 r = _mm512_dpbf16_ps(_mm512_load_ps(c), (__m512bh)_mm512_load_si512(a), (__m512bh)_mm512_load_si512(b));
    _mm512_store_ps(got, r);
    for (int i = 0; i < 16; ++i) {
      const float a0 = to_float(BF16{std::uint16_t(a[i])});
      const float a1 = to_float(BF16{std::uint16_t(a[i] >> 16)});
      const float b0 = to_float(BF16{std::uint16_t(b[i])});
      const float b1 = to_float(BF16{std::uint16_t(b[i] >> 16)});
      const float want = __builtin_fmaf(a0, b0, __builtin_fmaf(a1, b1, c[i]));
      if (std::memcmp(&want, &got[i], 4) != 0) return false;
    }
  }
  return true;
}

}  // namespace

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::avx512bf16: return "avx512bf16";
    case Isa::avx512mixed: return "avx512mixed";
  }
  return "?";
}

bool machine_has(Isa isa) {
  if (!cpu_has(isa)) return false;
  if (isa != Isa::avx512bf16 && isa != Isa::avx512mixed) return true;
  static const bool exact = dpbf16_is_two_fmas();
  return exact;
}

std::vector<Isa> machine_isas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::avx512mixed})
    if (machine_has(isa)) isas.push_back(isa);
  return isas;
}

Isa best_isa() {
  if (machine_has(Isa::avx512bf16)) return fma_beats_dpbf16() ? Isa::avx512mixed : Isa::avx512bf16;
  for (Isa isa : {Isa::avx512, Isa::avx2})
    if (machine_has(isa)) return isa;
  throw Error("this processor has no AVX2 with FMA, which Plumb needs");
}

void Scratch::Free::operator()(void* p) const { std::free(p); }

void* Scratch::get(std::size_t bytes) {
  if (bytes > size_) {
    constexpr std::size_t kPage = 4096;
    size_ = (bytes + kPage - 1) / kPage * kPage;
    data_.reset();
    data_.reset(std::aligned_alloc(kPage, size_));
    if (data_ == nullptr) throw std::bad_alloc();
  }
  return data_.get();
}

Context::Context(int threads, Isa isa) : pool_(threads), isa_(isa), scratch_(std::size_t(pool_.size()) * std::size_t(ScratchSlot::count)) {
  require(machine_has(isa), "execution.isa: this machine has no such instruction set");
}

}  // namespace plumb
