// Causal attention with grouped queries (GQA), packed sequences and a KV cache, one code path for prefill, decode and
// training: the result of a query row depends on its own query, keys and values only.
//   s = R?(R?(q.k) * scale)   (ScaleAt::scores), or (q*scale).k in FP32 (ScaleAt::query)
//   softmax over keys 0..pos in tiles of reductions.attention_kv_tile from absolute position 0 (running maximum)
//   normalised: P = R?(e * (1 / sum e)), o = R?(P V);   flash: P = R?(e), o = R?((P V) * (1 / sum e))
// reductions.attention_*: q.k is one chain over head_dim and P V one over keys, `pair_swapped` (pairs from absolute position 0, an
// odd last key paired with a zero) or `natural`; the sum of e 16 lanes over the keys of a tile (`lanes16_tail`: those at the
// sequence's end one by one); exp as attention_exp says. Between tiles: sum = fma(sum, exp(m - m'), tile's sum), and the chain of
// o goes on from o * exp(m - m'), with the exact exp. kv_split: a query's tiles in that many consecutive ranges, as equal as
// whole tiles allow, the last ones shorter or missing; each starts from nothing, and neighbours merge in a binary tree,
// o = fma(o, exp(m - m'), o2 * exp(m2 - m')) and so the sum.
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

/// Each product's gradients have its order (attention_qk: dQ and dK; attention_pv: dP and dV), the probabilities its exp.
/// Training layout only: every sequence starts at position 0 and its keys are rows first_row.. of k and v.
/// P = e * (1 / sum e) from the saved maximum and sum, dP = dO V^T, dS = (dP - D) P.
/// fused: FP32 inside, D = <dO, O>, one rounding per output; dK and dV are chains over the queries of the group's heads in
/// order. mirror: D = sum dP P (16 lanes); dP rounded at attn.probs, dS at attn.scaled (not in one_graph) and after the scale at
/// attn.scores, P for dV at attn.probs; dQ, and dK and dV of each query head, rounded to the type of k and v, the heads then summed in FP32
/// in order and stored in the type of d_k and d_v.
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
