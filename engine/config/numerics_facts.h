// The keys by which YAML says what a Numerics is. Preset files and the sides of a run's configuration share them:
//
//   compute: bf16               # bf16, fp16 or fp32
//   mantissa_bits: 7
//   every_site: f               # then single ones:
//   rope.products: b            # or  rope: {products: b}
//   layers:                     # 0, 2-4, -1, first, last, all
//     0: {post_attention_norm: {resid.store: f}, swiglu.silu: b}
//   final_norm: {norm.xhat: b}  # also input_norm, post_attention_norm: in every layer
//   head: fp32                  # lm_head.logits and logits.temperature f; bf16: both b
//   softmax: flash
//   scale_at: scores
//   backward: mirror            # or  {norm: mirror, ...}
//   merged_qkv: true
//   merged_gate_up: true
//   one_graph: false
//   reductions: {matmul: natural, ...}
#pragma once
#include <string>
#include <vector>

#include "engine/config/node.h"
#include "kernels/numerics/numerics.h"

namespace plumb {

/// One fact as it was written. In a preset file a value is a list [value, knowledge, source].
struct NumericsFact {
  std::string key;  // "rope.products", "layers.0.post_attention_norm.resid.store"
  std::string value;
  std::string knowledge;
  std::string source;
  std::string where;
};

/// Sets in `numerics` what the map says. A site given without a layer or place has that value everywhere: overrides by layer that it
/// had are dropped. With `facts` every value must be [value, knowledge, source], and each is appended. Throws UsageError with
/// file and line.
void apply_numerics(const ConfigNode& map, Numerics& numerics, std::vector<NumericsFact>* facts = nullptr);

/// The facts of `numerics` that a map needs to say on top of `base` to give it, as {key, value}: apply_numerics of them to base
/// gives something that computes the same. In a fixed order.
std::vector<std::pair<std::string, std::string>> numerics_differences(const Numerics& base, const Numerics& numerics);
/// Every fact, {key, value}, overrides by layer last.
std::vector<std::pair<std::string, std::string>> numerics_facts(const Numerics& numerics);

}  // namespace plumb
