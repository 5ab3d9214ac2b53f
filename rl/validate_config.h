// Refuses impossible combinations of settings before anything is allocated.
#pragma once
#include <optional>
#include <string>

#include "rl/run_config.h"

namespace plumb {

/// Answers per prompt. Far beyond what anyone runs: a slip of the keyboard should not fill the memory.
constexpr int kMostSamples = 10'000;
/// How many threads may be asked for, by execution.threads and by --threads. Throws UsageError unless they are from 0 (one per core)
/// to 1024; `what` begins its message: "execution.threads is 9999". Nothing: what was given is no whole number.
void check_threads(const std::string& what, std::optional<int> threads);

/// Throws UsageError that names the keys that do not go together and what would be right.
void validate(const RunConfig&);

}  // namespace plumb
