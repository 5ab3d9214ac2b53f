// Weights from and to a Hugging Face folder.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "kernels/core/error.h"
#include "model/files/files.h"
#include "model/hf_shape.h"
#include "model/safetensors/safetensors.h"
#include "model/weights.h"

namespace plumb {
namespace {

constexpr const char* kHeadName = "lm_head.weight";

std::string shown(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

void check_tensor(const std::filesystem::path& folder, const StoredTensor& t, const Parameter& p) {
  const bool known = t.dtype == StoredType::f32 || t.dtype == StoredType::bf16 || t.dtype == StoredType::f16;
  require(known, fmt::format("{}: {} is {}; F32, BF16 and F16 weights are supported", folder.string(), t.name, name_of(t.dtype)));
  require(t.shape == hf_shape(p),
          fmt::format("{}: {} has shape {}, config.json asks for {}", folder.string(), t.name, shown(t.shape), shown(hf_shape(p))));
}

/// Calls f(offset, values) for consecutive pieces of a tensor as FP32, so that a large one needs no copy of its size.
template <class F>
void for_each_piece(const StoredTensor& t, std::size_t count, F&& f) {
  constexpr std::size_t kPiece = std::size_t(1) << 20;
  const std::size_t bytes = count == 0 ? 0 : t.data.size() / count;
  std::vector<float> values;
  for (std::size_t first = 0; first < count; first += kPiece) {
    const std::size_t n = std::min(kPiece, count - first);
    values.resize(n);
    const auto data = t.data.subspan(first * bytes, n * bytes);
    read_f32({.name = t.name, .dtype = t.dtype, .shape = {std::int64_t(n)}, .data = data}, values);
    release_pages(data);
    f(first, std::span<const float>(values));
  }
}

/// Old exports carry the rotary frequencies as a buffer; they follow from the configuration.
bool ignorable(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

/// Of one value in a model's file.
std::size_t file_bytes(DType dtype) { return dtype == DType::f16 ? 2 : bytes_of(dtype); }

void write_shard(const std::filesystem::path& path, const ParameterList& parameters, std::size_t first, std::size_t last, const float* flat,
                 DType dtype) {
  std::vector<std::vector<std::uint16_t>> rounded;
  std::vector<std::vector<float>> emulated;
  std::vector<StoredTensor> tensors;
  for (std::size_t i = first; i < last; ++i) {
    const Parameter& p = parameters.all()[i];
    const std::span<const float> values(flat + p.offset, std::size_t(p.size()));
    StoredTensor t{.name = p.name, .dtype = StoredType::f32, .shape = hf_shape(p), .data = std::as_bytes(values)};
    if (dtype == DType::bf16 || dtype == DType::f16) {
      std::vector<std::uint16_t>& r = rounded.emplace_back(values.size());
      std::transform(values.begin(), values.end(), r.begin(),
                     [&](float x) { return dtype == DType::bf16 ? to_bf16(x).bits : to_f16(x).bits; });
      t.dtype = dtype == DType::bf16 ? StoredType::bf16 : StoredType::f16;
      t.data = std::as_bytes(std::span<const std::uint16_t>(r));
    } else if (dtype != DType::f32) {
      std::vector<float>& r = emulated.emplace_back(values.size());
      std::transform(values.begin(), values.end(), r.begin(), [&](float x) { return round_to(dtype, x); });
      t.data = std::as_bytes(std::span<const float>(r));
    }
    tensors.push_back(std::move(t));
  }
  write_safetensors(path, std::move(tensors), {{"format", "pt"}});
}

/// First parameter of every shard, and one past the last.
std::vector<std::size_t> shard_bounds(const ParameterList& parameters, DType dtype, std::uint64_t max_bytes) {
  std::vector<std::size_t> bounds{0};
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < parameters.all().size(); ++i) {
    const std::uint64_t size = std::uint64_t(parameters.all()[i].size()) * file_bytes(dtype);
    if (bytes > 0 && bytes + size > max_bytes) {
      bounds.push_back(i);
      bytes = 0;
    }
    bytes += size;
  }
  bounds.push_back(parameters.all().size());
  return bounds;
}

void remove_older_weights(const std::filesystem::path& folder, const std::vector<std::string>& written) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool weights = name == "model.safetensors" || name == "model.safetensors.index.json" ||
                         (name.starts_with("model-") && name.ends_with(".safetensors"));
    if (weights && std::find(written.begin(), written.end(), name) == written.end()) std::filesystem::remove(entry.path());
  }
}

}  // namespace

std::vector<std::int64_t> hf_shape(const Parameter& p) {
  const bool vector = p.rows == 1 && (p.name.ends_with(".bias") || p.name.find("norm") != std::string::npos);
  return vector ? std::vector<std::int64_t>{p.cols} : std::vector<std::int64_t>{p.rows, p.cols};
}

void load_hf_parameters(const std::filesystem::path& folder, const ParameterList& parameters, const ModelConfig& config, Buffer& flat) {
  const ShardedSafetensors file(folder);
  for (const Parameter& p : parameters.all()) {
    const StoredTensor* t = file.find(p.name);
    require(t != nullptr, fmt::format("{}: the weights lack {} {}", folder.string(), p.name, shown(hf_shape(p))));
    check_tensor(folder, *t, p);
    for_each_piece(*t, std::size_t(p.size()), [&](std::size_t first, std::span<const float> values) {
      flat.write(values.data(), (std::size_t(p.offset) + first) * sizeof(float), values.size_bytes());
    });
  }
  for (const std::string& name : file.names()) {
    if (parameters.find(name) != nullptr || ignorable(name)) continue;
    require(config.tied && name == kHeadName,
            fmt::format("{}: the weights have {}, which the model of config.json has not", folder.string(), in_quotes(name)));
    const Parameter& embedding = *parameters.find(Role::embedding);
    const StoredTensor& head = file.get(name);
    check_tensor(folder, head, embedding);
    std::vector<float> tied;
    for_each_piece(head, std::size_t(embedding.size()), [&](std::size_t first, std::span<const float> values) {
      tied.resize(values.size());
      flat.read(tied.data(), (std::size_t(embedding.offset) + first) * sizeof(float), values.size_bytes());
      require(std::equal(values.begin(), values.end(), tied.begin()),
              fmt::format("{}: tie_word_embeddings is true, but {} differs from {}", folder.string(), kHeadName, embedding.name));
    });
  }
}

Buffer load_hf_parameters(const std::filesystem::path& folder, const ParameterList& parameters, const ModelConfig& config) {
  Buffer flat(std::size_t(parameters.flat_size()) * sizeof(float));
  load_hf_parameters(folder, parameters, config, flat);
  return flat;
}

void save_hf_model(const std::filesystem::path& folder, const ParameterList& parameters, const ModelConfig& config, const float* flat,
                   DType dtype, std::uint64_t max_shard_bytes) {
  std::filesystem::create_directories(folder);
  const std::vector<std::size_t> bounds = shard_bounds(parameters, dtype, max_shard_bytes);
  const std::size_t shards = bounds.size() - 1;
  std::vector<std::string> written;
  nlohmann::ordered_json map;
  for (std::size_t s = 0; s < shards; ++s) {
    written.push_back(shards == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards));
    write_shard(folder / written.back(), parameters, bounds[s], bounds[s + 1], flat, dtype);
    for (std::size_t i = bounds[s]; i < bounds[s + 1]; ++i) map[parameters.all()[i].name] = written.back();
  }
  if (shards > 1) {
    nlohmann::ordered_json index;
    index["metadata"]["total_size"] = std::uint64_t(parameters.parameter_count()) * file_bytes(dtype);
    index["weight_map"] = std::move(map);
    written.push_back("model.safetensors.index.json");
    write_file(folder / written.back(), index.dump(2) + "\n");
  }
  remove_older_weights(folder, written);
  write_hf_config(folder, config, dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "float16" : "float32");
}

}  // namespace plumb
