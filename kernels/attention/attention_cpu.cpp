// Forward. The unit of work is (sequence, kv head, run of positions): its query rows, position major, the heads of the
// group beside each other, share every packed key and value. Blocks and threads decide nothing about a row's result:
// scores are one chain each, the softmax sees keys 0..pos only, and P V runs over exactly those keys.
// Scratch: op0 packed keys or values, op1 scores, op2 queries, outputs and row statistics.
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
  std::int64_t positions = 1;  // positions per unit
};

struct Unit {
  const AttentionSequence* sequence = nullptr;
  std::int64_t kv_head = 0;
  std::int64_t first = 0;  // position, relative to the sequence's first query
  std::int64_t count = 0;
};

/// Memory and geometry of the unit at work.
struct Block {
  const AttentionForward& a;
  const Plan& plan;
  Sites sites;
  bool normalised;
  bool scale_query;
  Unit unit;
  std::int64_t rows = 0;
  std::int64_t first_pos = 0;  // absolute position of row 0
  std::int64_t end = 0;        // keys 0..end-1 are seen by the last row
  std::int64_t score_stride = 0;
  float* panels = nullptr;   // keys: (kKeyBlock/16, head_dim, 16); values: (width/16, kKeyBlock, 16)
  float* scores = nullptr;   // (rows, score_stride)
  float* q = nullptr;        // (rows, width)
  float* o = nullptr;        // (rows, width)
  float* row_max = nullptr;  // (rows)
  float* row_sum = nullptr;  // (rows)

  std::int64_t position(std::int64_t row) const { return first_pos + row / plan.group; }
  std::int64_t kv_offset() const { return unit.kv_head * a.head_dim; }
  std::int64_t head(std::int64_t row) const { return unit.kv_head * plan.group + row % plan.group; }
  std::int64_t q_row(std::int64_t row) const { return unit.sequence->first_row + unit.first + row / plan.group; }
};

void load_queries(Block& b) {
  const float scale = b.scale_query ? attention_scale(b.a.head_dim) : 1.0f;
  for (std::int64_t r = 0; r < b.rows; ++r) {
    float* q = b.q + r * b.plan.width;
    load_row(b.a.q, b.q_row(r), b.head(r) * b.a.head_dim, b.a.head_dim, q);
    if (b.scale_query)
      for (std::int64_t d = 0; d < b.a.head_dim; ++d) q[d] *= scale;
    std::fill_n(b.o + r * b.plan.width, b.plan.width, 0.0f);
    b.row_max[r] = -std::numeric_limits<float>::infinity();
    b.row_sum[r] = 0;
  }
}

/// Scores of all rows with the keys [tile, tile_end), unscaled.
template <class T>
void dot_keys(Block& b, std::int64_t tile, std::int64_t tile_end) {
  const std::int64_t head_dim = b.a.head_dim;
  for (std::int64_t key = tile; key < tile_end; key += kKeyBlock) {
    const std::int64_t block_end = std::min(key + kKeyBlock, tile_end);
    for (std::int64_t first = key; first < block_end; first += 16)
      pack_columns<T>(b.unit.sequence->k, b.kv_offset(), first, b.end, head_dim, b.panels + (first - key) * head_dim);
    for (std::int64_t r = 0; r < b.rows; r += kTileRows) {
      const std::int64_t rows = std::min<std::int64_t>(kTileRows, b.rows - r);
      const std::int64_t seen = std::min(block_end, b.position(r + rows - 1) + 1);
      for (std::int64_t first = key; first < seen; first += 16)
        chain_rows(int(rows), head_dim, b.q + r * b.plan.width, b.plan.width, 1, b.panels + (first - key) * head_dim, 16,
                   b.scores + r * b.score_stride + (first - tile), b.score_stride, false);
    }
  }
}

/// Scores to probabilities of the tile in place; the running maximum, sum and output move to the new maximum.
void softmax_tile(Block& b, std::int64_t tile, std::int64_t tile_end) {
  const float scale = b.scale_query ? 1.0f : attention_scale(b.a.head_dim);
  for (std::int64_t r = 0; r < b.rows; ++r) {
    const std::int64_t n = std::min(tile_end, b.position(r) + 1) - tile;
    if (n <= 0) continue;
    float* s = b.scores + r * b.score_stride;
    const float old_max = b.row_max[r];
    const float new_max = max(scale_row(b.sites, s, n, scale), old_max);
    float tile_sum = 0;
    with_flag(b.sites.rounded(Site::attn_probs) && !b.normalised, [&](auto round) { tile_sum = exp_row<round()>(s, n, new_max); });
    if (tile > 0) {
      const float shift = exp_score(old_max, new_max);
      float* o = b.o + r * b.plan.width;
      for (std::int64_t d = 0; d < b.plan.width; d += 16) store16(o + d, load16(o + d) * F32x16(shift));
      tile_sum = fma(b.row_sum[r], shift, tile_sum);
    }
    b.row_max[r] = new_max;
    b.row_sum[r] = tile_sum;
    if (b.normalised) with_flag(b.sites.rounded(Site::attn_probs), [&](auto round) { normalise_row<round()>(s, n, tile_sum); });
  }
}

/// Continues the chain of one row over the keys [from, to) of a block that starts at `key`: an odd key pairs with a zero.
void add_last_keys(const float* p, const float* panel, std::int64_t n, float* o) {
  chain_tile<1>(n & ~std::int64_t(1), p, 0, 1, panel, 16, o, 0, true);
  if (n % 2 == 0) return;
  const F32x16 padded = fma(F32x16(0.0f), F32x16(0.0f), load16(o));
  store16(o, fma(F32x16(p[n - 1]), load16(panel + (n - 1) * 16), padded));
}

/// o += P V over the tile, one chain over the keys of each row. Keys that only some rows of a group see are added row by row.
template <class T>
void add_values(Block& b, std::int64_t tile, std::int64_t tile_end) {
  for (std::int64_t key = tile; key < tile_end; key += kKeyBlock) {
    const std::int64_t block_end = std::min(key + kKeyBlock, tile_end);
    pack_rows<T>(b.unit.sequence->v, b.kv_offset(), key, block_end - key, b.a.head_dim, kKeyBlock, b.panels);
    for (std::int64_t r = 0; r < b.rows; r += kTileRows) {
      const std::int64_t rows = std::min<std::int64_t>(kTileRows, b.rows - r);
      const std::int64_t common = std::max<std::int64_t>(0, std::min(block_end, b.position(r) + 1) - key) & ~std::int64_t(1);
      const float* p = b.scores + r * b.score_stride + (key - tile);
      for (std::int64_t d = 0; d < b.plan.width; d += 16) {
        const float* panel = b.panels + d * kKeyBlock;
        float* o = b.o + r * b.plan.width + d;
        if (common > 0) chain_rows(int(rows), common, p, b.score_stride, 1, panel, 16, o, b.plan.width, true);
        for (std::int64_t i = 0; i < rows; ++i) {
          const std::int64_t left = std::min(block_end, b.position(r + i) + 1) - key - common;
          if (left > 0) add_last_keys(p + i * b.score_stride + common, panel + common * 16, left, o + i * b.plan.width);
        }
      }
    }
  }
}

void store_outputs(Block& b) {
  const bool round = b.sites.rounded(Site::attn_out);
  for (std::int64_t r = 0; r < b.rows; ++r) {
    float* o = b.o + r * b.plan.width;
    const F32x16 factor(b.normalised ? 1.0f : 1.0f / b.row_sum[r]);
    for (std::int64_t d = 0; d < b.plan.width; d += 16) store16(o + d, round_if(round, load16(o + d) * factor));
    store_row(b.a.out, b.q_row(r), b.head(r) * b.a.head_dim, b.a.head_dim, o);
    if (b.a.row_max == nullptr) continue;
    b.a.row_max[b.q_row(r) * b.a.heads + b.head(r)] = b.row_max[r];
    b.a.row_sum[b.q_row(r) * b.a.heads + b.head(r)] = b.row_sum[r];
  }
}

template <class T>
void run_block(Block& b) {
  load_queries(b);
  const std::int64_t tile_keys = b.plan.tile > 0 ? b.plan.tile : b.end;
  for (std::int64_t tile = 0; tile < b.end; tile += tile_keys) {
    const std::int64_t tile_end = std::min(tile + tile_keys, b.end);
    dot_keys<T>(b, tile, tile_end);
    softmax_tile(b, tile, tile_end);
    add_values<T>(b, tile, tile_end);
  }
  store_outputs(b);
}

void run_unit(Context& ctx, int thread, const AttentionForward& a, const Plan& plan, const Numerics& numerics, Sites sites, Unit unit) {
  Block b{.a = a,
          .plan = plan,
          .sites = sites,
          .normalised = numerics.softmax == Softmax::normalised,
          .scale_query = numerics.scale_at == ScaleAt::query,
          .unit = unit};
  b.rows = unit.count * plan.group;
  b.first_pos = unit.sequence->first_pos + unit.first;
  b.end = b.first_pos + unit.count;
  // The extra 16 keep rows off the same cache sets.
  b.score_stride = round_up(plan.tile > 0 ? std::min(plan.tile, b.end) : b.end, 16) + 16;
  b.panels = ctx.scratch(thread, ScratchSlot::op0).get<float>(kKeyBlock * plan.width);
  b.scores = ctx.scratch(thread, ScratchSlot::op1).get<float>(b.rows * b.score_stride);
  b.q = ctx.scratch(thread, ScratchSlot::op2).get<float>(b.rows * (2 * plan.width + 2));
  b.o = b.q + b.rows * plan.width;
  b.row_max = b.o + b.rows * plan.width;
  b.row_sum = b.row_max + b.rows;
  if (a.kv_dtype == DType::bf16) return run_block<BF16>(b);
  run_block<float>(b);
}

}  // namespace

void forward_cpu(Context& ctx, const AttentionForward& a, const Numerics& numerics, Sites sites) {
  Plan plan;
  plan.group = a.heads / a.kv_heads;
  plan.width = round_up(a.head_dim, 16);
  plan.tile = numerics.softmax == Softmax::flash ? numerics.reductions.attention_kv_tile : 0;
  std::int64_t longest = 16;
  for (std::int64_t s = 0; s < a.n_sequences; ++s) longest = std::max(longest, a.sequences[s].first_pos + a.sequences[s].rows);
  const std::int64_t keys = plan.tile > 0 ? std::min(plan.tile, longest) : longest;
  plan.positions = std::max<std::int64_t>(1, std::min(kMaxRows, kScoreFloats / keys) / plan.group);

  auto for_each_unit = [&](auto&& f) {
    for (std::int64_t s = 0; s < a.n_sequences; ++s) {
      const AttentionSequence& sequence = a.sequences[s];
      for (std::int64_t first = 0; first < sequence.rows; first += plan.positions) {
        const std::int64_t count = std::min(plan.positions, sequence.rows - first);
        const double keys_seen = double(sequence.first_pos + first) + 0.5 * double(count);
        // One more row's worth of work stands for packing the keys and values.
        const double cost = (double(count * plan.group) + 1) * keys_seen * double(2 * plan.width);
        for (std::int64_t h = 0; h < a.kv_heads; ++h) f(Unit{&sequence, h, first, count}, cost);
      }
    }
  };
  split_by_cost(ctx, kSerialBelow, for_each_unit,
                [&](const Unit& unit, int thread) { run_unit(ctx, thread, a, plan, numerics, sites, unit); });
}

}  // namespace plumb::attention_detail
