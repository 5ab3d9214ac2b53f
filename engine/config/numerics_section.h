// The section `numerics` of a run: what each side computes, how one side follows another, and when that changes.
//
//   numerics:
//     rollout: vllm_cpu_compiled               # the name of a preset, or a map:
//     update:
//       preset: hf_eager
//       align: [rope, resid_norm]              # take these groups of sites from the other side (numerics/align.h) ...
//       anchor: rollout                        # ... or from this one
//       rope.products: f                       # then any key of numerics_facts.h
//     schedule:                                # from the given step on, `align` of that side is this
//       - {step: 200, side: update, align: [rope]}
//       - {step: 300, side: update, align: []}
//
// `update` that names no preset starts from the rollout side, `reference` and `critic` from the update side.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/schema.h"
#include "kernels/numerics/align.h"
#include "kernels/numerics/numerics.h"

namespace plumb {

enum class NumericsSide : std::uint8_t { rollout, update, reference, critic, count };
inline constexpr int kNumericsSides = int(NumericsSide::count);
constexpr auto enum_names(NumericsSide) {
  using enum NumericsSide;
  return std::array{std::pair{rollout, "rollout"}, std::pair{update, "update"}, std::pair{reference, "reference"},
                    std::pair{critic, "critic"}};
}

/// One side as the configuration gives it.
struct NumericsSideConfig {
  std::string preset;  // empty: the side that it follows
  std::vector<AlignGroup> align;
  std::optional<NumericsSide> anchor;
  std::vector<std::pair<std::string, std::string>> facts;  // {key, value} of numerics_facts.h, applied in order
};

/// From `step` (1-based) on.
struct NumericsChange {
  std::int64_t step = 0;
  NumericsSide side = NumericsSide::update;
  std::vector<AlignGroup> align;
};

struct NumericsSection {
  std::array<NumericsSideConfig, kNumericsSides> sides;
  std::vector<NumericsChange> schedule;
  const NumericsSideConfig& of(NumericsSide s) const { return sides[std::size_t(s)]; }
};

/// What a side computes at a step (1-based; 0: before the first). Throws UsageError when sides lead back to each other.
Numerics resolve_numerics(const NumericsSection&, NumericsSide, std::int64_t step);
/// Step 0 and the steps at which the schedule changes something, ascending.
std::vector<std::int64_t> numerics_steps(const NumericsSection&);
/// Throws UsageError: a circle of sides, a compute dtype that differs where it may not, something that no kernel does.
void validate(const NumericsSection&);

ConfigField numerics_side_field(NumericsSection&, NumericsSide);
ConfigField numerics_schedule_field(NumericsSection&);

template <class V>
void visit(V& v, NumericsSection& c) {
  for (int s = 0; s < kNumericsSides; ++s) v.custom(numerics_side_field(c, NumericsSide(s)));
  v.custom(numerics_schedule_field(c));
}

}  // namespace plumb
