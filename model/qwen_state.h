// Inside of Qwen: the work memory, planned once, and what a forward and its backward share. Not for other rooms.
#pragma once
#include <memory>
#include <vector>

#include "model/qwen.h"

namespace plumb {

/// One block's activations for the rows of a batch. Without training only what the forward itself needs is there.
struct Activations {
  Mat delta_in;                 // (N, D) the previous block's output; empty in the first block
  Mat residual_in;              // (N, D) the stream before the block
  Mat input_stream;             // (N, D) stored stream after the input norm's add
  Mat input_sum;                // (N, D) that add as the norm read it: the stored stream itself, or FP32 beside it
  float* input_rstd = nullptr;  // (N)
  Mat normed;                   // (N, D)
  Mat qkv;                      // (N, q + 2 kv) before QK norm and rotation (rotated in place where the backward allows it)
  float* q_rstd = nullptr;      // (N, H) QK norm
  float* k_rstd = nullptr;      // (N, KV)
  Mat q;                        // (N, q) rotated
  Mat k;                        // (N, kv) rotated
  Mat v;                        // (N, kv)
  Mat attn;                     // (N, q)
  float* row_max = nullptr;     // (N, H) attention's softmax
  float* row_sum = nullptr;     // (N, H)
  Mat delta_mid;                // (N, D) attention's contribution
  Mat post_stream;              // (N, D) stored stream after the post-attention norm's add
  Mat post_sum;                 // (N, D)
  float* post_rstd = nullptr;   // (N)
  Mat post_normed;              // (N, D)
  Mat gate_up;                  // (N, 2 F)
  Mat activated;                // (N, F)
  Mat delta_out;                // (N, D) the MLP's contribution
};

/// All memory of a Qwen, max_rows rows each.
struct Work {
  Mat embedded;                            // (N, D)
  Mat delta;                               // (N, D) what a block adds
  std::vector<Activations> blocks;         // one per layer, or one for all (no training, or recompute)
  std::vector<Mat> kept_delta;             // (L) (N, D) recompute: the blocks' inputs; the first block's is `embedded`
  std::vector<Mat> kept_residual;          // (L) (N, D)
  Mat final_stream;                        // (N, D)
  Mat final_sum;                           // (N, D)
  float* final_rstd = nullptr;             // (N)
  Mat hidden;                              // (N, D) the result
  AttentionSequence* sequences = nullptr;  // (N)
  std::int32_t* cache_rows = nullptr;      // (N) where a row's keys and values go in the cache; -1: nowhere
  Mat d_stream;                            // (N, D) gradient of the stream, and of what was just added to it
  Mat d_embedded;                          // (N, D) f32 gradient of the embedded rows, where they are added up before any rounding
  Mat d_delta;                             // (N, D) the same as the gradient of a linear's BF16 output, where the stream is FP32
  Mat d_normed;                            // (N, D) gradient of a norm's output; FP32 where parts of it are added in FP32
  Mat d_branch;                            // (N, D) one consumer's part of it, where separate matmuls round apart
  Mat d_activated;                         // (N, F); shares memory with the next two
  Mat d_attn;                              // (N, q)
  Mat d_qkv;                               // (N, q + 2 kv)
  Mat d_k;                                 // (N, kv) f32, where the sum over a kv head's copies meets the rotation unrounded
};

struct QwenState {
  ModelConfig config;
  Numerics numerics;
  ModelExecution execution;
  std::int64_t max_rows = 0;
  std::int64_t max_positions = 0;
  bool training = false;
  RopeTable rope;
  Buffer memory;
  Work work;
  std::int64_t saved_rows = -1;  // rows of the forward whose activations are there; -1: none

  Sites sites(int layer, Place place) const { return numerics.sites(layer, config.layers, place); }
  Sites final_sites() const { return sites(config.layers - 1, Place::final_norm); }
  /// The activations of a layer, views of `rows` rows.
  Activations block(int layer, std::int64_t rows) const;
};

/// What the parts of one forward or backward are handed.
struct QwenRun {
  Context& ctx;
  QwenState& state;
  const Weights& weights;
  const Batch& batch;
  KvCache* cache = nullptr;
};

/// True when the value that the norm reads is the value that is stored: one buffer holds both.
bool norm_reads_stored(Sites);

/// Runs the allocations of a Qwen on an arena; a measuring arena gives the size.
Work plan_work(Arena&, const ModelConfig&, const Numerics&, const ModelExecution&, std::int64_t max_rows, bool training);

/// Checks the arguments and allocates everything, as Qwen's constructor says.
std::unique_ptr<QwenState> make_qwen_state(const ModelConfig&, const Numerics&, const ModelExecution&, std::int64_t max_rows,
                                           std::int64_t max_positions, bool training);

/// One block. Without `output` it stops before the down projection (what a recomputing backward needs).
void block_forward(const QwenRun&, int layer, const Activations&, bool output);

/// The norm behind the last block, whose activations are handed in; writes Work::hidden.
void final_norm_forward(const QwenRun&, const Activations& last);

/// Calls f(first, count) for every run of rows that belongs to no sequence (pad rows), in order.
template <class F>
void for_each_pad(const Batch& batch, F&& f) {
  std::int64_t next = 0;
  for (std::int64_t i = 0; i < batch.n_sequences; ++i) {
    const SequenceRows& s = batch.sequences[i];
    if (s.first_row > next) f(next, s.first_row - next);
    next = s.first_row + s.rows;
  }
  if (batch.rows > next) f(next, batch.rows - next);
}

}  // namespace plumb
