// The decoder: one forward for sampler and trainer, and its backward. qwen_forward.cpp reads as the list of formulas.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/core/buffer.h"
#include "kernels/core/context.h"
#include "kernels/numerics/numerics.h"
#include "kernels/rope/rope.h"
#include "model/config.h"
#include "model/kv_cache.h"
#include "model/weights.h"

namespace plumb {

/// Consecutive rows of one sequence within a batch.
struct SequenceRows {
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t first_pos = 0;      // absolute position of the first row; 0 when there is no cache
  // Only with a KvCache: positions [0, prefix_len) are at cache rows kv_prefix.., positions from prefix_len on at kv_own..
  std::int64_t kv_prefix = 0;
  std::int64_t prefix_len = 0;
  std::int64_t kv_own = 0;
};

/// Packed tokens. In training every sequence starts at an even row (an odd one is followed by one pad row: token -1,
/// position 0), so that weight gradients are the same chain however sequences are packed. Pad rows never reach a result.
struct Batch {
  std::int64_t rows = 0;                     // N
  const std::int32_t* tokens = nullptr;      // (N); -1: pad row
  const std::int32_t* positions = nullptr;   // (N)
  const SequenceRows* sequences = nullptr;
  std::int64_t n_sequences = 0;
};

/// How the model runs; no bit depends on any of it.
struct ModelExecution {
  bool merged_matmuls = true;  // one matmul for q, k, v and one for gate, up
  bool recompute = false;      // keep only each block's input for the backward and run its forward again
};

/// Activations that the backward reads, for up to max_rows rows. Sizes depend on config, numerics and execution.
struct LayerSaved {
  Mat input_sum;                    // (N, D) input of the input norm as the norm read it (resid sites)
  float* input_rstd = nullptr;      // (N)
  Mat normed;                       // (N, D) input norm's output
  Mat qkv;                          // (N, q + 2 kv) before QK norm and rotation
  float* q_rstd = nullptr;          // (N, H) QK norm
  float* k_rstd = nullptr;          // (N, KV)
  Mat q;                            // (N, q) rotated
  Mat k;                            // (N, kv) rotated
  float* row_max = nullptr;         // (N, H) attention
  float* row_sum = nullptr;         // (N, H)
  Mat attn;                         // (N, q) attention's output
  Mat post_sum;                     // (N, D) input of the post-attention norm
  float* post_rstd = nullptr;       // (N)
  Mat post_normed;                  // (N, D)
  Mat gate_up;                      // (N, 2 F)
  Mat activated;                    // (N, F) SwiGLU's output
};

struct Saved {
  std::vector<LayerSaved> layers;
  Mat final_sum;                    // (N, D)
  float* final_rstd = nullptr;      // (N)
};

/// FP32 gradients over the flat index space of the parameters. Tied models in `mirror` mode keep the head's apart.
struct Gradients {
  float* flat = nullptr;            // (flat_size) added to
  Mat lm_head;                      // (V, D) f32: where the head's gradient goes (inside flat, or apart)
  std::vector<char> frozen;         // by index in ParameterList::all(): 1 = no gradient wanted; empty: all wanted
};

class Qwen {
 public:
  /// max_rows: the largest batch; max_positions: the longest sequence. Allocates all work memory (and, with `training`,
  /// the saved activations and the backward's) here and nothing later.
  Qwen(const ModelConfig&, const Numerics&, const ModelExecution&, std::int64_t max_rows, std::int64_t max_positions, bool training);
  ~Qwen();
  Qwen(const Qwen&) = delete;
  Qwen& operator=(const Qwen&) = delete;

  const ModelConfig& config() const;
  const Numerics& numerics() const;
  /// Embedding .. final norm. Returns (N, D), valid until the next forward. With a cache, keys and values are written there and
  /// read from there; without one every sequence starts at position 0. `save` keeps what backward() needs (training only).
  ConstMat forward(Context&, const Weights&, const Batch&, KvCache* cache, bool save);
  /// d_hidden: (N, D) gradient of forward()'s result, in the compute dtype; overwritten. Adds to the gradients.
  void backward(Context&, const Weights&, const Batch&, Mat d_hidden, Gradients&);
  /// The sites of the head (lm_head.logits, logits.temperature).
  Sites head_sites() const;
  std::size_t memory_bytes() const;
  /// The same figure without building anything.
  static std::size_t memory_bytes(const ModelConfig&, const Numerics&, const ModelExecution&, std::int64_t max_rows,
                                  std::int64_t max_positions, bool training);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace plumb
