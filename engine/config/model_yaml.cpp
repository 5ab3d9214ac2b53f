#include "engine/config/model_yaml.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "engine/config/config.h"
#include "kernels/core/error.h"
#include "model/files/files.h"

namespace plumb {

constexpr auto enum_names(Family) {
  return std::array{std::pair{Family::qwen3, "qwen3"}, std::pair{Family::qwen2, "qwen2"}, std::pair{Family::llama, "llama"}};
}

/// What a file of configs/models says; the rest of a ModelConfig follows from the family or the tokenizer.
struct ModelYaml {
  ModelConfig model;
};
template <class V>
void visit(V& v, ModelYaml& yaml) {
  ModelConfig& c = yaml.model;
  v.field("family", c.family, "architecture: qwen3 (normalised queries and keys), qwen2 (biases on q, k, v) or llama");
  v.field("vocab_size", c.vocab_size, "rows of the embedding; 0: the tokenizer's");
  v.field("hidden_size", c.hidden_size, "width of the residual stream");
  v.field("intermediate_size", c.intermediate_size, "width of the feed-forward layer");
  v.field("layers", c.layers, "blocks");
  v.field("heads", c.heads, "query heads");
  v.field("kv_heads", c.kv_heads, "key and value heads, a divisor of heads; 0: as many as heads");
  v.field("head_dim", c.head_dim, "width of a head; 0: hidden_size / heads");
  v.field("max_positions", c.max_positions, "longest sequence");
  v.field("rms_eps", c.rms_eps, "added to the mean square in RMSNorm");
  v.field("rope_theta", c.rope_theta, "base of the rotary frequencies");
  v.field("tied", c.tied, "the LM head is the embedding");
  v.field("init_range", c.init_range, "standard deviation of the random initialisation");
}

namespace {

std::vector<std::filesystem::path> model_folders() {
  std::vector<std::filesystem::path> folders = {"configs/models"};
  std::error_code ignored;
  for (auto at = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path(); !at.empty(); at = at.parent_path()) {
    folders.push_back(at / "configs/models");
    folders.push_back(at / "share/plumb/configs/models");
    if (at == at.root_path()) break;
  }
  return folders;
}

}  // namespace

std::filesystem::path find_model_yaml(const std::string& name) {
  std::error_code ignored;
  if (name.ends_with(".yaml") || name.ends_with(".yml") || name.find('/') != std::string::npos) {
    if (!std::filesystem::is_regular_file(name, ignored)) throw UsageError(fmt::format("model.config: no file {}", in_quotes(name)));
    return name;
  }
  std::vector<std::string> known;
  for (const auto& folder : model_folders()) {
    auto file = folder / (name + ".yaml");
    if (std::filesystem::is_regular_file(file, ignored)) return file;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
      if (entry.path().extension() == ".yaml") known.push_back(entry.path().stem().string());
    }
  }
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  throw UsageError(fmt::format("model.config: no model {} in configs/models; known: {}", in_quotes(name), fmt::join(known, ", ")));
}

ModelConfig read_model_yaml(const std::filesystem::path& file) {
  ModelConfig model = load_config<ModelYaml>(file).model;
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  if (model.head_dim == 0 && model.heads > 0) model.head_dim = model.hidden_size / model.heads;
  model.qk_norm = model.family == Family::qwen3;
  model.qkv_bias = model.family == Family::qwen2;
  ModelConfig check = model;
  if (check.vocab_size == 0) check.vocab_size = 1;
  try {
    validate(check);
  } catch (const Error& error) {
    throw UsageError(fmt::format("{}: {}", file.string(), error.what()));
  }
  return model;
}

}  // namespace plumb
