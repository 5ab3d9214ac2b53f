// Backward. The unit of work is (sequence, kv head): one thread recomputes the probabilities of every query head of the
// group, block of queries by block, and carries the chains of dK and dV over heads and queries in order. Chains of dQ run
// over the keys. What lies above the diagonal is zero or left out at the granularity of a tile, which changes no bit.
// Scratch: op0 packed keys and values, op1 probabilities and gradients of scores, op2 queries, op3 dK and dV.
#include <cmath>

#include "kernels/attention/attention_cpu.h"
#include "kernels/attention/attention_math.h"
#include "kernels/attention/attention_tiles.h"

namespace plumb::attention_detail {
namespace {

constexpr std::int64_t kScoreFloats = 32 * 1024;  // probabilities of a block of queries
constexpr std::int64_t kMaxRows = 32;             // queries of a block; even, so that chains over queries split between pairs
constexpr std::int64_t kMinRows = 8;
constexpr double kSerialBelow = 30000;

struct Unit {
  const AttentionSequence* sequence = nullptr;
  std::int64_t kv_head = 0;
};

/// Memory and geometry of the unit at work. width: head_dim rounded up to 16; keys: the length rounded up to 16.
struct Work {
  const AttentionBackward& a;
  const Reductions& orders;
  Sites sites;
  Sites gradient_sites;  // where gradients round in mode mirror
  BackwardMode mode;
  bool scale_query;
  float scale;
  Unit unit;
  std::int64_t width = 0;
  std::int64_t length = 0;
  std::int64_t keys = 0;
  std::int64_t stride = 0;     // of p and ds
  std::int64_t max_rows = 0;   // of a block of queries
  float* k_columns = nullptr;  // (keys/16, head_dim, 16)
  float* v_columns = nullptr;  // (keys/16, head_dim, 16)
  float* k_rows = nullptr;     // (width/16, keys, 16)
  float* p = nullptr;          // (max_rows, stride) scores, then probabilities
  float* ds = nullptr;         // (max_rows, stride) dP, then the gradient of q.k
  float* q = nullptr;          // (max_rows, width)
  float* d_out = nullptr;      // (max_rows, width)
  float* d_q = nullptr;        // (max_rows, width)
  float* d_k = nullptr;        // (keys, width) chains
  float* d_v = nullptr;        // (keys, width)
  float* k_sum = nullptr;      // (keys, width) sums over the heads of rounded gradients; mirror only
  float* v_sum = nullptr;      // (keys, width)

  std::int64_t head_dim() const { return a.head_dim; }
  bool natural_qk() const { return orders.attention_qk == MatmulOrder::natural; }
  bool natural_pv() const { return orders.attention_pv == MatmulOrder::natural; }
  std::int64_t row(std::int64_t position) const { return unit.sequence->first_row + position; }
  std::int64_t kv_col() const { return unit.kv_head * a.head_dim; }
};

/// A block of queries [first, first + rows) of one head.
struct Queries {
  std::int64_t head = 0;
  std::int64_t first = 0;
  std::int64_t rows = 0;
  std::int64_t padded = 0;  // rows rounded up to even; the row added is zeros
  std::int64_t end = 0;     // keys seen by the last row, rounded up to 16
};

template <class T>
void pack_keys(Work& w) {
  for (std::int64_t first = 0; first < w.keys; first += 16) {
    const std::int64_t count = std::min<std::int64_t>(16, w.length - first);
    const T* k[16];
    const T* v[16];
    for (std::int64_t i = 0; i < count; ++i) {
      k[i] = w.a.k.row<T>(w.row(first + i)) + w.kv_col();
      v[i] = w.a.v.row<T>(w.row(first + i)) + w.kv_col();
    }
    pack_columns(k, count, w.head_dim(), w.k_columns + first * w.head_dim());
    pack_columns(v, count, w.head_dim(), w.v_columns + first * w.head_dim());
    pack_rows(k, count, w.head_dim(), w.keys * 16, w.k_rows + first * 16);
  }
  for (std::int64_t d = 0; d < w.width; d += 16) std::fill_n(w.k_rows + d * w.keys + w.length * 16, (w.keys - w.length) * 16, 0.0f);
}

void load_queries(Work& w, const Queries& b) {
  const std::int64_t col = b.head * w.head_dim();
  for (std::int64_t r = 0; r < b.rows; ++r) {
    float* q = w.q + r * w.width;
    load_row(w.a.q, w.row(b.first + r), col, w.head_dim(), q);
    if (w.scale_query)
      for (std::int64_t d = 0; d < w.head_dim(); ++d) q[d] *= w.scale;
    load_row(w.a.d_out, w.row(b.first + r), col, w.head_dim(), w.d_out + r * w.width);
  }
  if (b.padded == b.rows) return;
  std::fill_n(w.q + b.rows * w.width, w.width, 0.0f);
  std::fill_n(w.d_out + b.rows * w.width, w.width, 0.0f);
  std::fill_n(w.p + b.rows * w.stride, b.end, 0.0f);
  std::fill_n(w.ds + b.rows * w.stride, b.end, 0.0f);
}

/// Rows [from, to) of one panel.
void chain_block(std::int64_t from, std::int64_t to, Chains t) {
  const float* a = t.a;
  float* c = t.c;
  for (std::int64_t r = from; r < to; r += kTileRows) {
    t.a = a + r * t.a_row;
    t.c = c + r * t.c_row;
    chain_rows(std::min<std::int64_t>(kTileRows, to - r), 1, t);
  }
}

/// p = q.k and ds = dO.v where a tile has something to see.
void dot_keys(Work& w, const Queries& b) {
  for (std::int64_t key = 0; key < b.end; key += 16) {
    const std::int64_t from = std::max<std::int64_t>(0, key - b.first) / kTileRows * kTileRows;
    const std::int64_t panel = key * w.head_dim();
    Chains scores{.natural = w.natural_qk(),
                  .n = w.head_dim(),
                  .a = w.q,
                  .a_row = w.width,
                  .a_k = 1,
                  .b = w.k_columns + panel,
                  .b_k = 16,
                  .c = w.p + key,
                  .c_row = w.stride};
    Chains d_probs = scores;
    d_probs.natural = w.natural_pv();
    d_probs.a = w.d_out;
    d_probs.b = w.v_columns + panel;
    d_probs.c = w.ds + key;
    chain_block(from, b.rows, scores);
    chain_block(from, b.rows, d_probs);
  }
}

/// <dO, O> of one row, 16 lanes.
float output_dot(const Work& w, std::int64_t position, std::int64_t head, const float* d_out) {
  F32x16 sum(0.0f);
  float out[16];
  for (std::int64_t d = 0; d < w.head_dim(); d += 16) {
    const std::int64_t n = std::min<std::int64_t>(16, w.head_dim() - d);
    load_row(w.a.out, w.row(position), head * w.head_dim() + d, n, out);
    sum = fma(load_part(d_out + d, int(n)), load_part(out, int(n)), sum);
  }
  return fold_sum(sum);
}

void softmax_gradient(Work& w, const Queries& b) {
  const float scale = w.scale_query ? 1.0f : w.scale;
  for (std::int64_t r = 0; r < b.rows; ++r) {
    const std::int64_t position = b.first + r;
    const std::int64_t saved = w.row(position) * w.a.heads + b.head;
    RowGradient g{.n = position + 1,
                  .width = b.end,
                  .max = w.a.row_max[saved],
                  .sum = w.a.row_sum[saved],
                  .scale = scale,
                  .end = SequenceEnd::of(w.orders, w.length)};
    float* p = w.p + r * w.stride;
    float* ds = w.ds + r * w.stride;
    scale_row(w.sites, p, g.n, scale);
    if (w.mode == BackwardMode::fused) g.row_dot = output_dot(w, position, b.head, w.d_out + r * w.width);
    with_exp(w.orders.attention_exp, [&](auto e) {
      if (w.mode == BackwardMode::mirror) return mirror_gradient_row<e()>(g, w.gradient_sites, p, ds);
      fused_gradient_row<e()>(g, p, ds);
    });
  }
}

void query_gradient(Work& w, const Queries& b) {
  for (std::int64_t r = 0; r < b.rows; r += kTileRows) {
    const std::int64_t rows = std::min<std::int64_t>(kTileRows, b.rows - r);
    const std::int64_t n = round_up(b.first + r + rows, 2);
    chain_rows(rows, w.width / 16,
               {.natural = w.natural_qk(),
                .n = n,
                .a = w.ds + r * w.stride,
                .a_row = w.stride,
                .a_k = 1,
                .b = w.k_rows,
                .b_k = 16,
                .b_panel = w.keys * 16,
                .c = w.d_q + r * w.width,
                .c_row = w.width});
  }
  for (std::int64_t r = 0; r < b.rows; ++r) {
    float* d_q = w.d_q + r * w.width;
    if (w.scale_query)
      for (std::int64_t d = 0; d < w.width; d += 16) store16(d_q + d, load16(d_q + d) * F32x16(w.scale));
    store_row(w.a.d_q, w.row(b.first + r), b.head * w.head_dim(), w.head_dim(), d_q);
  }
}

/// Continues dK += dS^T Q and dV += P^T dO over the block's queries.
void key_gradient(Work& w, const Queries& b) {
  const std::int64_t end = std::min(b.end, w.length);
  for (std::int64_t key = 0; key < end; key += kTileRows) {
    const std::int64_t rows = std::min<std::int64_t>(kTileRows, end - key);
    const std::int64_t from = std::max<std::int64_t>(0, key - b.first) & ~std::int64_t(1);
    const std::int64_t n = b.padded - from;
    if (n <= 0) continue;
    Chains d_k{.natural = w.natural_qk(),
               .n = n,
               .a = w.ds + from * w.stride + key,
               .a_row = 1,
               .a_k = w.stride,
               .b = w.q + from * w.width,
               .b_k = w.width,
               .b_panel = 16,
               .c = w.d_k + key * w.width,
               .c_row = w.width,
               .carry = true};
    Chains d_v = d_k;
    d_v.natural = w.natural_pv();
    d_v.a = w.p + from * w.stride + key;
    d_v.b = w.d_out + from * w.width;
    d_v.c = w.d_v + key * w.width;
    chain_rows(rows, w.width / 16, d_k);
    chain_rows(rows, w.width / 16, d_v);
  }
}

void clear(const Work& w, float* a, float* b) {
  std::fill_n(a, w.keys * w.width, 0.0f);
  std::fill_n(b, w.keys * w.width, 0.0f);
}

/// mirror: a head's gradient is a tensor of its own, in the storage type of k and v.
void add_head(const Work& w, float* head, ConstMat like, float* sum) {
  const bool round = like.dtype == DType::bf16;
  if (is_emulated(like.dtype)) round_row(head, w.keys * w.width, like.dtype);
  for (std::int64_t i = 0; i < w.keys * w.width; i += 16) store16(sum + i, load16(sum + i) + round_if(round, load16(head + i)));
}

void store_key_gradients(const Work& w, const float* d_k, const float* d_v) {
  for (std::int64_t t = 0; t < w.length; ++t) {
    store_row(w.a.d_k, w.row(t), w.kv_col(), w.head_dim(), d_k + t * w.width);
    store_row(w.a.d_v, w.row(t), w.kv_col(), w.head_dim(), d_v + t * w.width);
  }
}

void run_heads(Work& w) {
  const std::int64_t group = w.a.heads / w.a.kv_heads;
  const bool mirror = w.mode == BackwardMode::mirror;
  clear(w, w.d_k, w.d_v);
  if (mirror) clear(w, w.k_sum, w.v_sum);
  for (std::int64_t h = 0; h < group; ++h) {
    for (std::int64_t first = 0; first < w.length; first += w.max_rows) {
      Queries b{.head = w.unit.kv_head * group + h, .first = first, .rows = std::min(w.max_rows, w.length - first)};
      b.padded = round_up(b.rows, 2);
      b.end = round_up(first + b.rows, 16);
      load_queries(w, b);
      dot_keys(w, b);
      softmax_gradient(w, b);
      query_gradient(w, b);
      key_gradient(w, b);
    }
    if (!mirror) continue;
    add_head(w, w.d_k, w.a.k, w.k_sum);
    add_head(w, w.d_v, w.a.v, w.v_sum);
    clear(w, w.d_k, w.d_v);
  }
  store_key_gradients(w, mirror ? w.k_sum : w.d_k, mirror ? w.v_sum : w.d_v);
}

void run_unit(Context& ctx, int thread, const AttentionBackward& a, const Numerics& numerics, Sites sites, BackwardMode mode, Unit unit) {
  Work w{.a = a,
         .orders = numerics.reductions,
         .sites = sites,
         .gradient_sites = sites,
         .mode = mode,
         .scale_query = numerics.scale_at == ScaleAt::query,
         .scale = attention_scale(a.head_dim),
         .unit = unit};
  if (numerics.backward.one_graph) w.gradient_sites.set(Site::attn_scaled, false);
  w.width = round_up(a.head_dim, 16);
  w.length = unit.sequence->rows;
  w.keys = round_up(w.length, 16);
  w.stride = w.keys + 16;  // keeps rows off the same cache sets
  w.max_rows = std::clamp(kScoreFloats / w.keys, kMinRows, kMaxRows) & ~std::int64_t(1);
  const std::int64_t area = w.keys * w.width;
  w.k_columns = ctx.scratch(thread, ScratchSlot::op0).get<float>(3 * area);
  w.v_columns = w.k_columns + area;
  w.k_rows = w.v_columns + area;
  w.p = ctx.scratch(thread, ScratchSlot::op1).get<float>(2 * w.max_rows * w.stride);
  w.ds = w.p + w.max_rows * w.stride;
  w.q = ctx.scratch(thread, ScratchSlot::op2).get<float>(3 * w.max_rows * w.width);
  w.d_out = w.q + w.max_rows * w.width;
  w.d_q = w.d_out + w.max_rows * w.width;
  w.d_k = ctx.scratch(thread, ScratchSlot::op3).get<float>(4 * area);
  w.d_v = w.d_k + area;
  w.k_sum = w.d_v + area;
  w.v_sum = w.k_sum + area;
  if (a.k.dtype == DType::bf16) {
    pack_keys<BF16>(w);
  } else {
    pack_keys<float>(w);
  }
  run_heads(w);
}

}  // namespace

void backward_cpu(Context& ctx, const AttentionBackward& a, const Numerics& numerics, Sites sites, BackwardMode mode) {
  auto for_each_unit = [&](auto&& f) {
    for (std::int64_t s = 0; s < a.n_sequences; ++s) {
      const auto length = double(a.sequences[s].rows);
      if (length == 0) continue;
      for (std::int64_t h = 0; h < a.kv_heads; ++h)
        f(Unit{&a.sequences[s], h}, length * (length + 8) * double(a.heads / a.kv_heads) * double(a.head_dim));
    }
  };
  split_by_cost(ctx, kSerialBelow, for_each_unit,
                [&](const Unit& unit, int thread) { run_unit(ctx, thread, a, numerics, sites, mode, unit); });
}

}  // namespace plumb::attention_detail
