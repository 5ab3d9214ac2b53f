#include "kernels/core/rng.h"
#include "model/weights.h"

namespace plumb {
namespace {

bool is_norm(Role role) {
  return role == Role::input_norm || role == Role::q_norm || role == Role::k_norm || role == Role::post_attention_norm ||
         role == Role::final_norm;
}

bool is_bias(Role role) {
  return role == Role::q_bias || role == Role::k_bias || role == Role::v_bias || role == Role::o_bias || role == Role::gate_bias ||
         role == Role::up_bias || role == Role::down_bias;
}

}  // namespace

void random_parameters(const ParameterList& parameters, const ModelConfig& config, std::uint64_t seed, Buffer& flat) {
  std::vector<float> values;
  for (std::size_t i = 0; i < parameters.all().size(); ++i) {
    const Parameter& p = parameters.all()[i];
    if (is_bias(p.role)) continue;  // the buffer is zero
    values.assign(std::size_t(p.size()), 1.0f);
    if (!is_norm(p.role)) {
      const RandomKey key{.seed = seed, .purpose = Purpose::init, .draw = std::uint32_t(i)};
      for (std::size_t j = 0; j < values.size(); ++j) values[j] = float(config.init_range * random_normal(key, j));
    }
    flat.write(values.data(), std::size_t(p.offset) * sizeof(float), values.size() * sizeof(float));
  }
}

Buffer random_parameters(const ParameterList& parameters, const ModelConfig& config, std::uint64_t seed) {
  Buffer flat(std::size_t(parameters.flat_size()) * sizeof(float));
  random_parameters(parameters, config, seed, flat);
  return flat;
}

}  // namespace plumb
