#include "model/config.h"

#include <fmt/format.h>

#include <array>

#include "kernels/core/error.h"

namespace plumb {

const char* name_of(Family family) {
  switch (family) {
    case Family::qwen3: return "qwen3";
    case Family::qwen2: return "qwen2";
    case Family::llama: return "llama";
  }
  return "?";
}

void validate(const ModelConfig& c) {
  struct Size {
    const char* name;
    int value;
  };
  const std::array sizes = {Size{"vocab_size", c.vocab_size},
                            Size{"hidden_size", c.hidden_size},
                            Size{"intermediate_size", c.intermediate_size},
                            Size{"num_hidden_layers", c.layers},
                            Size{"num_attention_heads", c.heads},
                            Size{"num_key_value_heads", c.kv_heads},
                            Size{"head_dim", c.head_dim},
                            Size{"max_position_embeddings", c.max_positions}};
  for (const Size& s : sizes) {
    require(s.value >= 1, fmt::format("model: {} is {}, it must be at least 1", s.name, s.value));
    constexpr int kMost = 1 << 24;  // keeps every product of two sizes far inside 64 bits
    require(s.value <= kMost, fmt::format("model: {} is {}, at most {} is supported", s.name, s.value, kMost));
  }
  require(c.heads % c.kv_heads == 0,
          fmt::format("model: num_attention_heads ({}) must be a multiple of num_key_value_heads ({})", c.heads, c.kv_heads));
  require(c.head_dim % 2 == 0, fmt::format("model: head_dim is {}, it must be even (the rotation works on two halves)", c.head_dim));
  require(std::int64_t(c.heads) * c.head_dim <= 1 << 24,
          fmt::format("model: num_attention_heads * head_dim = {} is too large", std::int64_t(c.heads) * c.head_dim));
  require(c.rms_eps > 0 && c.rms_eps < 1, fmt::format("model: rms_norm_eps is {}, it must be between 0 and 1", c.rms_eps));
  require(c.rope_theta > 0 && c.rope_theta < 1e30, fmt::format("model: rope_theta is {}, it must be positive", c.rope_theta));
  require(c.init_range >= 0 && c.init_range < 1e6, fmt::format("model: initializer_range is {}, it must not be negative", c.init_range));
  const auto check_id = [&](std::int32_t id, const char* name) {
    require(id >= 0 && id < c.vocab_size, fmt::format("model: {} is {}, outside the vocabulary of {}", name, id, c.vocab_size));
  };
  for (std::int32_t id : c.eos_ids) check_id(id, "eos_token_id");
  if (c.bos_id) check_id(*c.bos_id, "bos_token_id");
  if (c.pad_id) check_id(*c.pad_id, "pad_token_id");
}

}  // namespace plumb
