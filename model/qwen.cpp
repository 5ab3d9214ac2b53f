#include "model/qwen.h"

#include <fmt/format.h>

#include <array>

#include "kernels/core/error.h"
#include "kernels/elementwise/elementwise.h"
#include "model/qwen_state.h"

namespace plumb {

bool norm_reads_stored(Sites s) {
  return s.rounded(Site::resid_store) == s.rounded(Site::resid_sum_to_var) &&
         s.rounded(Site::resid_store) == s.rounded(Site::resid_sum_to_scale);
}

namespace {

/// Hands out the matrices of max_rows rows that a Work consists of.
class Planner {
 public:
  Planner(Arena& arena, const ModelConfig& c, const Numerics& numerics, const ModelExecution& execution, std::int64_t rows, bool training)
      : arena_(arena), c_(c), numerics_(numerics), recompute_(training && execution.recompute), training_(training), rows_(rows) {
    bool any_unrounded = !numerics.base.rounded(Site::embedding);
    for (int l = 0; l < c.layers; ++l) {
      for (Place p : {Place::input_norm, Place::post_attention_norm}) {
        const Sites s = sites(l, p);
        any_unrounded |= !s.rounded(Site::resid_store);
        all_stored_ &= norm_reads_stored(s);
      }
    }
    stream_ = any_unrounded ? DType::f32 : numerics.compute;
    // The stream's gradient is a tensor of the stream's type, unless a fused norm stores it for the next linear.
    d_stream_ = numerics.backward.norm == BackwardMode::mirror ? stream_ : numerics.compute;
  }

  Work plan() {
    const std::int64_t d = c_.hidden_size;
    Work w;
    w.embedded = mat(d, stream_);
    w.delta = mat(d);
    w.hidden = mat(d);
    w.sequences = arena_.array<AttentionSequence>(rows_);
    w.cache_rows = arena_.array<std::int32_t>(rows_);
    const bool one_per_layer = training_ && !recompute_;
    if (!training_ || (one_per_layer && !all_stored_)) streams_ = {mat(d, stream_), mat(d, stream_)};
    for (int l = 0; l < (one_per_layer ? c_.layers : 1); ++l) w.blocks.push_back(block(one_per_layer ? l : -1));
    if (recompute_) keep_inputs(w);
    if (!training_) return w;
    const bool final_stored = norm_reads_stored(sites(c_.layers - 1, Place::final_norm));
    const bool rounded = final_stored && sites(c_.layers - 1, Place::final_norm).rounded(Site::resid_store);
    w.final_sum = mat(d, rounded ? numerics_.compute : DType::f32);
    w.final_stream = final_stored ? w.final_sum : Mat{};
    w.final_rstd = arena_.array<float>(rows_);
    plan_backward(w);
    return w;
  }

 private:
  Sites sites(int layer, Place place) const { return numerics_.sites(layer, c_.layers, place); }
  Mat mat(std::int64_t cols) { return arena_.mat(rows_, cols, numerics_.compute); }
  Mat mat(std::int64_t cols, DType dtype) { return arena_.mat(rows_, cols, dtype); }

  /// The stream after a norm's add, and the sum as that norm read it. layer -1: whatever any layer needs.
  void plan_sum(int layer, Place place, Mat& stream, Mat& sum) {
    const std::int64_t d = c_.hidden_size;
    const int which = place == Place::input_norm ? 0 : 1;
    if (!training_) {
      stream = streams_[which];
      return;
    }
    if (layer < 0) {
      stream = mat(d, stream_);
      if (!all_stored_) sum = mat(d, DType::f32);
      return;
    }
    if (layer == 0 && place == Place::input_norm) return;  // no add: the embedding is both
    const bool stored = norm_reads_stored(sites(layer, place));
    stream = stored ? mat(d, stream_) : streams_[which];
    sum = stored ? stream : mat(d, DType::f32);
  }

  Activations block(int layer) {
    const std::int64_t q = c_.q_cols();
    const std::int64_t kv = c_.kv_cols();
    Activations a;
    plan_sum(layer, Place::input_norm, a.input_stream, a.input_sum);
    plan_sum(layer, Place::post_attention_norm, a.post_stream, a.post_sum);
    a.normed = mat(c_.hidden_size);
    a.post_normed = training_ ? mat(c_.hidden_size) : a.normed;
    a.qkv = mat(q + 2 * kv);
    a.q = a.qkv.slice_cols(0, q);
    a.k = a.qkv.slice_cols(q, kv);
    a.v = a.qkv.slice_cols(q + kv, kv);
    a.attn = mat(q);
    a.gate_up = mat(2 * std::int64_t(c_.intermediate_size));
    a.activated = mat(c_.intermediate_size);
    if (!training_) return a;
    a.input_rstd = arena_.array<float>(rows_);
    a.post_rstd = arena_.array<float>(rows_);
    a.row_max = arena_.array<float>(rows_ * c_.heads);
    a.row_sum = arena_.array<float>(rows_ * c_.heads);
    if (!c_.qk_norm) return a;
    a.q = mat(q);  // the norm's backward reads what came before it
    a.k = mat(kv);
    a.q_rstd = arena_.array<float>(rows_ * c_.heads);
    a.k_rstd = arena_.array<float>(rows_ * c_.kv_heads);
    return a;
  }

  void keep_inputs(Work& w) {
    for (int l = 0; l < c_.layers; ++l) {
      w.kept_delta.push_back(l == 0 ? Mat{} : mat(c_.hidden_size));
      w.kept_residual.push_back(l == 0 ? w.embedded : mat(c_.hidden_size, stream_));
    }
  }

  void plan_backward(Work& w) {
    const BackwardModes& mode = numerics_.backward;
    const bool branches = !mode.merged_qkv || !mode.merged_gate_up;
    w.d_stream = mat(c_.hidden_size, d_stream_);
    if (d_stream_ != numerics_.compute) w.d_delta = mat(c_.hidden_size);
    if (numerics_.compute != DType::f32 && mode.one_graph && mode.norm == BackwardMode::fused)
      w.d_embedded = mat(c_.hidden_size, DType::f32);
    // FP32 parameters make the norm's output an FP32 tensor, of which every linear reads a rounded copy.
    const bool f32_tensors = !numerics_.base.rounded(Site::embedding);
    w.d_normed = mat(c_.hidden_size, branches && (mode.one_graph || f32_tensors) ? DType::f32 : numerics_.compute);
    if (branches) w.d_branch = mat(c_.hidden_size);
    const std::size_t shared = arena_.used();
    w.d_activated = mat(c_.intermediate_size);
    const std::size_t end = arena_.used();
    arena_.rewind(shared);
    w.d_attn = mat(c_.q_cols());
    w.d_qkv = mat(c_.q_cols() + 2 * std::int64_t(c_.kv_cols()));
    // The sum over a kv head's copies is rounded where the rotation gave a BF16 tensor.
    const bool f32_keys = mode.one_graph || (f32_tensors && !numerics_.base.rounded(Site::rope_products));
    if (numerics_.compute != DType::f32 && mode.attention == BackwardMode::mirror && f32_keys) w.d_k = mat(c_.kv_cols(), DType::f32);
    if (arena_.used() < end) arena_.rewind(end);
  }

  Arena& arena_;
  const ModelConfig& c_;
  const Numerics& numerics_;
  bool recompute_;
  bool training_;
  std::int64_t rows_;
  DType stream_ = DType::f32;
  DType d_stream_ = DType::f32;
  bool all_stored_ = true;  // every norm reads the stored stream
  std::array<Mat, 2> streams_{};
};

std::size_t table_bytes(const ModelConfig& c, std::int64_t positions) {
  constexpr std::size_t kTables = 4;  // cos and sin, unrounded and rounded
  return kTables * std::size_t(positions) * std::size_t(c.head_dim / 2) * sizeof(float);
}

void check_supported(const Numerics& numerics) {
  const std::string what = unsupported(numerics);
  if (what.empty()) return;
  throw UsageError(fmt::format("numerics {}: no kernel does this yet: {}", numerics.preset, what));
}

}  // namespace

Work plan_work(Arena& arena, const ModelConfig& c, const Numerics& numerics, const ModelExecution& execution, std::int64_t max_rows,
               bool training) {
  return Planner(arena, c, numerics, execution, max_rows, training).plan();
}

Activations QwenState::block(int layer, std::int64_t rows) const {
  Activations a = work.blocks[work.blocks.size() == 1 ? 0 : std::size_t(layer)];
  const bool keep = !work.kept_residual.empty();
  const bool last = layer + 1 == config.layers;
  const std::size_t l = std::size_t(layer);
  a.delta_mid = work.delta;
  a.delta_out = keep && !last ? work.kept_delta[l + 1] : work.delta;
  if (keep && !last) a.post_stream = work.kept_residual[l + 1];
  if (layer == 0) {
    a.residual_in = work.embedded;
  } else {
    a.delta_in = keep ? work.kept_delta[l] : work.delta;
    a.residual_in = keep ? work.kept_residual[l] : work.blocks[work.blocks.size() == 1 ? 0 : l - 1].post_stream;
  }
  if (layer == 0) a.input_stream = work.embedded;  // no add: what was stored is what the norm reads
  if (layer == 0 || norm_reads_stored(sites(layer, Place::input_norm))) a.input_sum = training ? a.input_stream : Mat{};
  if (norm_reads_stored(sites(layer, Place::post_attention_norm))) a.post_sum = training ? a.post_stream : Mat{};
  for (Mat* m : {&a.delta_in, &a.residual_in, &a.input_stream, &a.input_sum, &a.normed, &a.qkv, &a.q, &a.k, &a.v, &a.attn, &a.delta_mid,
                 &a.post_stream, &a.post_sum, &a.post_normed, &a.gate_up, &a.activated, &a.delta_out}) {
    m->rows = *m ? rows : 0;
  }
  return a;
}

std::unique_ptr<QwenState> make_qwen_state(const ModelConfig& config, const Numerics& numerics, const ModelExecution& execution,
                                           std::int64_t max_rows, std::int64_t max_positions, bool training) {
  auto state = std::make_unique<QwenState>();
  validate(config);
  check_supported(numerics);
  require(max_rows >= 1 && max_positions >= 1, "internal: a model for no rows or no positions");
  QwenState& s = *state;
  s.config = config;
  s.numerics = numerics;
  s.execution = execution;
  s.max_rows = max_rows;
  s.max_positions = max_positions;
  s.training = training;
  s.rope = RopeTable(config.head_dim, config.rope_theta, int(max_positions), numerics.compute);
  Arena measure;
  plan_work(measure, config, numerics, execution, max_rows, training);
  s.memory = Buffer(measure.peak());
  Arena arena(s.memory);
  s.work = plan_work(arena, config, numerics, execution, max_rows, training);
  return state;
}

Qwen::Qwen(const ModelConfig& config, const Numerics& numerics, const ModelExecution& execution, std::int64_t max_rows,
           std::int64_t max_positions, bool training)
    : state_(make_qwen_state(config, numerics, execution, max_rows, max_positions, training)) {}

Qwen::~Qwen() = default;

const ModelConfig& Qwen::config() const { return state_->config; }
const Numerics& Qwen::numerics() const { return state_->numerics; }
Sites Qwen::head_sites() const { return state_->final_sites(); }

std::size_t Qwen::memory_bytes() const { return state_->memory.size() + table_bytes(state_->config, state_->max_positions); }

std::size_t Qwen::memory_bytes(const ModelConfig& config, const Numerics& numerics, const ModelExecution& execution, std::int64_t max_rows,
                               std::int64_t max_positions, bool training) {
  Arena measure;
  plan_work(measure, config, numerics, execution, max_rows, training);
  return measure.peak() + table_bytes(config, max_positions);
}

}  // namespace plumb
