// LM head + temperature + log-softmax of the target + entropy, by chunks of rows and vocabulary: no (N, V) buffer.
//   l = R?(h W^T) (lm_head.logits); z = R?(l / T) (logits.temperature); logp = z[target] - lse(z); H = -sum p log p
// lse: exact maximum over V, then 16 lanes of exp(z - max) over all of V in order. The chunks are Execution: an even number of
// rows (rounded up), by default as many as 4 MiB hold, but never so few that streaming the head decides the speed.
// Source: the derivatives are d logp/dz_v = [v = target] - p_v and dH/dz_v = -p_v (log p_v + H).
#pragma once
#include <cstdint>

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"
#include "kernels/matmul/matmul.h"
#include "kernels/numerics/numerics.h"

namespace plumb {

struct LogprobForward {
  ConstMat hidden;      // (N, D) the final norm's output
  ConstMat weight;      // (V, D) LM head
  PackedWeight packed;  // the same, packed
  MatmulOrder matmul_order = MatmulOrder::pair_swapped;
  const std::int32_t* targets = nullptr;  // (N); negative: row skipped, outputs 0
  float temperature = 1.0f;
  std::int64_t row_chunk = 0;      // rows whose logits are held at once; 0: a default
  float* logprob = nullptr;        // (N)
  float* entropy = nullptr;        // (N); null: not wanted
  std::int32_t* argmax = nullptr;  // (N) lowest index of the largest z; null: not wanted
  Mat logits;                      // (N, V) the logits before the temperature; empty: not kept (score keeps them)
};
void logprob_forward(Context&, const LogprobForward&, Sites);

/// d_hidden = sum_v dl_v W_v and d_weight += dl^T h, with dl = R?(R?(d_logprob*(onehot - p) + d_entropy*dH) / T), p = exp(z - lse).
/// The inner rounding is logits.temperature's (T != 1); the outer one rounds the gradient of the logits to BF16 on entry
/// whenever the hidden states are BF16, with lm_head.logits `b` as autograd does and with `f` as the fused backward's one
/// rounding (its two products are BF16 x BF16). Rows whose two upstream gradients are 0 give exactly 0.
struct LogprobBackward {
  ConstMat hidden;  // (N, D)
  ConstMat weight;  // (V, D)
  PackedWeight packed;
  MatmulOrder matmul_order = MatmulOrder::pair_swapped;  // of the logits and of d_hidden; d_weight: weight_gradient_order
  const std::int32_t* targets = nullptr;                 // (N); negative: gradient exactly 0
  float temperature = 1.0f;
  std::int64_t row_chunk = 0;
  const float* d_logprob = nullptr;  // (N)
  const float* d_entropy = nullptr;  // (N); null: zero
  Mat d_hidden;                      // (N, D)
  Mat d_weight;                      // (V, D) f32, added to (one chain over the rows in order, carried); empty: frozen
};
void logprob_backward(Context&, const LogprobBackward&, Sites);

/// The same log-prob and entropy from logits that are at hand (the sampler's): equal bit for bit to logprob_forward.
struct RowLogprob {
  float max = 0;      // of z
  float log_sum = 0;  // log sum exp(z - max)
};
/// z = R?(l/T) for one row of V logits (f32 or bf16 storage) written to z (V floats); returns its statistics.
RowLogprob row_log_softmax(const void* logits, DType dtype, std::int64_t vocab, float temperature, Sites, float* z);
/// z of one token of such a row.
float scaled_logit(const void* logits, DType dtype, std::int64_t token, float temperature, Sites sites);
inline float logprob_of(const RowLogprob& s, float z) { return (z - s.max) - s.log_sum; }

}  // namespace plumb
