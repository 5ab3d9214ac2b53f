// Token embedding: out[n] = R?(table[token[n]]) (site embedding).
#pragma once
#include <cstdint>

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"
#include "kernels/numerics/numerics.h"

namespace plumb {

struct EmbeddingForward {
  ConstMat table;                        // (V, D)
  const std::int32_t* tokens = nullptr;  // (N); a negative token is a pad row and gives zeros
  Mat out;                               // (N, D)
};
void embedding_forward(Context&, const EmbeddingForward&, Sites);

/// d_table[token[n]] += d_out[n], one by one in row order; mirror: each sum is rounded.
struct EmbeddingBackward {
  ConstMat d_out;                        // (N, D)
  const std::int32_t* tokens = nullptr;  // (N); negative: skipped
  Mat d_table;                           // (V, D) f32, added to
  DType round_to = DType::bf16;          // mirror: what each sum is rounded to; f32: not at all
};
void embedding_backward(Context&, const EmbeddingBackward&, BackwardMode);

}  // namespace plumb
