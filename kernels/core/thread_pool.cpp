#include "kernels/core/thread_pool.h"

#include <immintrin.h>

#include <string>
#include <system_error>

#include "kernels/core/error.h"

namespace plumb {
namespace {
constexpr unsigned kMaskAllExceptions = 0x1F80;
constexpr unsigned kFtzDaz = 0x8040;
// About 30 us of pausing: longer than the gap between two ops of a step, shorter than anyone notices on a shared machine.
constexpr int kSpins = 4000;

int at_least_one(int threads) {
  require(threads >= 1, "internal: a thread pool has at least the caller's thread");
  return threads;
}

/// Wakes the workers to find `stop` set.
void join_all(std::vector<std::thread>& workers, std::atomic<bool>& stop, std::atomic<std::uint32_t>& generation) {
  stop.store(true);
  generation.fetch_add(1);
  generation.notify_all();
  for (auto& w : workers) w.join();
}
}  // namespace

FtzScope::FtzScope() : saved_(_mm_getcsr()) { _mm_setcsr(kMaskAllExceptions | kFtzDaz); }
FtzScope::~FtzScope() { _mm_setcsr(saved_); }

ThreadPool::ThreadPool(int threads) : threads_(at_least_one(threads)), parts_(new Part[std::size_t(threads_)]) {
  try {
    for (int t = 1; t < threads_; ++t) workers_.emplace_back([this, t] { worker(t); });
  } catch (const std::system_error& error) {
    const auto started = std::to_string(workers_.size() + 1);
    join_all(workers_, stop_, generation_);
    throw Error("cannot start " + std::to_string(threads_) + " threads: this machine stopped at " + started + " (" +
                error.code().message() + "); ask for fewer");
  }
}

ThreadPool::~ThreadPool() { join_all(workers_, stop_, generation_); }

bool ThreadPool::claim(int part, std::uint32_t generation) {
  std::uint32_t before = generation - 1;
  return parts_[std::size_t(part)].claimed.compare_exchange_strong(before, generation, std::memory_order_acq_rel);
}

void ThreadPool::run_erased(Task task, void* argument) {
  task_ = task;
  argument_ = argument;
  const std::uint32_t generation = generation_.fetch_add(1) + 1;
  if (asleep_.load() != 0) generation_.notify_all();
  {
    FtzScope ftz;
    task(argument, 0);
    for (int t = 1; t < threads_; ++t) {
      if (!claim(t, generation)) continue;
      task(argument, t);
      parts_[std::size_t(t)].done.store(generation, std::memory_order_relaxed);
    }
  }
  for (int t = 1; t < threads_; ++t) await(parts_[std::size_t(t)], generation);
}

void ThreadPool::await(Part& part, std::uint32_t generation) {
  for (int spins = 0; spins < kSpins; ++spins) {
    if (part.done.load(std::memory_order_acquire) == generation) return;
    _mm_pause();
  }
  // The worker was interrupted: this core may be the one that it needs.
  part.awaited.store(true);
  for (std::uint32_t seen = part.done.load(); seen != generation; seen = part.done.load()) part.done.wait(seen);
  part.awaited.store(false);
}

void ThreadPool::worker(int thread) {
  FtzScope ftz;
  Part& part = parts_[std::size_t(thread)];
  std::uint32_t seen = 0;
  for (;;) {
    int spins = 0;
    while (generation_.load(std::memory_order_acquire) == seen) {
      if (++spins < kSpins) {
        _mm_pause();
        continue;
      }
      asleep_.fetch_add(1);
      generation_.wait(seen);
      asleep_.fetch_sub(1);
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    if (!claim(thread, seen)) continue;
    task_(argument_, thread);
    part.done.store(seen);
    if (part.awaited.load()) part.done.notify_one();
  }
}

}  // namespace plumb
