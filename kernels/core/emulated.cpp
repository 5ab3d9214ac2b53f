#include "kernels/core/emulated.h"

#include "kernels/core/rows.h"

namespace plumb {

void round_memory(Context& ctx, const Mat& m, DType to) {
  ctx.parallel_for(m.rows, row_grain(m.cols), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      float* x = m.row<float>(r);
      for_lanes(0, m.cols, [&](std::int64_t i, auto n) { store_part(x + i, round_to(to, load_part(x + i, n)), n); });
    }
  });
}

}  // namespace plumb
