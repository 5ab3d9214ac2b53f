// The backward: the forward's formulas in reverse. d_stream is the gradient of s = h + r at the norm last passed: it flows to
// both h and r. dW += dY' X is one FP32 chain over the rows of the whole step, carried from micro-batch to micro-batch.
#include <algorithm>
#include <initializer_list>

#include "kernels/core/error.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/swiglu/swiglu.h"
#include "model/qwen_state.h"

namespace plumb {
namespace {

class Backward {
 public:
  Backward(const QwenRun& run, Gradients& gradients) : run_(run), s_(run.state), c_(run.state.config), gradients_(gradients) {}

  void final_norm(Mat d_hidden) {
    norm(d_hidden, ConstMat{}, rows(s_.work.final_sum), Role::final_norm, -1, s_.work.final_rstd, s_.final_sites());
  }
  void block(int layer);
  void embedding() {
    if (!wanted(Role::embedding, -1)) return;
    embedding_backward(
        run_.ctx,
        {.d_out = d_embedded(), .tokens = run_.batch.tokens, .d_table = gradient(Role::embedding, -1), .round_to = s_.numerics.compute},
        s_.numerics.backward.embedding);
  }
  /// The lowest layer with a parameter whose gradient is wanted; -1: the embedding's is.
  int lowest_wanted() const;

 private:
  bool wanted(Role role, int layer) const;
  Mat gradient(Role role, int layer) const;
  float* vector_gradient(Role role, int layer) const {
    return wanted(role, layer) ? static_cast<float*>(gradient(role, layer).data) : nullptr;
  }
  Mat rows(const Mat& m) const { return m.slice_rows(0, run_.batch.rows); }
  Mat d_stream() const { return rows(s_.work.d_stream); }
  ConstMat d_delta() const;
  Mat d_embedded() const { return s_.work.d_embedded ? rows(s_.work.d_embedded) : d_stream(); }
  MatmulOrder weight_order() const { return weight_gradient_order(s_.numerics.reductions.matmul); }

  void input_gradient(ConstMat d_y, ConstMat w, Mat d_x);
  void weight_gradient(ConstMat d_y, ConstMat x, Role weight, Role bias, int layer);
  void weight_gradients(ConstMat d_y, ConstMat x, std::initializer_list<Role> weights, std::initializer_list<Role> biases, int layer);
  void linear(ConstMat d_y, ConstMat x, Role weight, Role bias, int layer, Mat d_x);
  void qkv_linear(int layer, const Activations& a, ConstMat d_qkv, Mat d_normed);
  void gate_up_linear(int layer, const Activations& a, ConstMat d_gate_up, Mat d_normed);
  Mat d_keys(Mat d_qkv) const;
  void attention(const Activations& a, ConstMat d_attn, Mat d_qkv, Sites sites);
  void rotation(int layer, const Activations& a, Mat d_qkv, Sites sites);
  void norm(ConstMat d_out, ConstMat d_stream_in, ConstMat sum, Role weight, int layer, const float* rstd, Sites sites);

  const QwenRun& run_;
  QwenState& s_;
  const ModelConfig& c_;
  Gradients& gradients_;
};

bool Backward::wanted(Role role, int layer) const {
  const ParameterList& list = run_.weights.parameters();
  const Parameter* p = list.find(role, layer);
  return p != nullptr && (gradients_.frozen.empty() || gradients_.frozen[std::size_t(p - list.all().data())] == 0);
}

Mat Backward::gradient(Role role, int layer) const {
  const Parameter* p = run_.weights.parameters().find(role, layer);
  return make_mat(gradients_.flat + p->offset, p->rows, p->cols, DType::f32);
}

int Backward::lowest_wanted() const {
  const std::vector<Parameter>& all = run_.weights.parameters().all();
  int lowest = c_.layers;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool in_layers = all[i].layer >= 0 || all[i].role == Role::embedding;
    if (in_layers && wanted(all[i].role, all[i].layer)) lowest = std::min(lowest, all[i].layer);
  }
  return lowest;
}

/// The gradient of what a linear added to the stream.
ConstMat Backward::d_delta() const {
  if (!s_.work.d_delta) return d_stream();
  const Mat d = rows(s_.work.d_delta);
  convert(run_.ctx, d_stream(), d);
  return d;
}

/// dX = R(dY W)                                                                    (N, O) (O, K) -> (N, K)
void Backward::input_gradient(ConstMat d_y, ConstMat w, Mat d_x) {
  const bool rounded = s_.numerics.compute != DType::f32;
  matmul(run_.ctx, {.a = {d_y}, .b = {w, true}, .c = d_x, .round = rounded, .round_to = s_.numerics.compute},
         s_.numerics.reductions.matmul);
}

/// dW += dY' X, db += column sums of dY                                            (N, O) (N, K) -> (O, K), (O)
void Backward::weight_gradient(ConstMat d_y, ConstMat x, Role weight, Role bias, int layer) {
  if (wanted(weight, layer)) {
    matmul(run_.ctx, {.a = {d_y, true}, .b = {x, true}, .c = gradient(weight, layer), .accumulate = true}, weight_order());
  }
  if (wanted(bias, layer)) column_sums(run_.ctx, d_y, vector_gradient(bias, layer));
}

/// The same for weights that read one x and whose outputs lie beside each other in dY: their rows are neighbours in memory, so
/// that one product computes the chains of all of them where none is frozen.
void Backward::weight_gradients(ConstMat d_y, ConstMat x, std::initializer_list<Role> weights, std::initializer_list<Role> biases,
                                int layer) {
  const ParameterList& list = run_.weights.parameters();
  const Mat first = gradient(*weights.begin(), layer);
  bool merged = true;
  std::int64_t rows = 0;
  for (const Role role : weights) {
    merged &= wanted(role, layer) && gradient(role, layer).data == first.row_bytes(rows);
    rows += list.find(role, layer)->rows;
  }
  if (merged) {
    const Mat all = make_mat(first.data, rows, first.cols, DType::f32);
    matmul(run_.ctx, {.a = {d_y, true}, .b = {x, true}, .c = all, .accumulate = true}, weight_order());
  }
  std::int64_t col = 0;
  const Role* bias = biases.begin();
  for (const Role role : weights) {
    const ConstMat part = d_y.slice_cols(col, list.find(role, layer)->rows);
    if (!merged) weight_gradient(part, x, role, *bias, layer);
    if (merged && wanted(*bias, layer)) column_sums(run_.ctx, part, vector_gradient(*bias, layer));
    col += part.cols;
    ++bias;
  }
}

void Backward::linear(ConstMat d_y, ConstMat x, Role weight, Role bias, int layer, Mat d_x) {
  weight_gradient(d_y, x, weight, bias, layer);
  input_gradient(d_y, run_.weights.mat(weight, layer), d_x);
}

/// Gradient of q, k, v towards the norm's output: one chain over all their rows, or R(R(gv + gk) + gq) as autograd adds them
/// (without R where they are added in FP32).
void Backward::qkv_linear(int layer, const Activations& a, ConstMat d_qkv, Mat d_normed) {
  const ConstMat d_q = d_qkv.slice_cols(0, c_.q_cols());
  const ConstMat d_k = d_qkv.slice_cols(c_.q_cols(), c_.kv_cols());
  const ConstMat d_v = d_qkv.slice_cols(c_.q_cols() + c_.kv_cols(), c_.kv_cols());
  if (s_.numerics.backward.merged_qkv) {
    weight_gradients(d_qkv, a.normed, {Role::q, Role::k, Role::v}, {Role::q_bias, Role::k_bias, Role::v_bias}, layer);
    return input_gradient(d_qkv, run_.weights.qkv(layer), d_normed);
  }
  const Mat d_branch = rows(s_.work.d_branch);
  linear(d_v, a.normed, Role::v, Role::v_bias, layer, d_normed);
  linear(d_k, a.normed, Role::k, Role::k_bias, layer, d_branch);
  add_in_place(run_.ctx, d_normed, d_branch);
  linear(d_q, a.normed, Role::q, Role::q_bias, layer, d_branch);
  add_in_place(run_.ctx, d_normed, d_branch);
}

/// Likewise for gate and up: one chain, or R(gu + gg).
void Backward::gate_up_linear(int layer, const Activations& a, ConstMat d_gate_up, Mat d_normed) {
  const ConstMat d_gate = d_gate_up.slice_cols(0, c_.intermediate_size);
  const ConstMat d_up = d_gate_up.slice_cols(c_.intermediate_size, c_.intermediate_size);
  if (s_.numerics.backward.merged_gate_up) {
    weight_gradients(d_gate_up, a.post_normed, {Role::gate, Role::up}, {Role::gate_bias, Role::up_bias}, layer);
    return input_gradient(d_gate_up, run_.weights.gate_up(layer), d_normed);
  }
  const Mat d_branch = rows(s_.work.d_branch);
  linear(d_up, a.post_normed, Role::up, Role::up_bias, layer, d_normed);
  linear(d_gate, a.post_normed, Role::gate, Role::gate_bias, layer, d_branch);
  add_in_place(run_.ctx, d_normed, d_branch);
}

/// Where attention leaves the gradient of the rotated keys.
Mat Backward::d_keys(Mat d_qkv) const { return s_.work.d_k ? rows(s_.work.d_k) : d_qkv.slice_cols(c_.q_cols(), c_.kv_cols()); }

void Backward::attention(const Activations& a, ConstMat d_attn, Mat d_qkv, Sites sites) {
  const Batch& batch = run_.batch;
  // attend() filled the list for another layer of the same batch: only the rows matter here.
  for_each_pad(batch, [&](std::int64_t first, std::int64_t count) {
    fill_zero(run_.ctx, d_qkv.slice_rows(first, count));
    if (s_.work.d_k) fill_zero(run_.ctx, d_keys(d_qkv).slice_rows(first, count));
  });
  attention_backward(run_.ctx,
                     {.d_out = d_attn,
                      .q = a.q,
                      .k = a.k,
                      .v = a.v,
                      .out = a.attn,
                      .row_max = a.row_max,
                      .row_sum = a.row_sum,
                      .heads = c_.heads,
                      .kv_heads = c_.kv_heads,
                      .head_dim = c_.head_dim,
                      .sequences = s_.work.sequences,
                      .n_sequences = batch.n_sequences,
                      .d_q = d_qkv.slice_cols(0, c_.q_cols()),
                      .d_k = d_keys(d_qkv),
                      .d_v = d_qkv.slice_cols(c_.q_cols() + c_.kv_cols(), c_.kv_cols())},
                     s_.numerics, sites, s_.numerics.backward.attention);
}

void Backward::rotation(int layer, const Activations& a, Mat d_qkv, Sites sites) {
  const BackwardModes& mode = s_.numerics.backward;
  const Mat d_q = d_qkv.slice_cols(0, c_.q_cols());
  RopeBackward rope{.d_out = d_q,
                    .in = a.qkv.slice_cols(0, c_.q_cols()),
                    .heads = c_.heads,
                    .norm_weight = run_.weights.mat(Role::q_norm, layer),
                    .rstd = a.q_rstd,
                    .table = &s_.rope,
                    .positions = run_.batch.positions,
                    .d_in = d_q,
                    .d_norm_weight = vector_gradient(Role::q_norm, layer),
                    .f32_into_norm = mode.one_graph};
  rope_backward(run_.ctx, rope, sites, mode.rope, mode.qk_norm, s_.numerics.reductions.row_sum);
  rope.d_in = d_qkv.slice_cols(c_.q_cols(), c_.kv_cols());
  rope.d_out = d_keys(d_qkv);
  rope.in = a.qkv.slice_cols(c_.q_cols(), c_.kv_cols());
  rope.heads = c_.kv_heads;
  rope.norm_weight = run_.weights.mat(Role::k_norm, layer);
  rope.rstd = a.k_rstd;
  rope.d_norm_weight = vector_gradient(Role::k_norm, layer);
  rope.f32_into_norm = false;
  rope_backward(run_.ctx, rope, sites, mode.rope, mode.qk_norm, s_.numerics.reductions.row_sum);
}

void Backward::norm(ConstMat d_out, ConstMat d_stream_in, ConstMat sum, Role weight, int layer, const float* rstd, Sites sites) {
  const bool first = weight == Role::input_norm && layer == 0;
  if (first && s_.work.d_embedded) sites.set(Site::resid_store, false);
  rmsnorm_backward(run_.ctx,
                   {.d_out = d_out,
                    .d_stream = d_stream_in,
                    .sum = sum,
                    .weight = run_.weights.mat(weight, layer),
                    .rstd = rstd,
                    .d_sum = first ? d_embedded() : d_stream(),
                    .d_weight = vector_gradient(weight, layer)},
                   sites, s_.numerics.backward.norm, s_.numerics.reductions.row_sum);
}

void Backward::block(int layer) {
  const Activations a = s_.block(layer, run_.batch.rows);
  if (s_.execution.recompute) block_forward(run_, layer, a, false);
  const Work& w = s_.work;
  const Sites sites = s_.sites(layer, Place::block);
  const std::int64_t f = c_.intermediate_size;
  const Mat d_normed = rows(w.d_normed);
  const Mat d_qkv = rows(w.d_qkv);
  const Mat d_attn = rows(w.d_attn);
  const Mat d_activated = rows(w.d_activated);
  const Mat gate = a.gate_up.slice_cols(0, f);
  const Mat up = a.gate_up.slice_cols(f, f);

  // h = m Wdown' + b
  linear(d_delta(), a.activated, Role::down, Role::down_bias, layer, d_activated);
  // m = silu(g) * u; the gradients take the places of g and u
  swiglu_backward(run_.ctx, {.d_out = d_activated, .gate = gate, .up = up, .d_gate = gate, .d_up = up}, sites, s_.numerics.backward.swiglu);
  // [g u] = n Wgu' + b
  gate_up_linear(layer, a, a.gate_up, d_normed);
  // n = norm(h + r)
  norm(d_normed, d_stream(), a.post_sum, Role::post_attention_norm, layer, a.post_rstd, s_.sites(layer, Place::post_attention_norm));

  // h = a Wo' + b
  linear(d_delta(), a.attn, Role::o, Role::o_bias, layer, d_attn);
  // a = attention(q, K, V)
  attention(a, d_attn, d_qkv, sites);
  rotation(layer, a, d_qkv, sites);
  // [q k v] = n Wqkv' + b
  qkv_linear(layer, a, d_qkv, d_normed);
  // n = norm(h + r)
  norm(d_normed, d_stream(), a.input_sum, Role::input_norm, layer, a.input_rstd, s_.sites(layer, Place::input_norm));
}

}  // namespace

void Qwen::backward(Context& ctx, const Weights& weights, const Batch& batch, Mat d_hidden, Gradients& gradients) {
  QwenState& s = *state_;
  require(s.saved_rows == batch.rows, "internal: a backward without the forward of the same batch");
  s.saved_rows = -1;  // the backward overwrites activations
  const QwenRun run{ctx, s, weights, batch};
  Backward backward(run, gradients);
  const int lowest = backward.lowest_wanted();
  backward.final_norm(d_hidden);
  for (int layer = s.config.layers - 1; layer >= std::max(lowest, 0); --layer) backward.block(layer);
  if (lowest < 0) backward.embedding();
}

}  // namespace plumb
