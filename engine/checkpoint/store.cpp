// Saving so that a kill or a full disk at any moment leaves whole checkpoints only.
#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <system_error>

#include "engine/checkpoint/checkpoint.h"
#include "kernels/core/error.h"
#include "model/files/files.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kStep = "step-";

std::string step_name(std::int64_t step) { return fmt::format("{}{:06}", kStep, step); }

std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  std::int64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kStep.size(), end, step);
  if (error != std::errc() || stop != end || step < 0) return std::nullopt;
  return step;
}

[[noreturn]] void fail(const fs::path& path, const char* doing) {
  throw Error(fmt::format("{}: cannot {}: {}", path.string(), doing, std::generic_category().message(errno)));
}

void sync_path(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(path, "open");
  const int result = ::fsync(fd);
  const int reason = errno;
  ::close(fd);
  errno = reason;
  // Some file systems cannot sync a folder; that only matters at a power cut.
  if (result != 0 && reason != EINVAL) fail(path, "sync");
}

void sync_tree(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) sync_path(entry.path());
  sync_path(folder);
}

/// Deletes a folder so that a kill half-way leaves no step-* behind that lacks files.
void remove_checkpoint(const fs::path& checkpoint) {
  const fs::path doomed = checkpoint.parent_path() / (std::string(kTemporary) + "old-" + checkpoint.filename().string());
  std::error_code ignored;
  fs::remove_all(doomed, ignored);
  fs::rename(checkpoint, doomed);
  fs::remove_all(doomed);
}

/// Puts the finished folder at its final name, in one step even when something is there (a damaged checkpoint).
void move_into_place(const fs::path& finished, const fs::path& final_name) {
  if (::renameat2(AT_FDCWD, finished.c_str(), AT_FDCWD, final_name.c_str(), RENAME_NOREPLACE) == 0) return;
  if (::renameat2(AT_FDCWD, finished.c_str(), AT_FDCWD, final_name.c_str(), RENAME_EXCHANGE) == 0) {
    fs::remove_all(finished);
    return;
  }
  if (errno != EINVAL && errno != ENOSYS && errno != ENOENT) fail(final_name, "rename into place");
  if (fs::exists(final_name)) remove_checkpoint(final_name);  // a file system without either flag
  if (::rename(finished.c_str(), final_name.c_str()) != 0) fail(final_name, "rename into place");
}

}  // namespace

CheckpointStore::CheckpointStore(fs::path run_folder, const CheckpointIdentity& identity, const CheckpointConfig& config)
    : run_folder_(std::move(run_folder)), folder_(run_folder_ / "checkpoints"), identity_(identity), config_(config) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) throw Error(fmt::format("{}: cannot create: {}", folder_.string(), error.message()));
  // Hours of training should not end at a folder that nothing can be written to.
  if (::access(folder_.c_str(), W_OK | X_OK) != 0) fail(folder_, "write");
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (entry.path().filename().string().starts_with(kTemporary)) fs::remove_all(entry.path());
  }
  const auto stale_link = run_folder_ / (std::string(kTemporary) + "latest");
  fs::remove(stale_link, error);
}

fs::path CheckpointStore::save(std::int64_t step, const std::function<void(CheckpointWriter&)>& fill, std::optional<double> metric) {
  const std::string name = step_name(step);
  const fs::path temporary = folder_ / (std::string(kTemporary) + name);
  fs::path final_name = folder_ / name;
  try {
    fs::remove_all(temporary);
    fs::create_directory(temporary);
    CheckpointWriter writer(temporary);
    fill(writer);
    writer.finish();
    CheckpointManifest manifest{.step = step, .identity = identity_, .files = measure_files(temporary)};
    if (metric && !config_.keep_best.empty() && std::isfinite(*metric)) {
      manifest.metric = config_.keep_best;
      manifest.metric_value = *metric;
    }
    sync_tree(temporary);
    write_file(temporary / "manifest.json", manifest_text(manifest));
    move_into_place(temporary, final_name);
    sync_path(folder_);
    point_latest(name);
    prune();
  } catch (const fs::filesystem_error& error) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw Error(fmt::format("{}: cannot save checkpoint {}: {}", error.path1().string(), name, error.code().message()));
  } catch (const Error&) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
  return final_name;
}

void CheckpointStore::point_latest(const std::string& name) const {
  const auto link = run_folder_ / "latest", temporary = run_folder_ / (std::string(kTemporary) + "latest");
  fs::remove(temporary);
  fs::create_directory_symlink(fs::path("checkpoints") / name, temporary);
  if (::rename(temporary.c_str(), link.c_str()) != 0) fail(link, "replace");
  sync_path(run_folder_);
}

std::vector<std::pair<std::int64_t, fs::path>> CheckpointStore::list() const {
  std::vector<std::pair<std::int64_t, fs::path>> steps;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (const auto step = step_of(entry.path().filename().string())) steps.emplace_back(*step, entry.path());
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

CheckpointStore::Found CheckpointStore::newest(const std::set<std::string>& skip) const {
  Found found;
  const auto steps = list();
  for (auto it = steps.rbegin(); it != steps.rend(); ++it) {
    std::string fault;
    try {
      const auto faults = check_checkpoint(it->second, skip);
      if (faults.empty()) {
        found.path = it->second;
        return found;
      }
      fault = faults[0];
    } catch (const Error& error) {
      fault = error.what();
    }
    found.refused.push_back("damaged checkpoint: " + fault);
  }
  if (!found.refused.empty()) throw Error("no whole checkpoint: " + found.refused[0]);
  return found;
}

void CheckpointStore::prune() const {
  const auto steps = list();
  const std::size_t keep = std::size_t(std::max(config_.keep, 1));
  if (steps.size() <= keep) return;
  std::optional<fs::path> best;
  double best_value = 0;
  if (!config_.keep_best.empty()) {
    for (const auto& [_, path] : steps) {
      try {
        const CheckpointManifest manifest = read_manifest(path);
        if (manifest.metric != config_.keep_best || (best && manifest.metric_value <= best_value)) continue;
        best = path;
        best_value = manifest.metric_value;
      } catch (const Error&) {
        continue;  // a damaged one is nobody's best
      }
    }
  }
  for (std::size_t i = 0; i + keep < steps.size(); ++i) {
    if (steps[i].second != best) remove_checkpoint(steps[i].second);
  }
}

}  // namespace plumb
