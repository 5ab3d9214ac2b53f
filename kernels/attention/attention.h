// Causal attention with grouped queries (GQA), packed sequences and a KV cache, one code path for prefill, decode and
// training: the result of a query row depends on its own query, keys and values only.
//   s = R?(R?(q.k) * scale)   (ScaleAt::scores), or (q*scale).k in FP32 (ScaleAt::query)
//   softmax over keys 0..pos in tiles of reductions.attention_kv_tile from absolute position 0 (running maximum)
//   normalised: P = R?(e / sum e), o = R?(P V);   flash: P = R?(e), o = R?((P V) * (1 / sum e))
// q.k is the matmul chain over head_dim, P V the chain over keys (pairs from absolute position 0), the sum of e 16 lanes.
// Sites attn.scores, attn.scaled, attn.probs, attn.out.
#pragma once
#include <cstdint>

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"
#include "kernels/numerics/numerics.h"

namespace plumb {

/// The keys (or values) of one sequence: positions [0, prefix_len) at prefix, the rest at own; row stride shared.
struct KvRows {
  const void* prefix = nullptr;  // row 0 = position 0; null when prefix_len == 0
  const void* own = nullptr;     // row 0 = position prefix_len
  std::int64_t prefix_len = 0;
  std::int64_t stride = 0;  // elements between positions
};

struct AttentionSequence {
  std::int64_t first_row = 0;  // of q and out
  std::int64_t rows = 0;       // queries
  std::int64_t first_pos = 0;  // absolute position of the first query; it sees keys 0..first_pos
  KvRows k;                    // row layout (kv_heads, head_dim)
  KvRows v;
};

struct AttentionForward {
  ConstMat q;  // (N, heads*head_dim)
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  DType kv_dtype = DType::bf16;
  const AttentionSequence* sequences = nullptr;
  std::int64_t n_sequences = 0;
  Mat out;                   // (N, heads*head_dim)
  float* row_max = nullptr;  // (N, heads) final running maximum; null: not wanted (saved for the backward)
  float* row_sum = nullptr;  // (N, heads) sum of e
};
void attention_forward(Context&, const AttentionForward&, const Numerics&, Sites);

/// Training layout only: every sequence starts at position 0 and its keys are rows first_row.. of k and v.
/// Gradients of kv heads sum over their query heads in head order. mirror: dP = R(dO V^T); softmax backward in FP32 and R;
/// times the scale and R; dQ = R(dS K), dK, dV per query head rounded, then summed with one rounding. fused: one rounding per output.
struct AttentionBackward {
  ConstMat d_out;                  // (N, heads*head_dim)
  ConstMat q;                      // (N, heads*head_dim)
  ConstMat k;                      // (N, kv_heads*head_dim)
  ConstMat v;                      // (N, kv_heads*head_dim)
  ConstMat out;                    // (N, heads*head_dim) the forward's output
  const float* row_max = nullptr;  // (N, heads)
  const float* row_sum = nullptr;  // (N, heads)
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  const AttentionSequence* sequences = nullptr;
  std::int64_t n_sequences = 0;
  Mat d_q;  // (N, heads*head_dim)
  Mat d_k;  // (N, kv_heads*head_dim)
  Mat d_v;  // (N, kv_heads*head_dim)
};
void attention_backward(Context&, const AttentionBackward&, const Numerics&, Sites, BackwardMode);

}  // namespace plumb
