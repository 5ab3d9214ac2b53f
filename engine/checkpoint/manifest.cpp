#include "engine/checkpoint/manifest.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "engine/config/config.h"
#include "kernels/core/error.h"
#include "model/files/files.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

CheckpointFile measure(const fs::path& path) {
  CheckpointFile file;
  for_each_chunk(path, [&](std::span<const std::byte> bytes) {
    file.size += bytes.size();
    file.crc32 = std::uint32_t(::crc32_z(file.crc32, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
  });
  return file;
}

std::uint64_t hash_of(const nlohmann::json& text) {
  const auto& digits = text.get_ref<const std::string&>();
  std::size_t used = 0;
  const std::uint64_t hash = std::stoull(digits, &used, 16);
  require(used == digits.size(), "a hash is not hexadecimal");
  return hash;
}

CheckpointManifest parse_manifest(const nlohmann::json& json) {
  CheckpointManifest manifest;
  require(json.at("format") == kFormat, fmt::format("format {} is not {}", json.at("format").dump(), kFormat));
  manifest.step = json.at("step").get<std::int64_t>();
  manifest.arithmetic_version = json.at("arithmetic_version").get<int>();
  manifest.identity = {.config_hash = hash_of(json.at("config")),
                       .rollout_numerics = hash_of(json.at("numerics").at("rollout")),
                       .update_numerics = hash_of(json.at("numerics").at("update"))};
  if (json.contains("metric")) {
    manifest.metric = json.at("metric").at("name").get<std::string>();
    manifest.metric_value = json.at("metric").at("value").get<double>();
  }
  for (const auto& [name, file] : json.at("files").items()) {
    const fs::path path(name);
    const bool inside = path.is_relative() && std::none_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
    require(inside, fmt::format("file {} lies outside the checkpoint", in_quotes(name)));
    manifest.files[name] = {.size = file.at("size").get<std::uint64_t>(), .crc32 = std::uint32_t(hash_of(file.at("crc32")))};
  }
  return manifest;
}

/// Names of regular files below the folder, relative to it.
std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) names.push_back(entry.path().lexically_relative(folder).generic_string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Json lines_of(const std::string& text) {
  auto lines = Json::array();
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace

std::string manifest_text(const CheckpointManifest& manifest) {
  Json json = {{"format", kFormat},
               {"step", manifest.step},
               {"arithmetic_version", manifest.arithmetic_version},
               {"config", hash_text(manifest.identity.config_hash)},
               {"numerics",
                {{"rollout", hash_text(manifest.identity.rollout_numerics)},
                 {"update", hash_text(manifest.identity.update_numerics)},
                 {"resolved",
                  {{"rollout", lines_of(manifest.identity.rollout_resolved)}, {"update", lines_of(manifest.identity.update_resolved)}}}}}};
  if (!manifest.metric.empty()) json["metric"] = {{"name", manifest.metric}, {"value", manifest.metric_value}};
  json["files"] = Json::object();
  for (const auto& [name, file] : manifest.files) json["files"][name] = {{"size", file.size}, {"crc32", fmt::format("{:08x}", file.crc32)}};
  return json.dump(2) + "\n";
}

std::map<std::string, CheckpointFile> measure_files(const fs::path& folder) {
  std::map<std::string, CheckpointFile> files;
  for (const std::string& name : files_below(folder)) {
    files[name] = measure(folder / name);
  }
  return files;
}

CheckpointManifest read_manifest(const fs::path& checkpoint) {
  const auto file = checkpoint / "manifest.json";
  std::error_code ignored;
  if (!fs::exists(file, ignored)) throw Error(fmt::format("{}: is not a whole checkpoint: it has no manifest.json", checkpoint.string()));
  const nlohmann::json json = read_json(file);
  try {
    return parse_manifest(json);
  } catch (const std::exception& error) {
    throw Error(fmt::format("{}: damaged manifest: {}", file.string(), error.what()));
  }
}

std::vector<std::string> check_checkpoint(const fs::path& checkpoint, const std::set<std::string>& skipped) {
  std::vector<std::string> faults;
  const CheckpointManifest manifest = read_manifest(checkpoint);
  for (const auto& [name, expected] : manifest.files) {
    if (name.ends_with(".safetensors") && skipped.contains(name.substr(0, name.find('.')))) continue;
    const auto path = checkpoint / name;
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) {
      faults.push_back(fmt::format("{}: missing", path.string()));
      continue;
    }
    try {
      const CheckpointFile found = measure(path);
      if (found.size != expected.size) {
        faults.push_back(fmt::format("{}: has {} bytes, {} were written", path.string(), found.size, expected.size));
      } else if (found.crc32 != expected.crc32) {
        faults.push_back(fmt::format("{}: its checksum is wrong: the contents were damaged", path.string()));
      }
    } catch (const Error& error) {
      faults.emplace_back(error.what());
    }
  }
  return faults;
}

}  // namespace plumb
