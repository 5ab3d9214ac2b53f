#include "kernels/embedding/embedding.h"

#include <string>

#include "kernels/core/emulated.h"
#include "kernels/core/error.h"
#include "kernels/embedding/embedding_cpu.h"

namespace plumb {

namespace {

void require_tokens(const std::int32_t* tokens, std::int64_t n, std::int64_t vocab) {
  require(tokens != nullptr || n == 0, "internal: embedding: tokens are needed");
  for (std::int64_t i = 0; i < n; ++i) {
    if (tokens[i] < vocab) continue;
    throw Error("token " + std::to_string(tokens[i]) + " at row " + std::to_string(i) + " is outside the vocabulary of " +
                std::to_string(vocab));
  }
}

}  // namespace

void embedding_forward(Context& ctx, const EmbeddingForward& a, Sites sites) {
  require(a.table.cols == a.out.cols, "internal: embedding_forward: table and out must have the same number of columns");
  require_tokens(a.tokens, a.out.rows, a.table.rows);
  cpu::embedding_forward(ctx, a, sites);
  round_emulated(ctx, a.out);
  if (a.out.dtype == DType::f32 && sites.rounded(Site::embedding) && is_emulated(sites.to)) round_memory(ctx, a.out, sites.to);
}

void embedding_backward(Context& ctx, const EmbeddingBackward& a, BackwardMode mode) {
  require(a.d_table.cols == a.d_out.cols, "internal: embedding_backward: d_table and d_out must have the same number of columns");
  require(a.d_table.dtype == DType::f32, "internal: embedding_backward: d_table must be f32");
  require_tokens(a.tokens, a.d_out.rows, a.d_table.rows);
  cpu::embedding_backward(ctx, a, mode);
}

}  // namespace plumb
