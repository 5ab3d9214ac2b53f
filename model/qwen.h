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
  std::int64_t first_pos = 0;  // absolute position of the first row; 0 when there is no cache
  // Only with a KvCache: positions [0, prefix_len) are at cache rows kv_prefix.., positions from prefix_len on at kv_own..
  std::int64_t kv_prefix = 0;
  std::int64_t prefix_len = 0;
  std::int64_t kv_own = 0;
};

/// Packed tokens. In training every sequence starts at an even row (an odd one is followed by one pad row: token -1,
/// position 0), so that weight gradients are the same chain however sequences are packed. Pad rows never reach a result.
struct Batch {
  std::int64_t rows = 0;                    // N
  const std::int32_t* tokens = nullptr;     // (N); -1: pad row
  const std::int32_t* positions = nullptr;  // (N)
  const SequenceRows* sequences = nullptr;
  std::int64_t n_sequences = 0;
};

/// How the model runs; no bit depends on any of it.
struct ModelExecution {
  bool merged_matmuls = true;  // one matmul for q, k, v and one for gate, up
  bool recompute = false;      // keep only each block's input for the backward and run its forward again
};

/// FP32 gradients over the flat index space of the parameters, added to by every backward of a step. The head of a tied model
/// has a gradient of its own until finish_gradients(): each is one chain over the step's rows, whatever the micro-batches.
struct Gradients {
  float* flat = nullptr;     // (flat_size)
  Mat lm_head;               // (V, D) f32: inside flat, or apart when the model is tied
  std::vector<char> frozen;  // by index in ParameterList::all(): 1 = no gradient wanted; empty: all wanted
};

/// Bytes of the tied head's own gradient: (V, D) f32 when tied, else 0.
std::size_t tied_head_gradient_bytes(const ModelConfig&);
/// Views over flat (flat_size floats) and, for a tied model, tied_head (tied_head_gradient_bytes).
Gradients make_gradients(const ParameterList&, const ModelConfig&, const Buffer& flat, const Buffer& tied_head);
/// Zeroes both buffers: the start of a step.
void clear_gradients(Context&, const ParameterList&, const ModelConfig&, Gradients&);
/// The end of a step: adds the tied head's gradient to the embedding's (and clears it), and rounds what `mirror` rounds:
/// each parameter's gradient once, R(R(head) + embedding) when tied. After it flat holds the gradients of the parameters.
void finish_gradients(Context&, const ParameterList&, const ModelConfig&, const Numerics&, Gradients&);

struct QwenState;  // qwen_state.h: inside of this class

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
  /// Embedding .. final norm. Returns (N, D) in the compute dtype, valid until the next forward. With a cache, keys and values
  /// are written there (from prefix_len on: first_pos >= prefix_len) and read from there; without one every sequence starts
  /// at position 0. `save` keeps what backward() needs (training only, no cache).
  ConstMat forward(Context&, const Weights&, const Batch&, KvCache* cache, bool save);
  /// The backward of the last forward(), which must have been one with `save` of the same batch.
  /// d_hidden: (N, D) gradient of forward()'s result, in the compute dtype, exactly 0 in pad rows; overwritten.
  /// Adds to the gradients.
  void backward(Context&, const Weights&, const Batch&, Mat d_hidden, Gradients&);
  /// The sites of the head (lm_head.logits, logits.temperature).
  Sites head_sites() const;
  std::size_t memory_bytes() const;
  /// The same figure without building anything.
  static std::size_t memory_bytes(const ModelConfig&, const Numerics&, const ModelExecution&, std::int64_t max_rows,
                                  std::int64_t max_positions, bool training);

 private:
  std::unique_ptr<QwenState> state_;
};

}  // namespace plumb
