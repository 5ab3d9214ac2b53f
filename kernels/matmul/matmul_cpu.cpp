// Cache blocking and the split over threads. Threads and blocks divide outputs and, in order, the chain: no choice made
// here can reach a bit. Scratch slots: matmul_a (blocks of A), matmul_b (panels of B), matmul_c (FP32 sums between blocks
// of k when c is bf16).
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/core/lanes.h"
#include "kernels/matmul/matmul_kernels.h"
#include "kernels/matmul/store_plain.h"

namespace plumb::matmul_detail {
namespace {

constexpr std::int64_t kDepthBlock = 1024;              // k at a time; a depth up to 1.25 of it is one block
constexpr std::int64_t kBlocksBytes = 448 << 10;        // packed A at a time: about half of L2
constexpr std::int64_t kBlocksBytesUnpacked = 1 << 20;  // when B is packed here: packing it again costs more than L2 misses
constexpr std::int64_t kPanelColsAtOnce = 128;          // columns of B packed at a time
constexpr std::int64_t kFewRows = 4;                    // up to here reading the weight is the work, and less of it faster
constexpr std::int64_t kSmallProduct = 100'000;         // multiply-adds below which a second thread does not pay

constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

// ---------------------------------------------------------------- after the chain

/// bias[j] of columns [col, col + n) in FP32, n <= 32.
void load_bias(const ConstMat& bias, std::int64_t col, int n, float* out) {
  for (int j = 0; j < n; j += kLanes) {
    const int part = std::min(kLanes, n - j);
    store16(out + j,
            bias.dtype == DType::f32 ? load_part(bias.row<float>(0) + col + j, part) : load_part(bias.row<BF16>(0) + col + j, part));
  }
}

/// Rows of FP32 sums, `stride` apart, to their place in c. Sums are never denormal: FTZ is set and a chain ends in an FMA.
template <class T, bool Bias, bool Round>
void finish_rows_as(const Mat& c, const float* sums, std::int64_t stride, const float* bias, std::int64_t row, int rows, std::int64_t col,
                    int cols) {
  const auto value = [&](int i, int j) __attribute__((always_inline)) {
    const F32x16 x = load16(sums + i * stride + j);
    return Bias ? x + load16(bias + j) : x;
  };
  for (int j = 0; j < cols; j += kLanes) {
    const int n = std::min(kLanes, cols - j);
    T* out = c.row<T>(row) + col + j;
    if constexpr (std::is_same_v<T, BF16>) {
      if (n == kLanes) {
        __m256 nan = _mm256_setzero_ps();
        for (int i = 0; i < rows; ++i) {
          const F32x16 x = value(i, j);
          nan = _mm256_or_ps(nan, _mm256_cmp_ps(x.lo, x.hi, _CMP_UNORD_Q));
          store_plain(out + i * c.stride, x);
        }
        if (_mm256_movemask_ps(nan) == 0) continue;
      }
    }
    for (int i = 0; i < rows; ++i) store_part(out + i * c.stride, round_if(Round, value(i, j)), n);
  }
}

using FinishFn = decltype(&finish_rows_as<float, false, false>);
FinishFn choose_finish(const Matmul& m) {
  const bool bias = bool(m.bias);
  if (m.c.dtype == DType::bf16) return bias ? finish_rows_as<BF16, true, false> : finish_rows_as<BF16, false, false>;  // the store rounds
  if (m.round) return bias ? finish_rows_as<float, true, true> : finish_rows_as<float, false, true>;
  return bias ? finish_rows_as<float, true, false> : nullptr;
}

void copy_rows(const float* from, std::int64_t from_stride, float* to, std::int64_t to_stride, int rows, int cols) {
  for (int i = 0; i < rows; ++i) std::memcpy(to + i * to_stride, from + i * from_stride, std::size_t(cols) * sizeof(float));
}

/// What the whole product is, apart from who computes which part.
struct Plan {
  const Matmul& m;
  const Kernels& kernels;
  DType panel;  // layout of the panels of B: its storage
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t depth;
  bool packed;
  FinishFn finish;      // null when the sums are simply stored: no bias, no rounding, an f32 c
  bool stores_rounded;  // the kernels store whole tiles of c as BF16 themselves
};

Plan make_plan(Isa isa, const Matmul& m) {
  const DType panel = m.packed ? m.packed.dtype : m.b.mat.dtype;
  const Kernels& kernels = kernels_for(isa, m.a.mat.dtype, panel, m.c.rows);
  return {.m = m,
          .kernels = kernels,
          .panel = panel,
          .rows = m.c.rows,
          .cols = m.c.cols,
          .depth = m.a.depth(),
          .packed = bool(m.packed),
          .finish = choose_finish(m),
          .stores_rounded = kernels.rounds && m.c.dtype == DType::bf16 && !m.bias};
}

/// A product over nothing: zero (or c), plus the bias.
void finish_empty(const Plan& plan, Range rows) {
  if (plan.m.accumulate && plan.finish == nullptr) return;
  alignas(64) float sums[kPanelCols] = {};
  alignas(64) float bias[kPanelCols] = {};
  for (std::int64_t col = 0; col < plan.cols; col += kPanelCols) {
    const int n = int(std::min<std::int64_t>(kPanelCols, plan.cols - col));
    if (plan.m.bias) load_bias(plan.m.bias, col, n, bias);
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      if (plan.m.accumulate) copy_rows(plan.m.c.row<float>(r) + col, 0, sums, 0, 1, n);
      if (plan.finish != nullptr) {
        plan.finish(plan.m.c, sums, 0, bias, r, 1, col, n);
      } else {
        copy_rows(sums, 0, plan.m.c.row<float>(r) + col, 0, 1, n);
      }
    }
  }
}

// ---------------------------------------------------------------- one thread's rectangle

/// Where FP32 sums live between blocks of k: c itself, or scratch when c is bf16.
struct Sums {
  float* data = nullptr;  // of (row, col)
  std::int64_t stride = 0;
  std::int64_t row = 0;
  std::int64_t col = 0;
  float* at(std::int64_t r, std::int64_t c) const { return data + (r - row) * stride + (c - col); }
};

struct Blocking {
  std::int64_t depth;   // k at a time
  std::int64_t rows;    // of A packed at a time
  std::int64_t groups;  // column groups of B at a time
};

Blocking choose_blocking(const Plan& plan, std::int64_t rows, std::int64_t groups) {
  const std::int64_t tile_rows = plan.kernels.rows;
  Blocking b{};
  if (plan.depth <= kDepthBlock + kDepthBlock / 4 || (plan.packed && rows <= 2 * tile_rows)) {
    b.depth = round_up(plan.depth, 2);
  } else {
    b.depth = round_up(ceil_div(plan.depth, ceil_div(plan.depth, kDepthBlock)), 32);
  }
  const std::int64_t bytes = plan.packed ? kBlocksBytes : kBlocksBytesUnpacked;
  const std::int64_t most = std::max(tile_rows, bytes / (b.depth * std::int64_t(bytes_of(plan.kernels.a))) / tile_rows * tile_rows);
  b.rows = rows <= most ? rows : round_up(ceil_div(rows, ceil_div(rows, most)), tile_rows);
  b.groups = plan.packed ? groups : kPanelColsAtOnce / kGroupCols;
  return b;
}

/// One block of k: the packed rows of A and what the tiles need to know about it.
struct DepthBlock {
  std::int64_t pairs;
  bool first;
  bool last;
};

/// Computes one tile; (row, col) is its place in c.
void run_tile(const Plan& plan, const DepthBlock& block, const Sums& sums, TileFn fn, Tile& tile, const float* bias, std::int64_t row,
              int rows, std::int64_t col, int groups) {
  const int width = groups * kGroupCols;
  const int cols = int(std::min<std::int64_t>(width, plan.cols - col));
  const bool finish = block.last && plan.finish != nullptr;
  tile.pairs = block.pairs;
  tile.from_zero = block.first && !plan.m.accumulate;
  if (cols == width && !finish && sums.data != nullptr) {
    tile.c = sums.at(row, col);
    tile.ldc = sums.stride;
    fn(tile);
    return;
  }
  if (cols == width && block.last && plan.stores_rounded) {
    if (!tile.from_zero) tile.c = sums.at(row, col);
    tile.ldc = sums.stride;
    tile.rounded = plan.m.c.row<BF16>(row) + col;
    tile.rounded_stride = plan.m.c.stride;
    fn(tile);
    return;
  }
  // At an edge, or before a bias or a rounding, the tile passes through L1.
  alignas(64) float edge[kMaxTileRows * kPanelCols];
  if (!tile.from_zero) copy_rows(sums.at(row, col), sums.stride, edge, width, rows, cols);
  tile.c = edge;
  tile.ldc = width;
  fn(tile);
  if (finish) {
    plan.finish(plan.m.c, edge, width, bias, row, rows, col, cols);
  } else {
    copy_rows(edge, width, sums.at(row, col), sums.stride, rows, cols);
  }
}

/// All tiles of the packed rows [rows.begin, rows.end) against column groups [groups.begin, groups.end), whose panels lie
/// at `panels`, `panel_stride` apart. A block's rows are split as evenly as possible over `blocks` tiles.
struct Sweep {
  Range rows;
  Range groups;
  const char* blocks_of_a;
  Blocks blocks;
  const char* panels;
  std::int64_t panel_stride;
};

void run_sweep(const Plan& plan, const DepthBlock& block, const Sums& sums, const Sweep& s) {
  const Kernels& k = plan.kernels;
  const std::int64_t blocks = s.blocks.count();
  int groups = blocks == 1 ? k.stream_groups[s.blocks.rows()] : k.groups;
  alignas(64) float bias[kPanelCols] = {};
  for (std::int64_t g = s.groups.begin; g < s.groups.end; g += groups) {
    while (groups > s.groups.end - g) groups /= 2;
    const std::int64_t local = g - s.groups.begin;
    const std::int64_t col = g * kGroupCols;
    if (plan.m.bias && block.last) load_bias(plan.m.bias, col, int(std::min<std::int64_t>(groups * kGroupCols, plan.cols - col)), bias);
    Tile tile{.b = s.panels + group_offset(local, s.panel_stride), .panel_stride = s.panel_stride};
    ReadAhead ahead(s.panels, s.panel_stride, plan.panel, local, groups, blocks, block.pairs);
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t row = s.blocks.first_row(b);
      const int rows = s.blocks.rows_of(b);
      tile.a = s.blocks_of_a + s.blocks.offset(b, block.pairs, k.a);
      const TileFn fn = ahead.use(k, rows, groups, tile);
      run_tile(plan, block, sums, fn, tile, bias, s.rows.begin + row, rows, col, groups);
    }
  }
}

/// Rows and column groups of c that one thread computes alone.
void run_share(Context& ctx, int thread, const Plan& plan, Range rows, Range groups) {
  if (rows.begin >= rows.end || groups.begin >= groups.end) return;
  if (plan.depth == 0) return finish_empty(plan, rows);
  const Matmul& m = plan.m;
  const Kernels& k = plan.kernels;
  const Blocking blocking = choose_blocking(plan, rows.end - rows.begin, groups.end - groups.begin);
  const Blocks largest(blocking.rows, ceil_div(blocking.rows, k.rows));
  char* a_buffer = ctx.scratch(thread, ScratchSlot::matmul_a).get<char>(largest.bytes(blocking.depth / 2, k.a));
  char* b_buffer =
      plan.packed
          ? nullptr
          : ctx.scratch(thread, ScratchSlot::matmul_b).get<char>(blocking.groups / kPanelGroups * panel_bytes(blocking.depth, plan.panel));
  Sums sums{.data = static_cast<float*>(m.c.data), .stride = m.c.stride};
  if (m.c.dtype == DType::bf16) {
    sums = {.stride = (groups.end - groups.begin) * kGroupCols, .col = groups.begin * kGroupCols};
    if (blocking.depth < plan.depth) sums.data = ctx.scratch(thread, ScratchSlot::matmul_c).get<float>(blocking.rows * sums.stride);
  }
  for (std::int64_t r = rows.begin; r < rows.end; r += blocking.rows) {
    Sweep sweep{.rows = {r, std::min(rows.end, r + blocking.rows)}, .blocks_of_a = a_buffer};
    sweep.blocks = Blocks(sweep.rows.end - r, ceil_div(sweep.rows.end - r, k.rows));
    if (m.c.dtype == DType::bf16) sums.row = r;
    for (std::int64_t k0 = 0; k0 < plan.depth; k0 += blocking.depth) {
      const std::int64_t k1 = std::min(plan.depth, k0 + blocking.depth);
      const DepthBlock block{.pairs = (k1 - k0 + 1) / 2, .first = k0 == 0, .last = k1 == plan.depth};
      pack_blocks(m.a, r, k0, k1, k.a, sweep.blocks, a_buffer);
      sweep.panel_stride = plan.packed ? panel_bytes(plan.depth, plan.panel) : panel_bytes(k1 - k0, plan.panel);
      for (std::int64_t g = groups.begin; g < groups.end; g += blocking.groups) {
        sweep.groups = {g, std::min(groups.end, g + blocking.groups)};
        if (plan.packed) {
          sweep.panels = static_cast<const char*>(m.packed.panels) + group_offset(g, sweep.panel_stride) + k0 / 2 * pair_bytes(plan.panel);
        } else {
          const std::int64_t col = g * kGroupCols;
          pack_panels(m.b, col, std::min(plan.cols, sweep.groups.end * kGroupCols) - col, k0, k1, b_buffer, sweep.panel_stride);
          sweep.panels = b_buffer;
        }
        run_sweep(plan, block, sums, sweep);
      }
    }
  }
}

/// True when threads should split the columns, false for the rows: the work of the busiest thread, packing included.
bool split_columns(const Plan& plan, int threads) {
  constexpr double kPackCost = 0.3;  // of an element, in the time of one step of all lanes
  const double products = double(plan.rows) * double(plan.cols) * double(plan.depth) / (plan.kernels.a == DType::bf16 ? 32 : 16);
  const double pack_a = kPackCost * double(plan.rows) * double(plan.depth);
  const double pack_b = plan.packed ? 0 : kPackCost * double(plan.cols) * double(plan.depth);
  const auto imbalance = [&](std::int64_t units) { return double(ceil_div(units, threads)) / double(units); };
  const double by_cols = products * imbalance(ceil_div(plan.cols, kPanelCols)) + pack_a + pack_b / threads;
  const double by_rows = products * imbalance(ceil_div(plan.rows, plan.kernels.rows)) + pack_a / threads + pack_b;
  return by_cols <= by_rows;
}

}  // namespace

const Kernels& kernels_for(Isa isa, DType a, DType panel, std::int64_t rows) {
  const bool dpbf16 = isa == Isa::avx512bf16 || (isa == Isa::avx512mixed && rows <= kFewRows);
  if (dpbf16 && a == DType::bf16 && panel == DType::bf16) return kernels_avx512bf16();
  return isa == Isa::avx2 ? kernels_avx2(panel) : kernels_avx512(panel);
}

void matmul_cpu_on_thread(Context& ctx, int thread, const Matmul& m) {
  FtzScope ftz;
  const Plan plan = make_plan(ctx.isa(), m);
  run_share(ctx, thread, plan, {0, plan.rows}, {0, ceil_div(plan.cols, kGroupCols)});
}

void matmul_cpu(Context& ctx, const Matmul& m) {
  const Plan plan = make_plan(ctx.isa(), m);
  if (plan.rows == 0 || plan.cols == 0) return;
  const int threads = ctx.threads();
  if (threads == 1 || plan.rows * plan.cols * plan.depth < kSmallProduct) return matmul_cpu_on_thread(ctx, 0, m);
  const std::int64_t groups = ceil_div(plan.cols, kGroupCols);
  const std::int64_t panels = ceil_div(plan.cols, kPanelCols);
  const bool columns = split_columns(plan, threads);
  ctx.pool().run([&](int t) {
    if (columns) {
      const Range mine{panels * t / threads * kPanelGroups, std::min(groups, panels * (t + 1) / threads * kPanelGroups)};
      run_share(ctx, t, plan, {0, plan.rows}, mine);
    } else {
      run_share(ctx, t, plan, {plan.rows * t / threads, plan.rows * (t + 1) / threads}, {0, groups});
    }
  });
}

}  // namespace plumb::matmul_detail
