// Whether a run folder still holds what the run left there.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>

#include "engine/config/sections.h"

namespace plumb {

/// The "step" of the last whole line of metrics.jsonl; nothing when nothing was logged.
std::optional<std::int64_t> last_logged_step(const std::filesystem::path& run_folder);

/// Throws Error when the run folder has no checkpoint although one was written: `latest` leads nowhere, or the metrics went on
/// behind the first one that `config` (the run's own) makes. A run that was killed before its first is fine.
void require_checkpoints(const std::filesystem::path& run_folder, const CheckpointConfig& config);

}  // namespace plumb
