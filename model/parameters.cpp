#include <fmt/format.h>

#include "model/config.h"

namespace plumb {
namespace {

constexpr std::size_t kRoles = std::size_t(Role::lm_head) + 1;

}  // namespace

ParameterList::ParameterList(const ModelConfig& c) : index_(std::size_t(c.layers + 1) * kRoles, -1) {
  const std::int64_t d = c.hidden_size;
  const std::int64_t f = c.intermediate_size;
  const std::int64_t q = c.q_cols();
  const std::int64_t kv = c.kv_cols();
  constexpr bool kNext = false;  // right behind the one before: a merged matmul sees one matrix
  add(Role::embedding, -1, c.vocab_size, d, "model.embed_tokens.weight");
  for (int l = 0; l < c.layers; ++l) {
    const std::string layer = fmt::format("model.layers.{}.", l);
    const std::string attn = layer + "self_attn.";
    const std::string mlp = layer + "mlp.";
    add(Role::input_norm, l, 1, d, layer + "input_layernorm.weight");
    add(Role::q, l, q, d, attn + "q_proj.weight");
    add(Role::k, l, kv, d, attn + "k_proj.weight", kNext);
    add(Role::v, l, kv, d, attn + "v_proj.weight", kNext);
    if (c.qkv_bias) {
      add(Role::q_bias, l, 1, q, attn + "q_proj.bias");
      add(Role::k_bias, l, 1, kv, attn + "k_proj.bias", kNext);
      add(Role::v_bias, l, 1, kv, attn + "v_proj.bias", kNext);
    }
    if (c.qk_norm) {
      add(Role::q_norm, l, 1, c.head_dim, attn + "q_norm.weight");
      add(Role::k_norm, l, 1, c.head_dim, attn + "k_norm.weight");
    }
    add(Role::o, l, d, q, attn + "o_proj.weight");
    if (c.o_bias) add(Role::o_bias, l, 1, d, attn + "o_proj.bias");
    add(Role::post_attention_norm, l, 1, d, layer + "post_attention_layernorm.weight");
    add(Role::gate, l, f, d, mlp + "gate_proj.weight");
    add(Role::up, l, f, d, mlp + "up_proj.weight", kNext);
    if (c.mlp_bias) {
      add(Role::gate_bias, l, 1, f, mlp + "gate_proj.bias");
      add(Role::up_bias, l, 1, f, mlp + "up_proj.bias", kNext);
    }
    add(Role::down, l, d, f, mlp + "down_proj.weight");
    if (c.mlp_bias) add(Role::down_bias, l, 1, d, mlp + "down_proj.bias");
  }
  add(Role::final_norm, -1, 1, d, "model.norm.weight");
  if (!c.tied) add(Role::lm_head, -1, c.vocab_size, d, "lm_head.weight");
}

void ParameterList::add(Role role, int layer, std::int64_t rows, std::int64_t cols, std::string name, bool aligned) {
  constexpr std::int64_t kAlign = 16;
  if (aligned) flat_size_ = (flat_size_ + kAlign - 1) / kAlign * kAlign;
  index_[slot(role, layer)] = int(all_.size());
  all_.push_back({.name = std::move(name), .role = role, .layer = layer, .rows = rows, .cols = cols, .offset = flat_size_});
  flat_size_ += rows * cols;
  count_ += rows * cols;
}

std::size_t ParameterList::slot(Role role, int layer) { return std::size_t(layer + 1) * kRoles + std::size_t(role); }

const Parameter* ParameterList::find(Role role, int layer) const {
  const std::size_t at = slot(role, layer);
  return layer < -1 || at >= index_.size() || index_[at] < 0 ? nullptr : &all_[std::size_t(index_[at])];
}

const Parameter* ParameterList::find(const std::string& name) const {
  for (const Parameter& p : all_)
    if (p.name == name) return &p;
  return nullptr;
}

}  // namespace plumb
