#include "engine/metrics/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "kernels/core/error.h"
#include "model/files/files.h"

namespace plumb {
namespace {

constexpr const char* kLockName = "lock";

bool holds_more_than_a_lock(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  if (error) throw Error(fmt::format("{}: cannot list: {}", folder.string(), error.message()));
  for (const auto& entry : entries) {
    if (entry.path().filename() != kLockName) return true;
  }
  return false;
}

}  // namespace

RunFolder::RunFolder(std::filesystem::path folder, Mode mode) : path_(std::move(folder)) {
  std::error_code error;
  const bool exists = std::filesystem::exists(path_, error);
  if (exists && !std::filesystem::is_directory(path_, error)) throw UsageError(fmt::format("{}: is not a folder", path_.string()));
  if (mode == Mode::resume) {
    if (!exists) throw UsageError(fmt::format("{}: no such run folder", path_.string()));
    if (!std::filesystem::exists(config_file(), error))
      throw UsageError(fmt::format("{}: is not a run folder (it has no config.yaml)", path_.string()));
    lock();
    return;
  }
  const bool has_lock = exists && std::filesystem::exists(path_ / kLockName, error);
  const auto refuse_contents = [&] {
    if (!holds_more_than_a_lock(path_)) return;
    throw UsageError(fmt::format("{}: the run folder is not empty; continue it with --resume {}, or choose another with --out",
                                 path_.string(), path_.string()));
  };
  // A folder without a lock is somebody's: nothing is written into it. One in use says so rather than that it is not empty.
  if (exists && !has_lock) refuse_contents();
  std::filesystem::create_directories(path_, error);
  if (error) throw Error(fmt::format("{}: cannot create the run folder: {}", path_.string(), error.message()));
  lock();
  try {
    refuse_contents();
  } catch (...) {
    ::close(lock_fd_);
    throw;
  }
}

RunFolder::~RunFolder() {
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

void RunFolder::lock() {
  const auto file = path_ / kLockName;
  lock_fd_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_fd_ < 0)
    throw Error(fmt::format("{}: cannot write to the run folder: {}", path_.string(), std::generic_category().message(errno)));
  if (::flock(lock_fd_, LOCK_EX | LOCK_NB) == 0) return;
  const int reason = errno;
  ::close(lock_fd_);
  lock_fd_ = -1;
  if (reason == EWOULDBLOCK) throw Error(fmt::format("{}: the run folder is in use by another process", path_.string()));
  throw Error(fmt::format("{}: cannot lock: {}", file.string(), std::generic_category().message(reason)));
}

void RunFolder::write_config(const std::string& yaml) const { write_file(config_file(), yaml); }

}  // namespace plumb
