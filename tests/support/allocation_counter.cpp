#include "tests/support/allocation_counter.h"

#include <atomic>
#include <cerrno>
#include <cstddef>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

namespace plumb {

bool allocations_are_counted() { return false; }
std::uint64_t allocation_count() { return 0; }

}  // namespace plumb

#else

namespace {

std::atomic<std::uint64_t> calls{0};

}  // namespace

namespace plumb {

bool allocations_are_counted() { return true; }
std::uint64_t allocation_count() { return calls.load(); }

}  // namespace plumb

// glibc's allocator under its other names: a definition in the program takes the place of the usual ones.
extern "C" {

void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t bytes) {
  ++calls;
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  ++calls;
  return __libc_calloc(count, bytes);
}
void* realloc(void* p, std::size_t bytes) {
  ++calls;
  return __libc_realloc(p, bytes);
}
void* aligned_alloc(std::size_t align, std::size_t bytes) {
  ++calls;
  return __libc_memalign(align, bytes);
}
int posix_memalign(void** out, std::size_t align, std::size_t bytes) {
  ++calls;
  *out = __libc_memalign(align, bytes);
  return *out == nullptr ? ENOMEM : 0;
}
}

#endif
