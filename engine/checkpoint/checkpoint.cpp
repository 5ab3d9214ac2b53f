#include "engine/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include "kernels/core/error.h"
#include "model/files/files.h"
#include "model/safetensors/safetensors.h"

namespace plumb {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

fs::path CheckpointWriter::model_folder() {
  auto folder = folder_ / "model";
  fs::create_directories(folder);
  return folder;
}

void CheckpointWriter::add(const std::string& section, const SaveVisitor& visitor) {
  require(!sections_.contains(section), "internal: checkpoint section " + section + " is saved twice");
  sections_[section] = visitor.values();
  for (const auto& [file, buffers] : visitor.files()) {
    std::vector<StoredTensor> tensors;
    for (const StateBuffer& b : buffers) {
      tensors.push_back({.name = b.tensor,
                         .dtype = b.dtype == DType::f32 ? StoredType::f32 : StoredType::bf16,
                         .shape = {b.elements},
                         .data = {static_cast<const std::byte*>(b.buffer->data()), std::size_t(b.elements) * bytes_of(b.dtype)}});
    }
    const auto path = folder_ / (file + ".safetensors");
    require(!fs::exists(path), "internal: checkpoint file " + file + " is written by two sections");
    write_safetensors(path, std::move(tensors));
  }
}

void CheckpointWriter::finish() { write_file(folder_ / "state.json", sections_.dump(2) + "\n"); }

CheckpointReader::CheckpointReader(fs::path checkpoint, std::set<std::string> skip) : path_(std::move(checkpoint)), skip_(std::move(skip)) {
  manifest_ = read_manifest(path_);
  const auto faults = check_checkpoint(path_, skip_);
  if (!faults.empty()) throw Error("damaged checkpoint: " + faults[0]);
  const auto file = path_ / "state.json";
  sections_ = Json::parse(read_file(file), nullptr, false);
  require(sections_.is_object(), file.string() + ": not a JSON object");
}

LoadVisitor CheckpointReader::visitor_of(const std::string& section) const {
  const auto it = sections_.find(section);
  if (it == sections_.end()) throw Error(fmt::format("{}: state.json: section {} is missing", path_.string(), section));
  return LoadVisitor(path_, section, *it, skip_);
}

}  // namespace plumb
