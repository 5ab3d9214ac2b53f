#include "model/trace.h"

#include "kernels/core/error.h"
#include "kernels/embedding/embedding.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "model/qwen_state.h"

namespace plumb {

/// What a Qwen overwrites before its block ends.
struct TracedForward::OwnMemory {
  Mat q;            // (N, q) rotated, so that qkv stays as it was
  Mat k;            // (N, kv)
  Mat post_normed;  // (N, D) not in the place of the input norm's output
  Mat delta_mid;    // (N, D) not in the place of the block's output

  OwnMemory(Arena& arena, const ModelConfig& c, DType dtype, std::int64_t rows)
      : q(arena.mat(rows, c.q_cols(), dtype)),
        k(arena.mat(rows, c.kv_cols(), dtype)),
        post_normed(arena.mat(rows, c.hidden_size, dtype)),
        delta_mid(arena.mat(rows, c.hidden_size, dtype)) {}
};

TracedForward::TracedForward(const ModelConfig& config, const Numerics& numerics, std::int64_t max_rows, std::int64_t max_positions)
    : state_(make_qwen_state(config, numerics, {}, max_rows, max_positions, false)) {
  Arena measure;
  OwnMemory(measure, config, numerics.compute, max_rows);
  own_memory_ = Buffer(measure.peak());
  Arena arena(own_memory_);
  own_ = std::make_unique<OwnMemory>(arena, config, numerics.compute, max_rows);
}

TracedForward::~TracedForward() = default;

ConstMat TracedForward::run(Context& ctx, const Weights& weights, const Batch& batch, const StageWatcher& watch) {
  QwenState& s = *state_;
  const QwenRun run{ctx, s, weights, batch, nullptr};
  require(batch.rows >= 1 && batch.rows <= s.max_rows, "internal: a batch of more rows than the trace was made for");
  require(weights.dtype() == s.numerics.compute && weights.config() == s.config, "internal: weights of another model");
  const auto rows = [&](const Mat& m) { return m ? m.slice_rows(0, batch.rows) : m; };

  embedding_forward(ctx, {.table = weights.mat(Role::embedding), .tokens = batch.tokens, .out = rows(s.work.embedded)},
                    s.sites(0, Place::block));
  watch(0, Stage::embedding, rows(s.work.embedded));
  Activations a;
  for (int layer = 0; layer < s.config.layers; ++layer) {
    a = s.block(layer, batch.rows);
    a.q = rows(own_->q);
    a.k = rows(own_->k);
    a.post_normed = rows(own_->post_normed);
    a.delta_mid = rows(own_->delta_mid);
    block_forward(run, layer, a, true);
    if (layer > 0) watch(layer, Stage::input_store, a.input_stream);
    watch(layer, Stage::input_norm, a.normed);
    watch(layer, Stage::qkv, a.qkv);
    watch(layer, Stage::q, a.q);
    watch(layer, Stage::k, a.k);
    watch(layer, Stage::attention, a.attn);
    watch(layer, Stage::o, a.delta_mid);
    watch(layer, Stage::post_store, a.post_stream);
    watch(layer, Stage::post_norm, a.post_normed);
    watch(layer, Stage::gate_up, a.gate_up);
    watch(layer, Stage::swiglu, a.activated);
    watch(layer, Stage::down, a.delta_out);
  }
  final_norm_forward(run, a);
  const Mat hidden = rows(s.work.hidden);
  watch(s.config.layers - 1, Stage::final_norm, hidden);
  return hidden;
}

}  // namespace plumb
