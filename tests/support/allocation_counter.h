// Test only: counts calls of malloc and its relatives, from any thread. Link allocation_counter.cpp into the test program.
#pragma once
#include <cstdint>

namespace plumb {

/// False where a sanitizer owns the allocator: tests then skip.
bool allocations_are_counted();
/// Calls so far of malloc, calloc, realloc, aligned_alloc and posix_memalign in this process (operator new among them).
std::uint64_t allocation_count();

}  // namespace plumb
