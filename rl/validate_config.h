// Refuses impossible combinations of settings before anything is allocated.
#pragma once
#include "rl/run_config.h"

namespace plumb {

/// Throws UsageError that names the keys that do not go together and what would be right.
void validate(const RunConfig&);

}  // namespace plumb
