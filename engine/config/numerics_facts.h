// The keys by which YAML says what a Numerics is. Preset files and the sides of a run's configuration share them:
//
//   compute: bf16               # bf16, fp16, fp32, or e8mN: BF16's exponent with N mantissa bits
//   mantissa_bits: 7            # of compute bf16: another number makes it e8mN
//   every_site: f               # then single ones:
//   rope.products: b            # or  rope: {products: b}
//   layers:                     # 0, 2-4, -1, first, last, all
//     0: {post_attention_norm: {resid.store: f}, swiglu.silu: b}
//   final_norm: {norm.xhat: b}  # also input_norm, post_attention_norm: in every layer
//   head: fp32                  # lm_head.logits and logits.temperature f; the compute dtype: both b
//   softmax: flash
//   scale_at: scores
//   backward: mirror            # or  {norm: mirror, ...}
//   merged_qkv: true
//   merged_gate_up: true
//   one_graph: false
//   reductions: {matmul: natural, ...}
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "engine/config/node.h"
#include "kernels/numerics/numerics.h"

namespace plumb {

/// "bf16", "fp16", "fp32", "e8m4".
const char* compute_name(DType);
/// The fact mantissa_bits of a compute dtype: 7 for bf16, and for fp32, where nothing is rounded.
int mantissa_bits_of(DType);

/// One fact as it was written.
struct NumericsFact {
  std::string key;  // "rope.products", "layers.0.post_attention_norm.resid.store", "reductions.matmul"
  std::string value;
  std::string knowledge;  // of a preset file, else empty
  std::string source;     // likewise
  std::string where;
};

/// A value is plain, or, in a preset file, a list [value, knowledge, source].
enum class FactForm { plain, with_source };

/// Sets in `numerics` what the map says, compute first, the rest in its order, and returns that as facts. A site given without a layer or
/// place has that value everywhere: overrides by layer that it had are dropped. Any key may be written with dots ("reductions.matmul:
/// natural"). Throws UsageError with file and line.
std::vector<NumericsFact> apply_numerics(const ConfigNode& map, Numerics& numerics, FactForm form = FactForm::plain);
/// Sets one fact that apply_numerics returned.
void apply_fact(const std::string& key, const std::string& value, Numerics& numerics);

/// Every fact of it, {key, value}: compute, the sites, softmax and scale, backward, reductions, then the sites' overrides by layer.
std::vector<std::pair<std::string, std::string>> numerics_facts(const Numerics& numerics);

}  // namespace plumb
