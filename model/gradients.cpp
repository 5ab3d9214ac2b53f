#include "kernels/core/error.h"
#include "kernels/elementwise/elementwise.h"
#include "model/qwen.h"

namespace plumb {
namespace {

/// Whether a parameter's gradient is rounded once at the step's end: where the parameter itself is a BF16 tensor. A model whose
/// embedding is not rounded has FP32 parameters, and only its matmuls see rounded copies. The embedding's gradient was rounded row
/// by row in mode mirror.
bool rounded_at_end(Role role, const Numerics& n) {
  const bool mirror = n.backward.linear == BackwardMode::mirror;
  const bool bf16_parameter = n.base.rounded(Site::embedding);
  switch (role) {
    case Role::embedding: return mirror && bf16_parameter && n.backward.embedding == BackwardMode::fused;
    case Role::input_norm:
    case Role::post_attention_norm:
    case Role::final_norm: return bf16_parameter && (mirror || n.backward.norm == BackwardMode::mirror);
    case Role::q_norm:
    case Role::k_norm: return bf16_parameter && (mirror || n.backward.qk_norm == BackwardMode::mirror);
    default: return mirror;
  }
}

Mat view(const Gradients& g, const Parameter& p) { return make_mat(g.flat + p.offset, p.rows, p.cols, DType::f32); }

}  // namespace

std::size_t tied_head_gradient_bytes(const ModelConfig& c) {
  return c.tied ? std::size_t(c.vocab_size) * std::size_t(c.hidden_size) * sizeof(float) : 0;
}

Gradients make_gradients(const ParameterList& parameters, const ModelConfig& c, const Buffer& flat, const Buffer& tied_head) {
  require(flat.size() >= std::size_t(parameters.flat_size()) * sizeof(float) && tied_head.size() >= tied_head_gradient_bytes(c),
          "internal: a gradient buffer is too small");
  Gradients g{.flat = static_cast<float*>(flat.data())};
  g.lm_head = c.tied ? make_mat(tied_head.data(), c.vocab_size, c.hidden_size, DType::f32) : view(g, *parameters.find(Role::lm_head));
  return g;
}

void clear_gradients(Context& ctx, const ParameterList& parameters, const ModelConfig& c, Gradients& g) {
  const std::int64_t n = parameters.flat_size();
  constexpr std::int64_t kRow = 4096;  // rows of a view over the flat array, so that threads can share the work
  fill_zero(ctx, make_mat(g.flat, n / kRow, kRow, DType::f32));
  fill_zero(ctx, make_mat(g.flat + n / kRow * kRow, 1, n % kRow, DType::f32));
  if (c.tied) fill_zero(ctx, g.lm_head);
}

void finish_gradients(Context& ctx, const ParameterList& parameters, const ModelConfig& c, const Numerics& numerics, Gradients& g) {
  const BackwardModes& mode = numerics.backward;
  const bool rounding = numerics.compute != DType::f32;
  if (rounding) {
    for (const Parameter& p : parameters.all()) {
      if (rounded_at_end(p.role, numerics)) round_in_place(ctx, g.flat + p.offset, p.size(), numerics.compute);
    }
  }
  if (!c.tied) return;
  const Parameter& embedding = *parameters.find(Role::embedding);
  if (!g.frozen.empty() && g.frozen[std::size_t(&embedding - parameters.all().data())] != 0) return;
  const bool mirror = rounding && mode.linear == BackwardMode::mirror;
  // Eager: R(R(head) + embedding). Compiled, with an embedding added up in FP32: one product with an addend, R(head + R(embedding)).
  const bool one_product = mirror && rounded_at_end(Role::embedding, numerics);
  if (mirror && !one_product) round_in_place(ctx, static_cast<float*>(g.lm_head.data), embedding.size(), numerics.compute);
  add_in_place(ctx, view(g, embedding), g.lm_head);
  if (one_product || (rounding && mode.embedding == BackwardMode::mirror))
    round_in_place(ctx, g.flat + embedding.offset, embedding.size(), numerics.compute);
  fill_zero(ctx, g.lm_head);
}

}  // namespace plumb
