// The shape of a dense decoder (Qwen3, Qwen2/2.5, Llama) and its parameter list, the one place that names parameters.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace plumb {

enum class Family : std::uint8_t { qwen3, qwen2, llama };
const char* name_of(Family family);  // Hugging Face model_type

struct ModelConfig {
  Family family = Family::qwen3;
  int vocab_size = 0;
  int hidden_size = 0;        // D
  int intermediate_size = 0;  // F
  int layers = 0;             // L
  int heads = 0;              // H
  int kv_heads = 0;           // KV, divides H
  int head_dim = 0;           // not hidden_size / heads in Qwen3
  int max_positions = 0;
  float rms_eps = 1e-6f;
  double rope_theta = 10000;
  bool tied = false;      // the LM head is the embedding
  bool qk_norm = false;   // Qwen3
  bool qkv_bias = false;  // Qwen2, and Llama or Qwen3 with attention_bias (which then has o_bias too)
  bool o_bias = false;
  bool mlp_bias = false;
  double init_range = 0.02;
  std::vector<std::int32_t> eos_ids;
  std::optional<std::int32_t> bos_id;
  std::optional<std::int32_t> pad_id;

  int q_cols() const { return heads * head_dim; }
  int kv_cols() const { return kv_heads * head_dim; }
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

/// Reads config.json (and generation_config.json when it is there, which only adds eos/bos/pad ids).
/// Throws Error naming file, key and value for anything unsupported: architecture, rope type (cases.md 42: rope_theta at the
/// top level or inside rope_parameters, both and different is an error), activation, sliding window in use, head counts.
ModelConfig read_hf_config(const std::filesystem::path& folder);
/// Writes config.json and generation_config.json so that transformers loads the folder. `dtype` e.g. "bfloat16".
void write_hf_config(const std::filesystem::path& folder, const ModelConfig&, const std::string& dtype);
/// Throws Error naming the field when the shape makes no sense.
void validate(const ModelConfig&);

enum class Role : std::uint8_t {
  embedding,
  input_norm,
  q,
  k,
  v,
  q_bias,
  k_bias,
  v_bias,
  q_norm,
  k_norm,
  o,
  o_bias,
  post_attention_norm,
  gate,
  up,
  gate_bias,
  up_bias,
  down,
  down_bias,
  final_norm,
  lm_head
};

struct Parameter {
  std::string name;  // Hugging Face name
  Role role = Role::embedding;
  int layer = -1;         // -1: outside the layers
  std::int64_t rows = 0;  // a vector is one row
  std::int64_t cols = 0;
  std::int64_t offset = 0;  // first element in the flat arrays (weights, masters, gradients, moments)
  std::int64_t size() const { return rows * cols; }
};

/// All parameters in a fixed order over one flat index space. q, k, v rows lie next to each other, so do gate and up, and
/// their biases: a merged matmul is a view. Everything else starts at a multiple of 16 elements. Tied: no lm_head entry.
class ParameterList {
 public:
  explicit ParameterList(const ModelConfig&);
  const std::vector<Parameter>& all() const { return all_; }
  std::int64_t flat_size() const { return flat_size_; }    // elements, gaps included
  std::int64_t parameter_count() const { return count_; }  // elements, gaps excluded
  /// Null when the model has no such parameter.
  const Parameter* find(Role role, int layer = -1) const;
  const Parameter* find(const std::string& name) const;

 private:
  void add(Role role, int layer, std::int64_t rows, std::int64_t cols, std::string name, bool aligned = true);
  static std::size_t slot(Role role, int layer);
  std::vector<Parameter> all_;
  std::vector<int> index_;  // (layers + 1, roles) place in all_, or -1
  std::int64_t flat_size_ = 0;
  std::int64_t count_ = 0;
};

}  // namespace plumb
