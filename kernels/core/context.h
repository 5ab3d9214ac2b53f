// What every op is handed besides its arguments: threads, instruction set and scratch memory.
// All of it is Execution: none of it may change a bit of any result.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/core/thread_pool.h"

namespace plumb {

/// Instruction sets with kernels of their own. Results are equal bit for bit on all of them.
/// avx512mixed: products of many rows by AVX-512 FMA, those of few rows by vdpbf16ps, which reads weights with less work: for machines
/// whose vdpbf16ps does fewer multiply-adds a second than their FMA.
enum class Isa : std::uint8_t { avx2, avx512, avx512bf16, avx512mixed };
const char* name_of(Isa isa);
/// True when this machine can run `isa`. avx512bf16 and avx512mixed also need a self check of vdpbf16ps against two FMAs to pass.
bool machine_has(Isa isa);
/// All that this machine can run.
std::vector<Isa> machine_isas();
/// The fastest instruction set of this machine, by a short timing where that must decide. Throws Error when even AVX2 + FMA is missing.
Isa best_isa();

/// 64-byte aligned memory that is kept between calls and grows only when asked for more than ever before.
class Scratch {
 public:
  Scratch() = default;
  Scratch(Scratch&&) noexcept = default;
  Scratch& operator=(Scratch&&) noexcept = default;
  /// At least `bytes` bytes; contents undefined; valid until the next call of get() on this object.
  void* get(std::size_t bytes);
  template <class T>
  T* get(std::int64_t count) {
    return static_cast<T*>(get(std::size_t(count) * sizeof(T)));
  }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> data_;
  std::size_t size_ = 0;
};

/// Slots keep the scratch users of one op call apart: a (thread, slot) pair is used by one piece of code at a time.
/// An op that calls another op must not hold a slot that the inner op uses; each op lists its slots in its .cpp.
enum class ScratchSlot : std::uint8_t { matmul_a, matmul_b, matmul_c, op0, op1, op2, op3, caller0, caller1, count };

class Context {
 public:
  /// threads >= 1, the caller's included.
  explicit Context(int threads, Isa isa = best_isa());

  int threads() const { return pool_.size(); }
  Isa isa() const { return isa_; }
  ThreadPool& pool() { return pool_; }
  Scratch& scratch(int thread, ScratchSlot slot) {
    return scratch_[std::size_t(thread) * std::size_t(ScratchSlot::count) + std::size_t(slot)];
  }

  /// Calls f(begin, end, thread) once per thread over a static, contiguous partition of [0, n), FTZ and DAZ set.
  /// Runs on the calling thread alone when n < 2 * grain. An op's result may not depend on the partition.
  template <class F>
  void parallel_for(std::int64_t n, std::int64_t grain, F&& f) {
    std::int64_t parts = grain > 0 ? n / grain : n;
    if (parts > threads()) parts = threads();
    if (parts <= 1) {
      if (n > 0) {
        FtzScope ftz;
        f(std::int64_t(0), n, 0);
      }
      return;
    }
    pool_.run([&](int t) {
      if (t >= parts) return;
      const std::int64_t begin = n * t / parts;
      const std::int64_t end = n * (t + 1) / parts;
      if (begin < end) f(begin, end, t);
    });
  }

 private:
  ThreadPool pool_;
  Isa isa_;
  std::vector<Scratch> scratch_;
};

}  // namespace plumb
