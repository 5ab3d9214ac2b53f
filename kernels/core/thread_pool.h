// A small fork-join pool: static partition, workers spin briefly and then sleep. The caller is thread 0 and computes itself
// the parts of workers that have not come by the time its own is done: a machine busy with other work costs no more than
// the threads that it withholds.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
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

  /// Runs f(part) once for every part 0..size()-1, FTZ and DAZ set, and returns when all are done. Parts run at the same
  /// time where threads are free, but may also run one after the other on one thread: they must not wait for each other.
  /// Not reentrant. f must not throw.
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
  /// Calls of run() are generations, from 1 on. A part is computed by the thread that moves `claimed` on to its generation.
  struct alignas(64) Part {
    std::atomic<std::uint32_t> claimed{0};
    std::atomic<std::uint32_t> done{0};  // the last generation in which it was computed
    std::atomic<bool> awaited{false};    // the caller sleeps on `done`
  };
  bool claim(int part, std::uint32_t generation);
  void run_erased(Task task, void* argument);
  void await(Part& part, std::uint32_t generation);
  void worker(int thread);

  int threads_;
  std::vector<std::thread> workers_;
  std::unique_ptr<Part[]> parts_;  // (threads); that of the caller is not used
  alignas(64) std::atomic<std::uint32_t> generation_{0};
  std::atomic<int> asleep_{0};
  std::atomic<bool> stop_{false};
  Task task_ = nullptr;
  void* argument_ = nullptr;
};

}  // namespace plumb
