// The compute copy of a model's parameters: one flat buffer in the compute dtype, plus the matmul panels packed from it.
// Sampler and trainer read the same object. Whoever writes the flat values calls repack() before the next forward.
#pragma once
#include <filesystem>
#include <memory>

#include "kernels/core/buffer.h"
#include "kernels/core/context.h"
#include "kernels/matmul/matmul.h"
#include "model/config.h"

namespace plumb {

class Weights {
 public:
  Weights(const ModelConfig&, DType);

  const ModelConfig& config() const { return config_; }
  const ParameterList& parameters() const { return parameters_; }
  DType dtype() const { return dtype_; }
  void* flat() const { return flat_.data(); }  // (parameters().flat_size())

  Mat mat(const Parameter&) const;                // (rows, cols)
  ConstMat mat(Role role, int layer = -1) const;  // empty when there is none
  ConstMat qkv(int layer) const;                  // (q + 2 kv rows, D)
  ConstMat qkv_bias(int layer) const;             // (1, q + 2 kv) or empty
  ConstMat gate_up(int layer) const;              // (2 F, D)
  ConstMat gate_up_bias(int layer) const;         // (1, 2 F) or empty
  ConstMat lm_head() const;                       // (V, D): the embedding when tied
  PackedWeight packed_qkv(int layer) const;
  PackedWeight packed_gate_up(int layer) const;
  /// q, k, v, gate, up (separate matmuls), o, down, lm_head. k, v and up are empty where their first row is not at the start
  /// of a panel: the matmul then packs mat() itself.
  PackedWeight packed(Role role, int layer = -1) const;
  /// Packs every matmul operand again from the flat values.
  void repack(Context&);
  std::size_t memory_bytes() const;
  /// The same figure without building anything.
  static std::size_t memory_bytes(const ModelConfig&, DType);

 private:
  Mat rows_from(const Parameter& first, std::int64_t rows, std::int64_t cols) const;
  PackedWeight panel(int index, std::int64_t first, std::int64_t rows) const;

  ModelConfig config_;
  ParameterList parameters_;
  DType dtype_;
  Buffer flat_;
  std::vector<std::size_t> panel_offsets_;  // (4 layers + 1) bytes: qkv, o, gate_up, down of each layer, LM head
  Buffer panels_;
};

/// FP32 values of all parameters (flat_size), loaded from a Hugging Face folder (F32, BF16 or F16 tensors). Throws Error
/// naming the tensor when one is missing, superfluous or of the wrong shape. The tied head may be present if it is equal.
Buffer load_hf_parameters(const std::filesystem::path& folder, const ParameterList&, const ModelConfig&);
/// The same into a buffer that exists; one that held zeros where padding is keeps them.
void load_hf_parameters(const std::filesystem::path& folder, const ParameterList&, const ModelConfig&, Buffer& flat);
/// Normal(0, init_range) matrices, norms 1, biases 0; counter-based, element by element: independent of everything else.
Buffer random_parameters(const ParameterList&, const ModelConfig&, std::uint64_t seed);
/// The same into a buffer of zeros.
void random_parameters(const ParameterList&, const ModelConfig&, std::uint64_t seed, Buffer& flat);
/// Rounds FP32 values to the compute copy and repacks.
void set_weights(Context&, Weights&, const Buffer& master);
/// model.safetensors (sharded with an index above `max_shard_bytes`), config.json, generation_config.json. dtype: what
/// the values are rounded to; the file holds BF16, F16, or, for an e8 format and f32, F32. `flat` holds them in FP32. Written completely or
/// not at all, file by file.
void save_hf_model(const std::filesystem::path& folder, const ParameterList&, const ModelConfig&, const float* flat, DType dtype,
                   std::uint64_t max_shard_bytes = std::uint64_t(5) << 30);

}  // namespace plumb
