// The shipped presets with what is known of each: configs/numerics/*.yaml, compiled in by the build (the installed program needs
// no files). numerics.h has preset(name) for those who only want the numerics.
#pragma once
#include <string_view>
#include <vector>

#include "kernels/numerics/numerics.h"

namespace plumb {

/// How a fact of a preset is known. `proven`: outputs of the real stack are reproduced with it, by the named golden or test;
/// `read` in the named source; `inferred`: likely, nobody checked; `defined`: this engine's own choice.
enum class Knowledge : std::uint8_t { proven, read, inferred, defined };
constexpr auto enum_names(Knowledge) {
  using enum Knowledge;
  return std::array{std::pair{proven, "proven"}, std::pair{read, "read"}, std::pair{inferred, "inferred"}, std::pair{defined, "defined"}};
}

/// One line of a preset file.
struct PresetFact {
  std::string_view key;  // "rope.products", "reductions.matmul", "layers.0.post_attention_norm.resid.store"
  std::string_view value;
  Knowledge knowledge = Knowledge::inferred;
  std::string_view source;
};

struct Preset {
  std::string_view name;
  std::string_view stack;  // what it imitates, with its version
  std::string_view summary;
  Numerics numerics;
  std::vector<PresetFact> facts;  // in the order of the file
};

/// All of them: fused and fp32, then by name.
const std::vector<Preset>& presets();
/// Throws UsageError naming the nearest.
const Preset& find_preset(std::string_view name);

}  // namespace plumb
