// The forward. Per block, with the stream carried as (delta h, residual r) between blocks:
//   r = h + r;  n = norm(r);  [q k v] = n Wqkv' + b;  q, k = rotate(qknorm(q, k));  a = attention(q, K, V);  h = a Wo' + b
//   r = h + r;  n = norm(r);  [g u] = n Wgu' + b;     m = silu(g) * u;              h = m Wdown' + b
// and at the end  out = norm(h + r).
#include <algorithm>

#include "kernels/core/error.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/swiglu/swiglu.h"
#include "model/qwen_state.h"

namespace plumb {
namespace {

/// y = x W' + bias                                                                 (N, K) (O, K) -> (N, O)
void linear(const QwenRun& run, ConstMat x, ConstMat w, PackedWeight packed, ConstMat bias, Mat y) {
  matmul(run.ctx, {.a = {x}, .b = {w}, .packed = packed, .bias = bias, .c = y}, run.state.numerics.reductions.matmul);
}

void linear(const QwenRun& run, ConstMat x, Role weight, Role bias, int layer, Mat y) {
  const Weights& w = run.weights;
  linear(run, x, w.mat(weight, layer), w.packed(weight, layer), w.mat(bias, layer), y);
}

/// stream = store(h + r); out = norm(h + r)                                        all (N, D)
struct AddNorm {
  ConstMat delta;
  ConstMat residual;
  ConstMat weight;
  Mat stream;
  Mat sum;
  float* rstd;
  Mat out;
};
void add_norm(const QwenRun& run, const AddNorm& n, Sites sites) {
  rmsnorm_forward(run.ctx,
                  {.delta = n.delta,
                   .stream_in = n.residual,
                   .weight = n.weight,
                   .eps = run.state.config.rms_eps,
                   .stream_out = n.delta ? n.stream : Mat{},
                   .sum = n.sum.data == n.stream.data ? Mat{} : n.sum,
                   .out = n.out,
                   .rstd = n.rstd},
                  sites, run.state.numerics.reductions.row_sum);
}

void qkv_linear(const QwenRun& run, int layer, const Activations& a) {
  const Weights& w = run.weights;
  if (run.state.execution.merged_matmuls) {
    return linear(run, a.normed, w.qkv(layer), w.packed_qkv(layer), w.qkv_bias(layer), a.qkv);
  }
  const std::int64_t q = run.state.config.q_cols();
  const std::int64_t kv = run.state.config.kv_cols();
  linear(run, a.normed, Role::q, Role::q_bias, layer, a.qkv.slice_cols(0, q));
  linear(run, a.normed, Role::k, Role::k_bias, layer, a.qkv.slice_cols(q, kv));
  linear(run, a.normed, Role::v, Role::v_bias, layer, a.v);
}

void gate_up_linear(const QwenRun& run, int layer, const Activations& a) {
  const Weights& w = run.weights;
  if (run.state.execution.merged_matmuls) {
    return linear(run, a.post_normed, w.gate_up(layer), w.packed_gate_up(layer), w.gate_up_bias(layer), a.gate_up);
  }
  const std::int64_t f = run.state.config.intermediate_size;
  linear(run, a.post_normed, Role::gate, Role::gate_bias, layer, a.gate_up.slice_cols(0, f));
  linear(run, a.post_normed, Role::up, Role::up_bias, layer, a.gate_up.slice_cols(f, f));
}

/// q and k: QK norm (Qwen3) and rotation.
void rotate(const QwenRun& run, int layer, const Activations& a, Sites sites) {
  const ModelConfig& c = run.state.config;
  RopeForward rope{.in = a.qkv.slice_cols(0, c.q_cols()),
                   .heads = c.heads,
                   .norm_weight = run.weights.mat(Role::q_norm, layer),
                   .eps = c.rms_eps,
                   .table = &run.state.rope,
                   .positions = run.batch.positions,
                   .out = a.q,
                   .rstd = a.q_rstd};
  rope_forward(run.ctx, rope, sites, run.state.numerics.reductions.row_sum);
  rope.in = a.qkv.slice_cols(c.q_cols(), c.kv_cols());
  rope.heads = c.kv_heads;
  rope.norm_weight = run.weights.mat(Role::k_norm, layer);
  rope.out = a.k;
  rope.rstd = a.k_rstd;
  rope_forward(run.ctx, rope, sites, run.state.numerics.reductions.row_sum);
}

/// The rows' places in the cache, each sequence behind its prefix.
void list_cache_rows(const QwenRun& run) {
  std::int32_t* places = run.state.work.cache_rows;
  std::fill_n(places, run.batch.rows, -1);
  for (std::int64_t i = 0; i < run.batch.n_sequences; ++i) {
    const SequenceRows& s = run.batch.sequences[i];
    const std::int64_t first = s.kv_own + s.first_pos - s.prefix_len;
    for (std::int64_t r = 0; r < s.rows; ++r) places[s.first_row + r] = std::int32_t(first + r);
  }
}

void write_cache(const QwenRun& run, int layer, const Activations& a) {
  scatter_rows(run.ctx, a.k, run.state.work.cache_rows, run.cache->k(layer));
  scatter_rows(run.ctx, a.v, run.state.work.cache_rows, run.cache->v(layer));
}

/// Where the keys (or values) of a sequence are: rows of the cache, or the batch's own.
KvRows kv_rows(const SequenceRows& s, ConstMat own, ConstMat cached) {
  if (!cached) return {.own = own.row_bytes(s.first_row), .stride = own.stride};
  return {.prefix = s.prefix_len > 0 ? cached.row_bytes(s.kv_prefix) : nullptr,
          .own = cached.row_bytes(s.kv_own),
          .prefix_len = s.prefix_len,
          .stride = cached.stride};
}

void attend(const QwenRun& run, int layer, const Activations& a, Sites sites) {
  const ModelConfig& c = run.state.config;
  const Batch& batch = run.batch;
  const ConstMat cached_k = run.cache != nullptr ? ConstMat(run.cache->k(layer)) : ConstMat{};
  const ConstMat cached_v = run.cache != nullptr ? ConstMat(run.cache->v(layer)) : ConstMat{};
  for (std::int64_t i = 0; i < batch.n_sequences; ++i) {
    const SequenceRows& s = batch.sequences[i];
    run.state.work.sequences[i] = {
        .first_row = s.first_row, .rows = s.rows, .first_pos = s.first_pos, .k = kv_rows(s, a.k, cached_k), .v = kv_rows(s, a.v, cached_v)};
  }
  // Pad rows take part in weight gradients as exact zeros times finite values: nothing stale may be left there.
  for_each_pad(batch, [&](std::int64_t first, std::int64_t count) { fill_zero(run.ctx, a.attn.slice_rows(first, count)); });
  attention_forward(run.ctx,
                    {.q = a.q,
                     .heads = c.heads,
                     .kv_heads = c.kv_heads,
                     .head_dim = c.head_dim,
                     .kv_dtype = run.state.numerics.compute,
                     .sequences = run.state.work.sequences,
                     .n_sequences = batch.n_sequences,
                     .out = a.attn,
                     .row_max = a.row_max,
                     .row_sum = a.row_sum},
                    run.state.numerics, sites);
}

void check_batch(const QwenRun& run, bool save) {
  const QwenState& s = run.state;
  const Batch& batch = run.batch;
  require(batch.rows >= 1 && batch.rows <= s.max_rows, "internal: a batch of more rows than the model was made for");
  require(run.weights.dtype() == s.numerics.compute && run.weights.config() == s.config, "internal: weights of another model");
  require(run.cache == nullptr || run.cache->dtype() == s.numerics.compute, "internal: a KV cache of another type");
  require(!save || (s.training && run.cache == nullptr), "internal: activations are kept in training only, without a cache");
  std::int64_t next = 0;
  for (std::int64_t i = 0; i < batch.n_sequences; ++i) {
    const SequenceRows& q = batch.sequences[i];
    require(q.rows >= 1 && q.first_row >= next && q.first_row + q.rows <= batch.rows, "internal: sequences overlap or leave the batch");
    require(q.first_pos + q.rows <= s.max_positions, "internal: a sequence longer than the model was made for");
    require(run.cache != nullptr ? q.first_pos >= q.prefix_len : q.first_pos == 0, "internal: a sequence that starts at a wrong position");
    require(!save || q.first_row % 2 == 0, "internal: a training sequence at an odd row");
    next = q.first_row + q.rows;
  }
}

}  // namespace

void block_forward(const QwenRun& run, int layer, const Activations& a, bool output) {
  const QwenState& s = run.state;
  const Weights& w = run.weights;
  const Sites sites = s.sites(layer, Place::block);
  const std::int64_t f = s.config.intermediate_size;

  // n = norm(h + r)                                                               (N, D)
  add_norm(run, {a.delta_in, a.residual_in, w.mat(Role::input_norm, layer), a.input_stream, a.input_sum, a.input_rstd, a.normed},
           s.sites(layer, Place::input_norm));
  // [q k v] = n Wqkv' + b                                                         (N, q + 2 kv)
  qkv_linear(run, layer, a);
  rotate(run, layer, a, sites);
  if (run.cache != nullptr) write_cache(run, layer, a);
  // a = attention(q, K, V)                                                        (N, q)
  attend(run, layer, a, sites);
  // h = a Wo' + b                                                                 (N, D)
  linear(run, a.attn, Role::o, Role::o_bias, layer, a.delta_mid);

  // n = norm(h + r)                                                               (N, D)
  add_norm(run,
           {a.delta_mid, a.input_stream, w.mat(Role::post_attention_norm, layer), a.post_stream, a.post_sum, a.post_rstd, a.post_normed},
           s.sites(layer, Place::post_attention_norm));
  // [g u] = n Wgu' + b                                                            (N, 2 F)
  gate_up_linear(run, layer, a);
  // m = silu(g) * u                                                               (N, F)
  swiglu_forward(run.ctx, {.gate = a.gate_up.slice_cols(0, f), .up = a.gate_up.slice_cols(f, f), .out = a.activated}, sites);
  // h = m Wdown' + b                                                              (N, D)
  if (output) linear(run, a.activated, Role::down, Role::down_bias, layer, a.delta_out);
}

void final_norm_forward(const QwenRun& run, const Activations& last) {
  const Work& w = run.state.work;
  const auto rows = [&](const Mat& m) { return m ? m.slice_rows(0, run.batch.rows) : m; };
  add_norm(run,
           {last.delta_out, last.post_stream, run.weights.mat(Role::final_norm), rows(w.final_stream), rows(w.final_sum), w.final_rstd,
            rows(w.hidden)},
           run.state.final_sites());
}

ConstMat Qwen::forward(Context& ctx, const Weights& weights, const Batch& batch, KvCache* cache, bool save) {
  const QwenRun run{ctx, *state_, weights, batch, cache};
  check_batch(run, save);
  QwenState& s = *state_;
  const auto rows = [&](const Mat& m) { return m ? m.slice_rows(0, batch.rows) : m; };

  embedding_forward(ctx, {.table = weights.mat(Role::embedding), .tokens = batch.tokens, .out = rows(s.work.embedded)},
                    s.sites(0, Place::block));
  if (cache != nullptr) list_cache_rows(run);
  Activations a;
  for (int layer = 0; layer < s.config.layers; ++layer) {
    a = s.block(layer, batch.rows);
    block_forward(run, layer, a, true);
  }
  final_norm_forward(run, a);
  s.saved_rows = save ? batch.rows : -1;
  return rows(s.work.hidden);
}

}  // namespace plumb
