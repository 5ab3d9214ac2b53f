// manifest.json: what a checkpoint is made of, so that it is whole or recognised as not.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace plumb {

/// Changes when a release computes other bits from the same configuration.
inline constexpr int kArithmeticVersion = 1;

/// What a checkpoint says of the run that wrote it.
struct CheckpointIdentity {
  std::uint64_t config_hash = 0;
  std::uint64_t rollout_numerics = 0;
  std::uint64_t update_numerics = 0;
  std::string rollout_resolved;  // Numerics::describe(); written for the reader, not read back
  std::string update_resolved;
};

struct CheckpointFile {
  std::uint64_t size = 0;
  std::uint32_t crc32 = 0;
};

struct CheckpointManifest {
  std::int64_t step = 0;
  int arithmetic_version = kArithmeticVersion;
  CheckpointIdentity identity;
  std::string metric;  // name of the evaluation metric kept with it; empty: none
  double metric_value = 0;
  std::map<std::string, CheckpointFile> files;  // by path relative to the checkpoint
};

/// Throws Error naming the checkpoint when there is no readable manifest.
CheckpointManifest read_manifest(const std::filesystem::path& checkpoint);
/// Empty when every file of the manifest is there with its size and checksum; else one line per fault, naming the file.
/// Files of `skipped` ("optimizer" for optimizer.safetensors) are not looked at.
std::vector<std::string> check_checkpoint(const std::filesystem::path& checkpoint, const std::set<std::string>& skipped = {});

/// The text of manifest.json.
std::string manifest_text(const CheckpointManifest&);
/// Size and checksum of every file below the folder.
std::map<std::string, CheckpointFile> measure_files(const std::filesystem::path& folder);

}  // namespace plumb
