#include "kernels/embedding/embedding_cpu.h"

#include "kernels/core/rows.h"
#include "kernels/embedding/embedding_math.h"

namespace plumb::cpu {

void embedding_forward(Context& ctx, const EmbeddingForward& a, Sites sites) {
  const bool rounded = sites.rounded(Site::embedding) && sites.to == DType::bf16;
  ctx.parallel_for(a.out.rows, row_grain(a.out.cols), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      const RowOut out(a.out, r);
      const bool pad = a.tokens[r] < 0;
      const RowIn in(a.table, pad ? 0 : a.tokens[r]);
      for_lanes(0, a.out.cols,
                [&](std::int64_t i, auto n) { out.store(i, pad ? F32x16(0.0f) : embedding_step(rounded, in.load(i, n)), n); });
    }
  });
}

// Threads split the columns: the rows of one token are added in row order by one thread.
void embedding_backward(Context& ctx, const EmbeddingBackward& a, BackwardMode mode) {
  const std::int64_t cols = a.d_out.cols;
  const std::int64_t groups = (cols + kLanes - 1) / kLanes;
  const bool rounded = mode == BackwardMode::mirror && a.round_to == DType::bf16;
  const bool emulated = mode == BackwardMode::mirror && is_emulated(a.round_to);
  ctx.parallel_for(groups, row_grain(a.d_out.rows * kLanes), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = 0; r < a.d_out.rows; ++r) {
      if (a.tokens[r] < 0) continue;
      const RowIn d(a.d_out, r);
      float* sum = a.d_table.row<float>(a.tokens[r]);
      if (emulated) {
        for_lanes(begin * kLanes, std::min(end * kLanes, cols), [&](std::int64_t i, auto n) {
          store_part(sum + i, embedding_gradient_step(true, load_part(sum + i, n), d.load(i, n), a.round_to), n);
        });
        continue;
      }
      for_lanes(begin * kLanes, std::min(end * kLanes, cols), [&](std::int64_t i, auto n) {
        store_part(sum + i, embedding_gradient_step(rounded, load_part(sum + i, n), d.load(i, n)), n);
      });
    }
  });
}

}  // namespace plumb::cpu
