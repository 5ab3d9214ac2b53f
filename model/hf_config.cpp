// config.json and generation_config.json of Hugging Face, both ways.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/core/error.h"
#include "model/config.h"
#include "model/files/files.h"

namespace plumb {
namespace {

using Json = nlohmann::json;

struct FamilyNames {
  Family family;
  const char* model_type;
  const char* architecture;
};
constexpr FamilyNames kFamilies[] = {{Family::qwen3, "qwen3", "Qwen3ForCausalLM"},
                                     {Family::qwen2, "qwen2", "Qwen2ForCausalLM"},
                                     {Family::llama, "llama", "LlamaForCausalLM"}};

std::string shown(const Json& value) { return value.dump(-1, ' ', true, Json::error_handler_t::replace); }

/// One JSON object whose complaints name the file and the key.
class Reader {
 public:
  Reader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    require(object_.is_object(), where_ + ": not a JSON object");
  }
  [[noreturn]] void fail(const char* key, const std::string& what) const { throw Error(fmt::format("{}: {}: {}", where_, key, what)); }
  const std::string& where() const { return where_; }

  /// Null when the key is absent or null.
  const Json* get(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  int integer(const char* key) const {
    const Json* value = get(key);
    if (value == nullptr) fail(key, "missing");
    return to_int(key, *value);
  }
  int integer(const char* key, int otherwise) const { return get(key) == nullptr ? otherwise : integer(key); }
  double number(const char* key, double otherwise) const {
    const Json* value = get(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) fail(key, fmt::format("{} is not a number", shown(*value)));
    return value->get<double>();
  }
  bool boolean(const char* key, bool otherwise) const {
    const Json* value = get(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) fail(key, fmt::format("{} is neither true nor false", shown(*value)));
    return value->get<bool>();
  }
  std::string text(const char* key, const std::string& otherwise) const {
    const Json* value = get(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) fail(key, fmt::format("{} is not a string", shown(*value)));
    return value->get<std::string>();
  }
  /// One id, a list of ids, or nothing.
  std::vector<std::int32_t> ids(const char* key) const {
    const Json* value = get(key);
    if (value == nullptr) return {};
    if (!value->is_array()) return {to_int(key, *value)};
    std::vector<std::int32_t> out;
    for (const Json& id : *value) out.push_back(to_int(key, id));
    return out;
  }

 private:
  int to_int(const char* key, const Json& value) const {
    if (!value.is_number_integer()) fail(key, fmt::format("{} is not a whole number", shown(value)));
    const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= 0x7FFFFFFFu
                                                 : value.get<std::int64_t>() >= -0x7FFFFFFF && value.get<std::int64_t>() <= 0x7FFFFFFF;
    if (!fits) fail(key, fmt::format("{} is out of range", shown(value)));
    return value.get<int>();
  }

  const Json& object_;
  std::string where_;
};

Family read_family(const Reader& in) {
  const FamilyNames* found = nullptr;
  if (const Json* names = in.get("architectures")) {
    if (!names->is_array() || names->size() != 1 || !names->front().is_string()) in.fail("architectures", "expected a list of one name");
    const auto name = names->front().get<std::string>();
    for (const FamilyNames& f : kFamilies)
      if (name == f.architecture) found = &f;
    if (found == nullptr) {
      in.fail("architectures",
              fmt::format("{} is not supported (Qwen3ForCausalLM, Qwen2ForCausalLM, LlamaForCausalLM are)", in_quotes(name)));
    }
  }
  const std::string type = in.text("model_type", found != nullptr ? found->model_type : "");
  if (type.empty()) in.fail("model_type", "missing, and so is architectures");
  for (const FamilyNames& f : kFamilies) {
    if (type != f.model_type) continue;
    if (found != nullptr && found != &f)
      in.fail("model_type", fmt::format("{} contradicts architectures ({})", in_quotes(type), found->architecture));
    return f.family;
  }
  in.fail("model_type", fmt::format("{} is not supported (qwen3, qwen2, llama are)", in_quotes(type)));
}

void require_plain_rope(const Reader& rope) {
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (type != "default") rope.fail("rope_type", fmt::format("{} is not supported (only \"default\" is)", in_quotes(type)));
  if (rope.number("partial_rotary_factor", 1) != 1) rope.fail("partial_rotary_factor", "only 1 is supported");
}

/// rope_theta is at the top level (transformers 4) or inside rope_parameters (transformers 5), or in both if equal.
double read_rope_theta(const Reader& in) {
  constexpr double kDefault = 10000;
  if (in.number("partial_rotary_factor", 1) != 1) in.fail("partial_rotary_factor", "only 1 is supported");
  if (const Json* scaling = in.get("rope_scaling")) require_plain_rope(Reader(*scaling, in.where() + ": rope_scaling"));
  const Json* parameters = in.get("rope_parameters");
  if (parameters == nullptr) return in.number("rope_theta", kDefault);
  const Reader inner(*parameters, in.where() + ": rope_parameters");
  require_plain_rope(inner);
  if (inner.get("rope_theta") == nullptr) return in.number("rope_theta", kDefault);
  const double theta = inner.number("rope_theta", kDefault);
  const double outer = in.number("rope_theta", theta);
  if (outer != theta) in.fail("rope_theta", fmt::format("{} at the top level, {} inside rope_parameters", outer, theta));
  return theta;
}

void refuse_unsupported(const Reader& in, Family family) {
  const std::string act = in.text("hidden_act", "silu");
  if (act != "silu") in.fail("hidden_act", fmt::format("{} is not supported (only \"silu\" is)", in_quotes(act)));
  if (in.get("quantization_config") != nullptr) in.fail("quantization_config", "quantised weights are not supported");
  // Qwen's configurations carry a window that use_sliding_window switches off.
  const bool window = family == Family::llama ? in.get("sliding_window") != nullptr : in.boolean("use_sliding_window", false);
  if (window) in.fail(family == Family::llama ? "sliding_window" : "use_sliding_window", "sliding-window attention is not supported");
  if (const Json* types = in.get("layer_types")) {
    if (!types->is_array()) in.fail("layer_types", "expected a list");
    for (const Json& type : *types)
      if (type != "full_attention") in.fail("layer_types", fmt::format("{} is not supported (only \"full_attention\" is)", shown(type)));
  }
}

/// Old Llama configurations write -1 for none.
std::optional<std::int32_t> optional_id(const Reader& in, const char* key) {
  const std::int32_t id = in.integer(key, -1);
  return id == -1 ? std::nullopt : std::optional(id);
}

void add_generation_ids(const std::filesystem::path& path, ModelConfig& config) {
  if (!std::filesystem::exists(path)) return;
  const Json json = read_json(path);
  const Reader in(json, path.string());
  for (std::int32_t id : in.ids("eos_token_id")) {
    if (std::find(config.eos_ids.begin(), config.eos_ids.end(), id) == config.eos_ids.end()) config.eos_ids.push_back(id);
  }
  if (!config.bos_id) config.bos_id = optional_id(in, "bos_token_id");
  if (!config.pad_id) config.pad_id = optional_id(in, "pad_token_id");
}

Json id_or_null(const std::optional<std::int32_t>& id) { return id ? Json(*id) : Json(nullptr); }

Json eos_json(const ModelConfig& c) {
  if (c.eos_ids.empty()) return nullptr;
  return c.eos_ids.size() == 1 ? Json(c.eos_ids.front()) : Json(c.eos_ids);
}

}  // namespace

ModelConfig read_hf_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  const Json json = read_json(path);
  const Reader in(json, path.string());
  ModelConfig c;
  c.family = read_family(in);
  refuse_unsupported(in, c.family);
  c.vocab_size = in.integer("vocab_size");
  c.hidden_size = in.integer("hidden_size");
  c.intermediate_size = in.integer("intermediate_size");
  c.layers = in.integer("num_hidden_layers");
  c.heads = in.integer("num_attention_heads");
  c.kv_heads = in.integer("num_key_value_heads", c.heads);
  if (in.get("head_dim") == nullptr && c.family != Family::qwen3 && (c.heads < 1 || c.hidden_size % c.heads != 0)) {
    in.fail("hidden_size",
            fmt::format("{} is not a multiple of num_attention_heads ({}), and head_dim is missing", c.hidden_size, c.heads));
  }
  constexpr int kQwen3HeadDim = 128;  // transformers' default for Qwen3, whatever the hidden size
  c.head_dim = in.get("head_dim") != nullptr ? in.integer("head_dim") : c.family == Family::qwen3 ? kQwen3HeadDim : c.hidden_size / c.heads;
  c.max_positions = in.integer("max_position_embeddings");
  c.rms_eps = float(in.number("rms_norm_eps", 1e-6));
  c.rope_theta = read_rope_theta(in);
  c.tied = in.boolean("tie_word_embeddings", false);
  c.qk_norm = c.family == Family::qwen3;
  const bool attention_bias = in.boolean("attention_bias", false);
  c.qkv_bias = c.family == Family::qwen2 || attention_bias;
  c.o_bias = c.family != Family::qwen2 && attention_bias;
  c.mlp_bias = c.family == Family::llama && in.boolean("mlp_bias", false);
  c.init_range = in.number("initializer_range", 0.02);
  c.eos_ids = in.ids("eos_token_id");
  c.bos_id = optional_id(in, "bos_token_id");
  c.pad_id = optional_id(in, "pad_token_id");
  add_generation_ids(folder / "generation_config.json", c);
  try {
    validate(c);
  } catch (const Error& e) {
    throw Error(path.string() + ": " + e.what());
  }
  return c;
}

void write_hf_config(const std::filesystem::path& folder, const ModelConfig& c, const std::string& dtype) {
  const FamilyNames& names =
      *std::find_if(std::begin(kFamilies), std::end(kFamilies), [&](const FamilyNames& f) { return f.family == c.family; });
  nlohmann::ordered_json json;
  json["architectures"] = {names.architecture};
  json["model_type"] = names.model_type;
  json["vocab_size"] = c.vocab_size;
  json["hidden_size"] = c.hidden_size;
  json["intermediate_size"] = c.intermediate_size;
  json["num_hidden_layers"] = c.layers;
  json["num_attention_heads"] = c.heads;
  json["num_key_value_heads"] = c.kv_heads;
  json["head_dim"] = c.head_dim;
  json["max_position_embeddings"] = c.max_positions;
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = std::stod(fmt::format("{}", c.rms_eps));  // the shortest decimal of the float
  json["rope_theta"] = c.rope_theta;                               // transformers 4 reads this one, transformers 5 the next
  json["rope_parameters"] = {{"rope_theta", c.rope_theta}, {"rope_type", "default"}};
  json["tie_word_embeddings"] = c.tied;
  json["attention_bias"] = c.qkv_bias;
  json["attention_dropout"] = 0.0;
  if (c.family == Family::llama) json["mlp_bias"] = c.mlp_bias;
  if (c.family != Family::llama) json["use_sliding_window"] = false;
  json["initializer_range"] = c.init_range;
  json["bos_token_id"] = id_or_null(c.bos_id);
  json["eos_token_id"] = eos_json(c);
  json["pad_token_id"] = id_or_null(c.pad_id);
  json["use_cache"] = true;
  json["dtype"] = dtype;
  json["torch_dtype"] = dtype;  // the same key's name in transformers 4
  write_file(folder / "config.json", json.dump(2) + "\n");

  nlohmann::ordered_json generation;
  generation["bos_token_id"] = id_or_null(c.bos_id);
  generation["eos_token_id"] = eos_json(c);
  generation["pad_token_id"] = id_or_null(c.pad_id);
  write_file(folder / "generation_config.json", generation.dump(2) + "\n");
}

}  // namespace plumb
