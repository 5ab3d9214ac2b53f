// Checkpoints: RUN/checkpoints/step-000123/ with a manifest of sizes and checksums, whole or not there.
//   manifest.json        step, arithmetic version, hashes, size and CRC-32 of every file; written last
//   state.json           values of every section (state.h)
//   FILE.safetensors     buffers
//   model/               a Hugging Face folder
// A checkpoint is written beside its final name, synced, renamed; RUN/latest then points at it. It holds no time, host or path.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/state.h"
#include "engine/config/sections.h"

namespace plumb {

/// What a save callback fills.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(std::filesystem::path folder) : folder_(std::move(folder)) {}
  /// Adds a section: all of `state`, by its visit_state.
  template <class S>
  void save(const std::string& section, S& state) {
    SaveVisitor visitor;
    visit_state(visitor, state);
    add(section, visitor);
  }
  /// The folder being written, for what is no state: model/ (save_hf_model and tokenizer files).
  std::filesystem::path model_folder();

 private:
  friend class CheckpointStore;
  void add(const std::string& section, const SaveVisitor&);
  void finish();

  std::filesystem::path folder_;
  nlohmann::ordered_json sections_ = nlohmann::ordered_json::object();
};

/// Reads one whole checkpoint.
class CheckpointReader {
 public:
  /// Checks everything first; throws Error naming the checkpoint and the damaged file.
  /// skip = {"optimizer"}: optimizer.safetensors may be missing, buffers of that file are left as they are.
  explicit CheckpointReader(std::filesystem::path checkpoint, std::set<std::string> skip = {});
  const std::filesystem::path& path() const { return path_; }
  const CheckpointManifest& manifest() const { return manifest_; }
  std::filesystem::path model_folder() const { return path_ / "model"; }
  bool has(const std::string& section) const { return sections_.contains(section); }
  template <class S>
  void load(const std::string& section, S& state) const {
    LoadVisitor visitor = visitor_of(section);
    visit_state(visitor, state);
    visitor.finish();
  }

 private:
  LoadVisitor visitor_of(const std::string& section) const;

  std::filesystem::path path_;
  std::set<std::string> skip_;
  CheckpointManifest manifest_;
  nlohmann::ordered_json sections_;
};

/// The checkpoints of one run folder.
class CheckpointStore {
 public:
  /// Removes what an interrupted save left behind.
  CheckpointStore(std::filesystem::path run_folder, const CheckpointIdentity&, const CheckpointConfig&);

  /// What checkpoints say from now on.
  void set_identity(const CheckpointIdentity& identity) { identity_ = identity; }
  /// Writes the checkpoint of `step` (steps done so far), points `latest` at it, then prunes: the `keep` newest stay, and
  /// with keep_best the one whose metric is highest (the earliest of equals). `metric`: that metric's value if it was
  /// evaluated at this step. Throws Error (full disk, ...) with earlier checkpoints untouched and nothing left half-written.
  std::filesystem::path save(std::int64_t step, const std::function<void(CheckpointWriter&)>& fill,
                             std::optional<double> metric = std::nullopt);

  struct Found {
    std::optional<std::filesystem::path> path;  // the newest whole checkpoint
    std::vector<std::string> refused;           // one line for each damaged newer one, naming checkpoint and file
  };
  /// Throws Error when there are checkpoints but none is whole.
  Found newest(const std::set<std::string>& skip = {}) const;
  /// All step folders, oldest first, unchecked.
  std::vector<std::pair<std::int64_t, std::filesystem::path>> list() const;

 private:
  void prune() const;
  void point_latest(const std::string& name) const;

  std::filesystem::path run_folder_;
  std::filesystem::path folder_;
  CheckpointIdentity identity_;
  CheckpointConfig config_;
};

}  // namespace plumb
