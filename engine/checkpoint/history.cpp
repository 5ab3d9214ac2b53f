#include "engine/checkpoint/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/core/error.h"
#include "model/files/files.h"

namespace plumb {

namespace fs = std::filesystem;

std::optional<std::int64_t> last_logged_step(const std::filesystem::path& run_folder) {
  const auto file = run_folder / "metrics.jsonl";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return std::nullopt;
  const std::string text = read_file(file);
  std::optional<std::int64_t> step;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = text.find('\n', at);
    if (end == std::string::npos) break;
    const auto line = nlohmann::json::parse(text.begin() + std::ptrdiff_t(at), text.begin() + std::ptrdiff_t(end), nullptr, false);
    if (line.is_object() && line.contains("step") && line["step"].is_number_integer()) step = line["step"].get<std::int64_t>();
    at = end + 1;
  }
  return step;
}

void require_checkpoints(const fs::path& run_folder, const CheckpointConfig& config) {
  const fs::path folder = run_folder / "checkpoints";
  std::error_code ignored;
  const bool exists = fs::is_directory(folder, ignored);
  const auto is_step = [](const fs::directory_entry& entry) { return entry.path().filename().string().starts_with("step-"); };
  if (exists && std::any_of(fs::directory_iterator(folder), fs::directory_iterator(), is_step)) return;
  const std::int64_t logged = last_logged_step(run_folder).value_or(0);
  const bool linked = fs::is_symlink(run_folder / "latest", ignored);
  // The line of a step is written before its checkpoint, so only a later line tells that there was one.
  const bool went_on = config.save_every > 0 && logged > config.save_every;
  if (!linked && !went_on && (exists || logged <= 0)) return;
  throw Error(fmt::format("{}: damaged: its metrics reach step {}, but its checkpoints are gone: put {} back, or start a new run",
                          run_folder.string(), logged, folder.string()));
}

}  // namespace plumb
