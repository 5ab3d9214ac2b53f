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

ThreadPool::ThreadPool(int threads) : threads_(threads < 1 ? 1 : threads) {
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

void ThreadPool::run_erased(Task task, void* argument) {
  task_ = task;
  argument_ = argument;
  pending_.store(threads_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1);
  if (asleep_.load() != 0) generation_.notify_all();
  {
    FtzScope ftz;
    task(argument, 0);
  }
  int spins = 0;
  while (pending_.load(std::memory_order_acquire) != 0) {
    _mm_pause();
    // On an oversubscribed machine the last worker may not be running at all: let it.
    if (++spins > kSpins) std::this_thread::yield();
  }
}

void ThreadPool::worker(int thread) {
  FtzScope ftz;
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
    ++seen;
    if (stop_.load()) return;
    task_(argument_, thread);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace plumb
