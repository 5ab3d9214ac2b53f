// Test only: random models, packed batches, and log-probs and gradients of -sum(weight * logprob) through the whole model.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/rng.h"
#include "kernels/logprob/logprob.h"
#include "model/qwen.h"

namespace plumb::testing_model {

using Ids = std::vector<std::int32_t>;

inline ModelConfig small_config(Family family, bool tied = true) {
  ModelConfig c;
  c.family = family;
  c.vocab_size = 97;
  c.hidden_size = 48;
  c.intermediate_size = 80;
  c.layers = 3;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = family == Family::qwen3 ? 16 : 12;
  c.max_positions = 128;
  c.tied = tied;
  c.qk_norm = family == Family::qwen3;
  c.qkv_bias = family == Family::qwen2;
  c.init_range = 0.15;
  return c;
}

/// Nothing in it is a multiple of a lane, a tile or a pair but what must be: one kv head, a vocabulary of seven.
inline ModelConfig odd_config(Family family) {
  ModelConfig c = small_config(family, family == Family::llama);
  c.vocab_size = 7;
  c.hidden_size = 13;
  c.intermediate_size = 9;
  c.layers = 2;
  c.heads = family == Family::qwen2 ? 1 : 3;
  c.kv_heads = 1;
  c.head_dim = family == Family::qwen3 ? 6 : 10;
  return c;
}

/// Random matrices, and norms and biases that are not their initial values.
inline Buffer lively_parameters(const ModelConfig& c, std::uint64_t seed) {
  const ParameterList list(c);
  Buffer flat = random_parameters(list, c, seed);
  float* x = static_cast<float*>(flat.data());
  for (const Parameter& p : list.all()) {
    if (p.rows != 1) continue;
    for (std::int64_t i = 0; i < p.size(); ++i)
      x[p.offset + i] += 0.2f * float(random_normal({.seed = seed + 1}, std::uint64_t(p.offset + i)));
  }
  return flat;
}

inline std::unique_ptr<Weights> make_weights(Context& ctx, const ModelConfig& c, DType dtype, const Buffer& master) {
  auto w = std::make_unique<Weights>(c, dtype);
  set_weights(ctx, *w, master);
  return w;
}

inline std::vector<Ids> random_sequences(const ModelConfig& c, std::span<const int> lengths, std::uint64_t seed) {
  std::vector<Ids> out;
  for (int n : lengths) {
    Ids& ids = out.emplace_back(std::size_t(n));
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = std::int32_t(random_below({.seed = seed, .sample = std::uint32_t(out.size())}, i, std::uint64_t(c.vocab_size)));
  }
  return out;
}

/// Whole sequences packed as training wants them: each at an even row.
struct Packed {
  explicit Packed(std::span<const Ids> list) {
    for (const Ids& ids : list) {
      sequences.push_back({.first_row = std::int64_t(tokens.size()), .rows = std::int64_t(ids.size())});
      for (std::size_t i = 0; i < ids.size(); ++i) {
        tokens.push_back(ids[i]);
        positions.push_back(std::int32_t(i));
        targets.push_back(i + 1 < ids.size() ? ids[i + 1] : 0);  // the last row's log-prob is not used
      }
      if (ids.size() % 2 == 0) continue;
      tokens.push_back(-1);
      positions.push_back(0);
      targets.push_back(-1);
    }
  }
  Batch batch() const {
    return {.rows = std::int64_t(tokens.size()),
            .tokens = tokens.data(),
            .positions = positions.data(),
            .sequences = sequences.data(),
            .n_sequences = std::int64_t(sequences.size())};
  }
  Ids tokens;
  Ids positions;
  Ids targets;
  std::vector<SequenceRows> sequences;
};

struct Scores {
  std::vector<float> logprob;  // (rows) of the packed batch, pad rows and last rows included
  std::vector<float> entropy;  // (rows)
  std::vector<float> logits;   // (rows, V)
  std::vector<float> hidden;   // (rows, D)
};

inline std::vector<float> to_floats(ConstMat m) {
  std::vector<float> out;
  for (std::int64_t r = 0; r < m.rows; ++r)
    for (std::int64_t c = 0; c < m.cols; ++c) out.push_back(m.dtype == DType::bf16 ? to_float(m.row<BF16>(r)[c]) : m.row<float>(r)[c]);
  return out;
}

inline Scores head(Context& ctx, const Qwen& model, const Weights& w, ConstMat hidden, const std::int32_t* targets) {
  const std::int64_t n = hidden.rows;
  const std::int64_t vocab = model.config().vocab_size;
  const Sites sites = model.head_sites();
  const DType dtype = sites.rounded(Site::lm_head_logits) ? sites.to : DType::f32;
  Buffer logits(std::size_t(n * vocab) * bytes_of(dtype));
  Scores s;
  s.logprob.resize(std::size_t(n));
  s.entropy.resize(std::size_t(n));
  s.hidden = to_floats(hidden);
  const Mat logits_mat = make_mat(logits.data(), n, vocab, dtype);
  logprob_forward(ctx,
                  {.hidden = hidden,
                   .weight = w.lm_head(),
                   .packed = w.packed(Role::lm_head),
                   .matmul_order = model.numerics().reductions.matmul,
                   .targets = targets,
                   .logprob = s.logprob.data(),
                   .entropy = s.entropy.data(),
                   .logits = logits_mat},
                  sites);
  s.logits = to_floats(logits_mat);
  return s;
}

inline Scores score(Context& ctx, Qwen& model, const Weights& w, const Packed& p, bool save = false) {
  const Batch batch = p.batch();
  return head(ctx, model, w, model.forward(ctx, w, batch, nullptr, save), p.targets.data());
}

/// Gradient memory of one step.
struct GradientMemory {
  explicit GradientMemory(const Weights& w)
      : flat(std::size_t(w.parameters().flat_size()) * sizeof(float)),
        tied(tied_head_gradient_bytes(w.config())),
        views(make_gradients(w.parameters(), w.config(), flat, tied)) {}
  std::vector<float> values() const {
    const float* x = static_cast<const float*>(flat.data());
    return {x, x + flat.size() / sizeof(float)};
  }
  Buffer flat;
  Buffer tied;
  Gradients views;
};

/// Adds the gradients of -sum_r weight[r] * logprob[r] + entropy_weight[r] * H[r] over one packed batch.
inline void add_gradients(Context& ctx, Qwen& model, const Weights& w, const Packed& p, std::span<const float> d_logprob,
                          std::span<const float> d_entropy, Gradients& g) {
  const Batch batch = p.batch();
  const ConstMat hidden = model.forward(ctx, w, batch, nullptr, true);
  Buffer d(std::size_t(hidden.rows * hidden.cols) * bytes_of(hidden.dtype));
  const Mat d_hidden = make_mat(d.data(), hidden.rows, hidden.cols, hidden.dtype);
  logprob_backward(ctx,
                   {.hidden = hidden,
                    .weight = w.lm_head(),
                    .packed = w.packed(Role::lm_head),
                    .matmul_order = model.numerics().reductions.matmul,
                    .targets = p.targets.data(),
                    .d_logprob = d_logprob.data(),
                    .d_entropy = d_entropy.empty() ? nullptr : d_entropy.data(),
                    .d_hidden = d_hidden,
                    .d_weight = g.lm_head},
                   model.head_sites());
  model.backward(ctx, w, batch, d_hidden, g);
}

}  // namespace plumb::testing_model
