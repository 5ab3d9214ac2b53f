// Forward. The unit of work is (sequence, kv head, run of positions): its query rows, position major, the heads of the
// group beside each other, share every packed key and value. Blocks and threads decide nothing about a row's result:
// scores are one chain each, the softmax sees keys 0..pos only, and P V runs over exactly those keys.
// Scratch: op0 packed keys or values, op1 scores, op2 queries, outputs and row statistics, op3 what finished ranges of keys hold.
#include "kernels/attention/attention_cpu.h"

#include <cmath>

#include "kernels/attention/attention_math.h"
#include "kernels/attention/attention_tiles.h"

namespace plumb::attention_detail {
namespace {

constexpr std::int64_t kKeyBlock = 64;            // keys packed at once: the panels stay in the first-level cache
constexpr std::int64_t kScoreFloats = 48 * 1024;  // scores of a unit
constexpr std::int64_t kMaxRows = 96;             // query rows of a unit
constexpr double kSerialBelow = 30000;            // multiply-adds under which a second thread costs more than it gives

struct Plan {
  std::int64_t group = 1;      // query heads per kv head
  std::int64_t width = 0;      // head_dim rounded up to 16
  std::int64_t tile = 0;       // keys per softmax tile; 0: all of them
  std::int64_t split = 1;      // ranges of tiles
  std::int64_t positions = 1;  // positions per unit
  std::int64_t kv_heads = 1;   // kv heads per unit
};

struct Unit {
  const AttentionSequence* sequence = nullptr;
  std::int64_t kv_first = 0;
  std::int64_t kv_count = 0;
  std::int64_t first = 0;  // position, relative to the sequence's first query
  std::int64_t count = 0;
};

/// Memory and geometry of the unit at work. Its rows are numbered kv head by kv head, within one position by position.
struct Block {
  const AttentionForward& a;
  const Plan& plan;
  const Reductions& orders;
  Sites sites;
  bool normalised;
  bool scale_query;
  Unit unit;
  SequenceEnd sequence_end;    // absolute
  std::int64_t rows = 0;       // of one kv head
  std::int64_t first_pos = 0;  // absolute position of row 0
  std::int64_t end = 0;        // keys 0..end-1 are seen by the last row
  std::int64_t score_stride = 0;
  float* panels = nullptr;   // keys: (kKeyBlock/16, head_dim, 16); values: (width/16, kKeyBlock, 16)
  float* scores = nullptr;   // (kv_count*rows, score_stride)
  float* q = nullptr;        // (kv_count*rows, width)
  float* o = nullptr;        // (kv_count*rows, width)
  float* row_max = nullptr;  // (kv_count*rows)
  float* row_sum = nullptr;  // (kv_count*rows)
  float* ranges = nullptr;   // (kv_count*rows, split, width + 2): out, maximum and sum of each finished range

  std::int64_t all_rows() const { return unit.kv_count * rows; }
  /// Absolute position of a row of one kv head.
  std::int64_t position(std::int64_t row) const { return first_pos + row / plan.group; }
  std::int64_t kv_offset(std::int64_t h) const { return (unit.kv_first + h) * a.head_dim; }
  bool natural_pv() const { return orders.attention_pv == MatmulOrder::natural; }
};

/// f(row of the block, its position within the unit, its query head) for all rows in order.
template <class F>
void for_each_row(const Block& b, F&& f) {
  std::int64_t row = 0;
  for (std::int64_t h = 0; h < b.unit.kv_count; ++h)
    for (std::int64_t t = 0; t < b.unit.count; ++t)
      for (std::int64_t g = 0; g < b.plan.group; ++g) f(row++, t, (b.unit.kv_first + h) * b.plan.group + g);
}

/// Nothing summed yet.
void clear_row(Block& b, std::int64_t r) {
  std::fill_n(b.o + r * b.plan.width, b.plan.width, 0.0f);
  b.row_max[r] = -std::numeric_limits<float>::infinity();
  b.row_sum[r] = 0;
}

void load_queries(Block& b) {
  const float scale = b.scale_query ? attention_scale(b.a.head_dim) : 1.0f;
  const std::int64_t first_row = b.unit.sequence->first_row + b.unit.first;
  for_each_row(b, [&](std::int64_t r, std::int64_t t, std::int64_t head) {
    float* q = b.q + r * b.plan.width;
    load_row(b.a.q, first_row + t, head * b.a.head_dim, b.a.head_dim, q);
    if (b.scale_query)
      for (std::int64_t d = 0; d < b.a.head_dim; ++d) q[d] *= scale;
    clear_row(b, r);
  });
}

/// Brings the first keys nearer: their rows in order of memory, not head by head as they are packed.
template <class T>
void touch_first(const Block& b) {
  const std::int64_t count = std::min(b.end, kKeyBlock);
  const T* rows[kKeyBlock];
  list_rows<T>(b.unit.sequence->k, b.kv_offset(0), 0, count, rows);
  touch_rows(rows, count, b.unit.kv_count * b.a.head_dim);
}

/// Brings the block of keys (or values) after the one at `key` nearer, or the other kind's where the tile turns to it.
template <class T>
void touch_next(const Block& b, std::int64_t key, std::int64_t tile, std::int64_t tile_end, bool keys) {
  const bool turn = key + kKeyBlock >= tile_end;
  const std::int64_t from = !turn ? key + kKeyBlock : keys ? tile : tile_end;
  const std::int64_t count = std::clamp<std::int64_t>(b.end - from, 0, kKeyBlock);
  const T* rows[kKeyBlock];
  list_rows<T>(keys != turn ? b.unit.sequence->k : b.unit.sequence->v, b.kv_offset(0), from, count, rows);
  touch_rows(rows, count, b.unit.kv_count * b.a.head_dim);
}

/// Scores of one kv head's rows with the packed keys [key, block_end).
void dot_block(Block& b, std::int64_t h, std::int64_t tile, std::int64_t key, std::int64_t block_end) {
  for (std::int64_t r = 0; r < b.rows; r += kTileRows) {
    const std::int64_t rows = std::min<std::int64_t>(kTileRows, b.rows - r);
    const std::int64_t seen = std::min(block_end, b.position(r + rows - 1) + 1) - key;
    if (seen <= 0) continue;
    const std::int64_t row = h * b.rows + r;
    chain_rows(rows, (seen + 15) / 16,
               {.natural = b.orders.attention_qk == MatmulOrder::natural,
                .n = b.a.head_dim,
                .a = b.q + row * b.plan.width,
                .a_row = b.plan.width,
                .a_k = 1,
                .b = b.panels,
                .b_k = 16,
                .b_panel = b.a.head_dim * 16,
                .c = b.scores + row * b.score_stride + (key - tile),
                .c_row = b.score_stride});
  }
}

/// Scores of all rows with the keys [tile, tile_end), unscaled.
template <class T>
void dot_keys(Block& b, std::int64_t tile, std::int64_t tile_end) {
  for (std::int64_t key = tile; key < tile_end; key += kKeyBlock) {
    const std::int64_t block_end = std::min(key + kKeyBlock, tile_end);
    touch_next<T>(b, key, tile, tile_end, true);
    for (std::int64_t h = 0; h < b.unit.kv_count; ++h) {
      for (std::int64_t first = key; first < block_end; first += 16) {
        const std::int64_t count = std::min<std::int64_t>(16, block_end - first);
        const T* rows[16];
        list_rows<T>(b.unit.sequence->k, b.kv_offset(h), first, count, rows);
        pack_columns(rows, count, b.a.head_dim, b.panels + (first - key) * b.a.head_dim);
      }
      dot_block(b, h, tile, key, block_end);
    }
  }
}

/// Tiles in a range of a query that sees n keys.
std::int64_t range_tiles(const Plan& plan, std::int64_t n) {
  const std::int64_t tiles = (n + plan.tile - 1) / plan.tile;
  return (tiles + plan.split - 1) / plan.split;
}

/// Where the tile begins a range of the row, after the first: what the range before it summed is put away.
bool begins_range(Block& b, std::int64_t r, std::int64_t keys, std::int64_t tile) {
  if (tile == 0) return true;
  if (b.plan.split == 1) return false;
  const std::int64_t width = b.plan.width;
  const std::int64_t per_range = range_tiles(b.plan, keys);
  const std::int64_t index = tile / b.plan.tile;
  if (index % per_range != 0) return false;
  float* to = b.ranges + (r * b.plan.split + index / per_range - 1) * (width + 2);
  std::copy_n(b.o + r * width, width, to);
  to[width] = b.row_max[r];
  to[width + 1] = b.row_sum[r];
  clear_row(b, r);
  return true;
}

/// Scores to probabilities of the tile in place; the running maximum, sum and output move to the new maximum.
void softmax_tile(Block& b, std::int64_t tile, std::int64_t tile_end) {
  const float scale = b.scale_query ? 1.0f : attention_scale(b.a.head_dim);
  SequenceEnd end = b.sequence_end;
  end.first = std::max<std::int64_t>(end.first - tile, 0);
  const bool bf16_probs = b.sites.rounded(Site::attn_probs) && b.sites.to == DType::bf16;
  const bool emulated_probs = b.sites.rounded(Site::attn_probs) && b.sites.to != DType::bf16;
  for_each_row(b, [&](std::int64_t r, std::int64_t t, std::int64_t) {
    const std::int64_t keys = b.first_pos + t + 1;
    const std::int64_t n = std::min(tile_end, keys) - tile;
    if (n <= 0) return;
    const bool first = begins_range(b, r, keys, tile);
    float* s = b.scores + r * b.score_stride;
    const float old_max = b.row_max[r];
    const float new_max = max(scale_row(b.sites, s, n, scale), old_max);
    float tile_sum = 0;
    with_exp(b.orders.attention_exp, [&](auto e) {
      with_flag(bf16_probs && !b.normalised, [&](auto round) { tile_sum = exp_row<round(), e()>(s, n, new_max, end); });
    });
    if (emulated_probs && !b.normalised) round_row(s, n, b.sites.to);
    if (!first) {
      const float shift = max_shift(old_max, new_max);
      float* o = b.o + r * b.plan.width;
      for (std::int64_t d = 0; d < b.plan.width; d += 16) store16(o + d, load16(o + d) * F32x16(shift));
      tile_sum = fma(b.row_sum[r], shift, tile_sum);
    }
    b.row_max[r] = new_max;
    b.row_sum[r] = tile_sum;
    if (!b.normalised) return;
    with_flag(bf16_probs, [&](auto round) { normalise_row<round()>(s, n, tile_sum); });
    if (emulated_probs) round_row(s, n, b.sites.to);
  });
}

/// One range of keys: out (width), maximum and sum; `a` takes in `b`.
void merge_range(std::int64_t width, float* a, const float* b) {
  const float top = max(a[width], b[width]);
  const float shift_a = max_shift(a[width], top);
  const float shift_b = max_shift(b[width], top);
  for (std::int64_t d = 0; d < width; d += 16) store16(a + d, fma(load16(a + d), F32x16(shift_a), load16(b + d) * F32x16(shift_b)));
  a[width] = top;
  a[width + 1] = fma(a[width + 1], shift_a, b[width + 1] * shift_b);
}

/// The ranges of every row in a tree of neighbours: (0, 1), (2, 3), ..., then pairs of those, and so on.
void merge_ranges(Block& b) {
  const std::int64_t width = b.plan.width;
  for_each_row(b, [&](std::int64_t r, std::int64_t t, std::int64_t) {
    const std::int64_t keys = b.first_pos + t + 1;
    const std::int64_t per_range = range_tiles(b.plan, keys) * b.plan.tile;
    const std::int64_t count = (keys + per_range - 1) / per_range;
    float* ranges = b.ranges + r * b.plan.split * (width + 2);
    auto range = [&](std::int64_t i) { return ranges + i * (width + 2); };
    std::copy_n(b.o + r * width, width, range(count - 1));
    range(count - 1)[width] = b.row_max[r];
    range(count - 1)[width + 1] = b.row_sum[r];
    for (std::int64_t step = 1; step < count; step *= 2)
      for (std::int64_t i = 0; i + step < count; i += 2 * step) merge_range(width, range(i), range(i + step));
    std::copy_n(range(0), width, b.o + r * width);
    b.row_max[r] = range(0)[width];
    b.row_sum[r] = range(0)[width + 1];
  });
}

/// Continues the chains of one row over n more keys, few; in pairs an odd last one has a zero beside it.
void add_last_keys(std::int64_t n, std::int64_t panels, const Chains& t) {
  const F32x16 zero(0.0f);
  for (std::int64_t d = 0; d < panels; ++d) {
    const float* v = t.b + d * t.b_panel;
    F32x16 o = load16(t.c + d * 16);
    for (std::int64_t k = 0; t.natural && k < n; ++k) o = fma(F32x16(t.a[k]), load16(v + k * t.b_k), o);
    for (std::int64_t k = 0; !t.natural && k < n; k += 2) {
      o = k + 1 < n ? fma(F32x16(t.a[k + 1]), load16(v + (k + 1) * t.b_k), o) : fma(zero, zero, o);
      o = fma(F32x16(t.a[k]), load16(v + k * t.b_k), o);
    }
    store16(t.c + d * 16, o);
  }
}

/// o += P V of one kv head's rows over the packed values [key, block_end). Keys that only some rows of a tile see are added
/// row by row, so that no row touches a value beyond its position.
void add_block(Block& b, std::int64_t h, std::int64_t tile, std::int64_t key, std::int64_t block_end) {
  const std::int64_t panels = b.plan.width / 16;
  for (std::int64_t r = 0; r < b.rows; r += kTileRows) {
    const std::int64_t rows = std::min<std::int64_t>(kTileRows, b.rows - r);
    const std::int64_t common = std::max<std::int64_t>(0, std::min(block_end, b.position(r) + 1) - key) & ~std::int64_t(1);
    const std::int64_t row = h * b.rows + r;
    Chains t{.natural = b.natural_pv(),
             .n = common,
             .a = b.scores + row * b.score_stride + (key - tile),
             .a_row = b.score_stride,
             .a_k = 1,
             .b = b.panels,
             .b_k = 16,
             .b_panel = kKeyBlock * 16,
             .c = b.o + row * b.plan.width,
             .c_row = b.plan.width,
             .carry = true};
    if (common > 0) chain_rows(rows, panels, t);
    t.a += common;
    t.b += common * 16;
    for (std::int64_t i = 0; i < rows; ++i, t.a += t.a_row, t.c += t.c_row) {
      const std::int64_t left = std::min(block_end, b.position(r + i) + 1) - key - common;
      if (left > 0) add_last_keys(left, panels, t);
    }
  }
}

/// The same straight from the stored values, for the rows of a single position.
template <class T, bool kNatural>
void add_stored(Block& b, std::int64_t h, const T* const* rows, std::int64_t n, const float* p) {
  const std::int64_t width = b.plan.width;
  const std::int64_t stride = b.score_stride;
  float* o = b.o + h * b.rows * width;
  std::int64_t r = 0;
  for (; r + 2 <= b.rows; r += 2) {
    std::int64_t d = 0;
    for (; d + 32 <= width; d += 32) add_rows<T, kNatural, 2, 2>(rows, n, d, p + r * stride, stride, o + r * width + d, width);
    if (d < width) add_rows<T, kNatural, 2, 1>(rows, n, d, p + r * stride, stride, o + r * width + d, width);
  }
  if (r == b.rows) return;
  std::int64_t d = 0;
  for (; d + 64 <= width; d += 64) add_rows<T, kNatural, 1, 4>(rows, n, d, p + r * stride, stride, o + r * width + d, width);
  for (; d < width; d += 16) add_rows<T, kNatural, 1, 1>(rows, n, d, p + r * stride, stride, o + r * width + d, width);
}

template <class T>
void add_values(Block& b, std::int64_t tile, std::int64_t tile_end) {
  const bool stored = b.unit.count == 1 && b.a.head_dim == b.plan.width;
  const T* rows[kKeyBlock];
  for (std::int64_t key = tile; key < tile_end; key += kKeyBlock) {
    const std::int64_t block_end = std::min(key + kKeyBlock, tile_end);
    touch_next<T>(b, key, tile, tile_end, false);
    for (std::int64_t h = 0; h < b.unit.kv_count; ++h) {
      list_rows<T>(b.unit.sequence->v, b.kv_offset(h), key, block_end - key, rows);
      if (stored) {
        const float* p = b.scores + h * b.rows * b.score_stride + (key - tile);
        with_flag(b.natural_pv(), [&](auto natural) { add_stored<T, natural()>(b, h, rows, block_end - key, p); });
        continue;
      }
      pack_rows(rows, block_end - key, b.a.head_dim, kKeyBlock * 16, b.panels);
      add_block(b, h, tile, key, block_end);
    }
  }
}

void store_outputs(Block& b) {
  const bool round = b.sites.rounded(Site::attn_out) && b.sites.to == DType::bf16;
  const bool emulated = b.sites.rounded(Site::attn_out) && b.sites.to != DType::bf16;
  const std::int64_t first_row = b.unit.sequence->first_row + b.unit.first;
  for_each_row(b, [&](std::int64_t r, std::int64_t t, std::int64_t head) {
    float* o = b.o + r * b.plan.width;
    const F32x16 factor(b.normalised ? 1.0f : 1.0f / b.row_sum[r]);
    for (std::int64_t d = 0; d < b.plan.width; d += 16) store16(o + d, round_if(round, load16(o + d) * factor));
    if (emulated) round_row(o, b.plan.width, b.sites.to);
    store_row(b.a.out, first_row + t, head * b.a.head_dim, b.a.head_dim, o);
    if (b.a.row_max == nullptr) return;
    b.a.row_max[(first_row + t) * b.a.heads + head] = b.row_max[r];
    b.a.row_sum[(first_row + t) * b.a.heads + head] = b.row_sum[r];
  });
}

template <class T>
void run_block(Block& b) {
  touch_first<T>(b);
  load_queries(b);
  const std::int64_t tile_keys = b.plan.tile > 0 ? b.plan.tile : b.end;
  for (std::int64_t tile = 0; tile < b.end; tile += tile_keys) {
    const std::int64_t tile_end = std::min(tile + tile_keys, b.end);
    dot_keys<T>(b, tile, tile_end);
    softmax_tile(b, tile, tile_end);
    add_values<T>(b, tile, tile_end);
  }
  if (b.plan.split > 1) merge_ranges(b);
  store_outputs(b);
}

void run_unit(Context& ctx, int thread, const AttentionForward& a, const Plan& plan, const Numerics& numerics, Sites sites, Unit unit) {
  Block b{.a = a,
          .plan = plan,
          .orders = numerics.reductions,
          .sites = sites,
          .normalised = numerics.softmax == Softmax::normalised,
          .scale_query = numerics.scale_at == ScaleAt::query,
          .unit = unit,
          .sequence_end = SequenceEnd::of(numerics.reductions, unit.sequence->first_pos + unit.sequence->rows)};
  b.rows = unit.count * plan.group;
  b.first_pos = unit.sequence->first_pos + unit.first;
  b.end = b.first_pos + unit.count;
  // The extra 16 keep rows off the same cache sets.
  b.score_stride = round_up(plan.tile > 0 ? std::min(plan.tile, b.end) : b.end, 16) + 16;
  b.panels = ctx.scratch(thread, ScratchSlot::op0).get<float>(kKeyBlock * plan.width);
  b.scores = ctx.scratch(thread, ScratchSlot::op1).get<float>(b.all_rows() * b.score_stride);
  b.q = ctx.scratch(thread, ScratchSlot::op2).get<float>(b.all_rows() * (2 * plan.width + 2));
  b.o = b.q + b.all_rows() * plan.width;
  b.row_max = b.o + b.all_rows() * plan.width;
  b.row_sum = b.row_max + b.all_rows();
  if (plan.split > 1) b.ranges = ctx.scratch(thread, ScratchSlot::op3).get<float>(b.all_rows() * plan.split * (plan.width + 2));
  if (a.kv_dtype == DType::bf16) return run_block<BF16>(b);
  run_block<float>(b);
}

}  // namespace

/// How the work is cut. Rows of long caches lie apart by all kv heads: a unit of few queries takes several heads, so that
/// memory is read in one stream, but never so many that threads idle.
Plan make_plan(const AttentionForward& a, const Numerics& numerics, int threads) {
  Plan plan;
  plan.group = a.heads / a.kv_heads;
  plan.width = round_up(a.head_dim, 16);
  plan.tile = numerics.softmax == Softmax::flash ? numerics.reductions.attention_kv_tile : 0;
  plan.split = numerics.reductions.attention_kv_split;
  std::int64_t keys = 16;
  std::int64_t rows = 1;
  for (std::int64_t s = 0; s < a.n_sequences; ++s) {
    keys = std::max(keys, a.sequences[s].first_pos + a.sequences[s].rows);
    rows = std::max(rows, a.sequences[s].rows);
  }
  if (plan.tile > 0) keys = std::min(plan.tile, keys);
  const std::int64_t fits = std::min(kMaxRows, kScoreFloats / keys);  // rows
  plan.positions = std::clamp<std::int64_t>(fits / plan.group, 1, rows);
  const std::int64_t most = std::clamp<std::int64_t>(fits / (plan.positions * plan.group), 1, a.kv_heads);
  // The most heads with which the busiest thread has at most an eighth more than its share.
  for (plan.kv_heads = most; plan.kv_heads > 1; --plan.kv_heads) {
    const std::int64_t units = a.n_sequences * ((a.kv_heads + plan.kv_heads - 1) / plan.kv_heads);
    const std::int64_t busiest = (units + threads - 1) / threads * plan.kv_heads;
    if (8 * busiest * threads <= 9 * a.n_sequences * a.kv_heads) break;
  }
  return plan;
}

void forward_cpu(Context& ctx, const AttentionForward& a, const Numerics& numerics, Sites sites) {
  const Plan plan = make_plan(a, numerics, ctx.threads());
  auto for_each_unit = [&](auto&& f) {
    for (std::int64_t s = 0; s < a.n_sequences; ++s) {
      const AttentionSequence& sequence = a.sequences[s];
      for (std::int64_t first = 0; first < sequence.rows; first += plan.positions) {
        const std::int64_t count = std::min(plan.positions, sequence.rows - first);
        const double keys_seen = double(sequence.first_pos + first) + 0.5 * double(count);
        // One more row's worth of work stands for packing the keys and values.
        const double cost = (double(count * plan.group) + 1) * keys_seen * double(2 * plan.width);
        for (std::int64_t h = 0; h < a.kv_heads; h += plan.kv_heads) {
          const std::int64_t heads = std::min(plan.kv_heads, a.kv_heads - h);
          f(Unit{&sequence, h, heads, first, count}, cost * double(heads));
        }
      }
    }
  };
  split_by_cost(ctx, kSerialBelow, for_each_unit,
                [&](const Unit& unit, int thread) { run_unit(ctx, thread, a, plan, numerics, sites, unit); });
}

}  // namespace plumb::attention_detail
