// Test only: embedding rows and their gradients element by element.
#pragma once
#include "kernels/core/testing.h"
#include "kernels/embedding/embedding.h"

namespace plumb::ref {

inline void embedding_forward(const EmbeddingForward& a, Sites sites) {
  for (std::int64_t r = 0; r < a.out.rows; ++r) {
    for (std::int64_t c = 0; c < a.out.cols; ++c) {
      const float x = a.tokens[r] < 0 ? 0.0f : test::get(a.table, a.tokens[r], c);
      test::set(a.out, r, c, sites.rounded(Site::embedding) ? round_bf16(x) : x);
    }
  }
}

inline void embedding_backward(const EmbeddingBackward& a, BackwardMode mode) {
  for (std::int64_t r = 0; r < a.d_out.rows; ++r) {
    if (a.tokens[r] < 0) continue;
    for (std::int64_t c = 0; c < a.d_out.cols; ++c) {
      const float sum = test::get(a.d_table, a.tokens[r], c) + test::get(a.d_out, r, c);
      test::set(a.d_table, a.tokens[r], c, mode == BackwardMode::mirror ? round_bf16(sum) : sum);
    }
  }
}

}  // namespace plumb::ref
