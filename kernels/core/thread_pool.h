// A small fork-join pool: static partition, workers spin briefly and then sleep. The caller is thread 0.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace plumb {

/// Sets flush-to-zero, denormals-are-zero and round-to-nearest for this thread; restores the caller's state on exit.
class FtzScope {
 public:
  FtzScope();
  ~FtzScope();
  FtzScope(const FtzScope&) = delete;
  FtzScope& operator=(const FtzScope&) = delete;

 private:
  unsigned saved_;
};

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return threads_; }

  /// Runs f(thread) on every thread, FTZ and DAZ set, and returns when all are done. Not reentrant. f must not throw.
  template <class F>
  void run(F&& f) {
    if (threads_ == 1) {
      FtzScope ftz;
      f(0);
      return;
    }
    using Fn = std::remove_reference_t<F>;
    run_erased([](void* c, int t) { (*static_cast<Fn*>(c))(t); }, const_cast<void*>(static_cast<const void*>(&f)));
  }

 private:
  using Task = void (*)(void*, int);
  void run_erased(Task task, void* argument);
  void worker(int thread);

  int threads_;
  std::vector<std::thread> workers_;
  alignas(64) std::atomic<std::uint32_t> generation_{0};
  alignas(64) std::atomic<int> pending_{0};
  std::atomic<int> asleep_{0};
  std::atomic<bool> stop_{false};
  Task task_ = nullptr;
  void* argument_ = nullptr;
};

}  // namespace plumb
