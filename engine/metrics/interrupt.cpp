#include "engine/metrics/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace plumb {
namespace {

std::atomic<bool> requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "the handler may only touch lock-free atomics");

void on_signal(int) {
  if (requested.exchange(true)) ::_exit(kInterrupted);
}

}  // namespace

void install_interrupt_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupt_requested() { return requested.load(); }

}  // namespace plumb
