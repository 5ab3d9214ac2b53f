// Blocking of the orders that are not the pair-swapped chain. A rectangle of C is computed into FP32 partial sums in scratch,
// step by step; at its end they are folded, and bias and rounding follow. Threads divide outputs only.
// Scratch slots: matmul_a (blocks of A of all steps), matmul_b (panels of B of one step), matmul_c (partial sums).
#include "kernels/matmul/matmul_orders.h"

#include <cstring>
#include <utility>

#include "kernels/core/lanes.h"
#include "kernels/matmul/matmul_kernels.h"

namespace plumb::matmul_detail {
namespace {

constexpr std::int64_t kBlocksBytes = 768 << 10;  // packed A at a time
constexpr std::int64_t kPanels = 4;               // panels of B, and of the sums, at a time
constexpr std::int64_t kWidth = kPanels * kPanelCols;
constexpr std::int64_t kSmallProduct = 100'000;  // multiply-adds below which a second thread does not pay

struct Plan {
  const Matmul& m;
  MatmulOrder order;
  const Kernels& kernels;
  DType panel;
  std::int64_t depth;
  bool exchanged;  // the halves of every pair of k are exchanged where they are packed
};

Plan make_plan(Isa isa, const Matmul& m, MatmulOrder order) {
  const DType panel = m.packed ? m.packed.dtype : m.b.mat.dtype;
  return {.m = m,
          .order = order,
          .kernels = kernels_for(isa, m.a.mat.dtype, panel, m.c.rows),
          .panel = panel,
          .depth = m.a.depth(),
          .exchanged = order == MatmulOrder::natural};
}

/// Exchanges the elements of every pair of k: halves of dwords (bf16), or rows of `width` floats (f32).
void exchange_pairs(void* data, DType layout, int width, std::int64_t pairs) {
  auto* words = static_cast<std::uint32_t*>(data);
  if (layout == DType::bf16) {
    for (std::int64_t i = 0; i < pairs * width; ++i) words[i] = words[i] << 16 | words[i] >> 16;
    return;
  }
  for (std::int64_t p = 0; p < pairs; ++p, words += 2 * width) std::swap_ranges(words, words + width, words + width);
}

/// A block of rows and panels of C while it is computed.
struct Rectangle {
  Range rows;
  Range cols;  // begins at a panel
  Blocks blocks;
  char* a;
  float* sums;  // (partial, rows, kWidth)
  float* sum(int partial, std::int64_t row) const { return sums + (partial * rows.size() + row) * kWidth; }
};

std::int64_t a_bytes(const Plan& plan) { return std::int64_t(bytes_of(plan.kernels.a)); }

/// The blocks of A of one step begin here.
char* step_of_a(const Plan& plan, const Rectangle& t, const DepthStep& step) { return t.a + t.rows.size() * step.k0 * a_bytes(plan); }

void pack_rows(const Plan& plan, const Rectangle& t) {
  for_each_step(plan.order, plan.depth, [&](const DepthStep& step) {
    const std::int64_t pairs = (step.k1 - step.k0 + 1) / 2;
    for (std::int64_t b = 0; b < t.blocks.count(); ++b) {
      const std::int64_t row = t.blocks.first_row(b);
      const int rows = t.blocks.rows_of(b);
      char* block = step_of_a(plan, t, step) + row * pairs * 2 * a_bytes(plan);
      pack_block(plan.m.a, t.rows.begin + row, rows, step.k0, step.k1, plan.kernels.a, block);
      if (plan.exchanged) exchange_pairs(block, plan.kernels.a, rows, pairs);
    }
  });
}

struct Panels {
  const char* data;
  std::int64_t stride;
};

/// The panels of one step: the packed weight's own where they can be read as they are, else in scratch.
Panels panels_of(const Plan& plan, const Rectangle& t, const DepthStep& step, char* scratch) {
  const std::int64_t bytes = panel_bytes(step.k1 - step.k0, plan.panel);
  const std::int64_t count = ceil_div(t.cols.size(), kPanelCols);
  if (plan.m.packed) {
    const std::int64_t stride = panel_bytes(plan.depth, plan.panel);
    const char* packed =
        static_cast<const char*>(plan.m.packed.panels) + t.cols.begin / kPanelCols * stride + step.k0 / 2 * pair_bytes(plan.panel);
    if (!plan.exchanged) return {packed, stride};
    for (std::int64_t p = 0; p < count; ++p) std::memcpy(scratch + p * bytes, packed + p * stride, std::size_t(bytes));
  } else {
    pack_panels(plan.m.b, t.cols.begin, t.cols.size(), step.k0, step.k1, scratch, bytes);
  }
  if (plan.exchanged) exchange_pairs(scratch, plan.panel, kPanelCols, count * (bytes / pair_bytes(plan.panel)));
  return {scratch, bytes};
}

void add_rows(float* to, const float* from, std::int64_t from_stride, int rows, int cols) {
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < cols; j += kLanes) store16(to + i * kWidth + j, load16(to + i * kWidth + j) + load16(from + i * from_stride + j));
}

void run_step(const Plan& plan, const Rectangle& t, const DepthStep& step, const Panels& panels) {
  const Kernels& k = plan.kernels;
  const std::int64_t groups_in_all = ceil_div(t.cols.size(), kGroupCols);
  int groups = t.blocks.count() == 1 ? k.stream_groups[t.rows.size()] : k.groups;
  const bool continued = step.kind == StepKind::resume || (plan.m.accumulate && step.partial == 0 && step.k0 == 0);
  alignas(64) float chain[kMaxTileRows * kPanelCols];
  Tile tile{.panel_stride = panels.stride, .pairs = (step.k1 - step.k0 + 1) / 2, .from_zero = !continued};
  for (std::int64_t g = 0; g < groups_in_all; g += groups) {
    while (groups > groups_in_all - g) groups /= 2;
    tile.b = panels.data + group_offset(g, panels.stride);
    ReadAhead ahead(panels.data, panels.stride, plan.panel, g, groups, t.blocks.count(), tile.pairs);
    for (std::int64_t b = 0; b < t.blocks.count(); ++b) {
      const std::int64_t row = t.blocks.first_row(b);
      const int rows = t.blocks.rows_of(b);
      float* sums = t.sum(step.partial, row) + g * kGroupCols;
      tile.a = step_of_a(plan, t, step) + row * tile.pairs * 2 * a_bytes(plan);
      tile.c = step.kind == StepKind::add ? chain : sums;
      tile.ldc = step.kind == StepKind::add ? kPanelCols : kWidth;
      ahead.use(k, rows, groups, tile)(tile);
      if (step.kind == StepKind::add) add_rows(sums, chain, kPanelCols, rows, groups * kGroupCols);
    }
  }
}

/// Chains that no step will start are +0; the first one continues C where the product accumulates.
void begin_sums(const Plan& plan, const Rectangle& t) {
  const bool short_depth = (plan.depth + 1) / 2 < partial_sums(plan.order);
  if (short_depth) std::memset(t.sums, 0, std::size_t(partial_sums(plan.order) * t.rows.size() * kWidth) * sizeof(float));
  if (!plan.m.accumulate) return;
  for (std::int64_t r = 0; r < t.rows.size(); ++r) {
    std::memcpy(t.sum(0, r), plan.m.c.row<float>(t.rows.begin + r) + t.cols.begin, std::size_t(t.cols.size()) * sizeof(float));
  }
}

F32x16 load_any(const ConstMat& m, std::int64_t row, std::int64_t col, int n) {
  return m.dtype == DType::f32 ? load_part(m.row<float>(row) + col, n) : load_part(m.row<BF16>(row) + col, n);
}

/// Folds the partial sums, adds the bias, rounds and stores.
void finish(const Plan& plan, const Rectangle& t) {
  const Matmul& m = plan.m;
  const int partials = partial_sums(plan.order);
  const int width = int(ceil_div(t.cols.size(), kGroupCols) * kGroupCols);
  for (int step = 1; step < partials; step *= 2)
    for (int p = 0; p < partials; p += 2 * step) add_rows(t.sum(p, 0), t.sum(p + step, 0), kWidth, int(t.rows.size()), width);
  for (std::int64_t r = 0; r < t.rows.size(); ++r) {
    const std::int64_t row = t.rows.begin + r;
    for (std::int64_t j = 0; j < t.cols.size(); j += kLanes) {
      const int n = int(std::min<std::int64_t>(kLanes, t.cols.size() - j));
      const std::int64_t col = t.cols.begin + j;
      F32x16 x = load16(t.sum(0, r) + j);
      if (m.bias) x = x + load_any(m.bias, 0, col, n);
      if (m.c.dtype == DType::bf16) {
        store_part(m.c.row<BF16>(row) + col, x, n);
      } else {
        store_part(m.c.row<float>(row) + col, round_if(m.round, x), n);
      }
    }
  }
}

/// Rows and columns of C (from a panel's first) that one thread computes alone.
void run_share(Context& ctx, int thread, const Plan& plan, Range rows, Range cols) {
  if (rows.size() <= 0 || cols.size() <= 0) return;
  FtzScope ftz;
  const std::int64_t padded = plan.depth + plan.depth % 2;
  const std::int64_t tall = plan.kernels.rows;
  const std::int64_t fit = std::max(tall, kBlocksBytes / std::max<std::int64_t>(padded * a_bytes(plan), 1) / tall * tall);
  const std::int64_t most = std::min(rows.size(), fit);
  auto* a = ctx.scratch(thread, ScratchSlot::matmul_a).get<char>(most * padded * a_bytes(plan) + kBlockSlack);
  char* b = nullptr;
  if (!plan.m.packed || plan.exchanged) {
    b = ctx.scratch(thread, ScratchSlot::matmul_b).get<char>(kPanels * panel_bytes(std::min(plan.depth, kStepDepth), plan.panel));
  }
  auto* sums = ctx.scratch(thread, ScratchSlot::matmul_c).get<float>(partial_sums(plan.order) * most * kWidth);
  for (std::int64_t r = rows.begin; r < rows.end; r += most) {
    Rectangle t{.rows = {r, std::min(rows.end, r + most)}, .a = a, .sums = sums};
    t.blocks = Blocks(t.rows.size(), ceil_div(t.rows.size(), tall));
    pack_rows(plan, t);
    for (std::int64_t c = cols.begin; c < cols.end; c += kWidth) {
      t.cols = {c, std::min(cols.end, c + kWidth)};
      begin_sums(plan, t);
      for_each_step(plan.order, plan.depth, [&](const DepthStep& step) { run_step(plan, t, step, panels_of(plan, t, step, b)); });
      finish(plan, t);
    }
  }
}

}  // namespace

void matmul_ordered_on_thread(Context& ctx, int thread, const Matmul& m, MatmulOrder order) {
  run_share(ctx, thread, make_plan(ctx.isa(), m, order), {0, m.c.rows}, {0, m.c.cols});
}

void matmul_ordered(Context& ctx, const Matmul& m, MatmulOrder order) {
  const int threads = ctx.threads();
  if (threads == 1 || m.c.rows * m.c.cols * m.a.depth() < kSmallProduct) return matmul_ordered_on_thread(ctx, 0, m, order);
  const Plan plan = make_plan(ctx.isa(), m, order);
  const std::int64_t panels = ceil_div(m.c.cols, kPanelCols);
  const bool columns = panels >= 2 * threads || m.c.rows < 2 * plan.kernels.rows;
  ctx.pool().run([&](int t) {
    if (columns) {
      run_share(ctx, t, plan, {0, m.c.rows},
                {panels * t / threads * kPanelCols, std::min(m.c.cols, panels * (t + 1) / threads * kPanelCols)});
    } else {
      run_share(ctx, t, plan, {m.c.rows * t / threads, m.c.rows * (t + 1) / threads}, {0, m.c.cols});
    }
  });
}

}  // namespace plumb::matmul_detail
