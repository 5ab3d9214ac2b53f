// A run folder in use: locked against a second process, with its config.yaml.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace plumb {

class RunFolder {
 public:
  enum class Mode : std::uint8_t { create, resume };
  /// create: makes the folder (parents too); throws UsageError when it exists and is not empty. resume: throws UsageError
  /// when it is no run folder (no config.yaml). Both throw Error when it cannot be written or a live process has it.
  RunFolder(std::filesystem::path folder, Mode mode);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path config_file() const { return path_ / "config.yaml"; }
  /// Replaces config.yaml atomically.
  void write_config(const std::string& yaml) const;

 private:
  void lock();

  std::filesystem::path path_;
  int lock_fd_ = -1;
};

}  // namespace plumb
