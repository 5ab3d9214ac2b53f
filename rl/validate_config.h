// Refuses impossible combinations of settings before anything is allocated.
#pragma once
#include "rl/run_config.h"

namespace plumb {

/// More threads than any machine has cores are a slip, and the system would refuse to start them.
constexpr int kMostThreads = 1024;
/// Answers per prompt. Far beyond what anyone runs: a slip of the keyboard should not fill the memory.
constexpr int kMostSamples = 10'000;
/// Throws UsageError naming the option or key unless it is from 0 (one per core) to kMostThreads.
void check_threads(const char* name, int threads);

/// Throws UsageError that names the keys that do not go together and what would be right.
void validate(const RunConfig&);

}  // namespace plumb
