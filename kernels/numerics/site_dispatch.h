// Sites as template parameters for the combinations that the shipped presets use, one run-time path for any other.
// A kernel is written once over a type with `bool rounded(Site)`; the two paths give the same bits.
#pragma once
#include "kernels/core/tensor.h"
#include "kernels/numerics/numerics.h"

namespace plumb {

/// Known at compile time: an `f` site costs nothing.
template <std::uint32_t kMask>
struct FixedSites {
  static constexpr DType to = DType::bf16;
  static constexpr bool rounded(Site s) { return (kMask >> int(s) & 1u) != 0; }
};

/// Known at run time, rounded to BF16.
struct RunTimeSites {
  std::uint32_t mask = 0;
  static constexpr DType to = DType::bf16;
  constexpr bool rounded(Site s) const { return (mask >> int(s) & 1u) != 0; }
};

/// Rounded to a format held in FP32 memory: a slow path of its own, so that BF16's keep their speed.
struct EmulatedSites {
  std::uint32_t mask = 0;
  DType to = DType::f16;
  constexpr bool rounded(Site s) const { return (mask >> int(s) & 1u) != 0; }
};

/// Set in Sites::mask, makes with_sites take the run-time path whatever the rest (so that tests can compare the two).
inline constexpr std::uint32_t kRunTimeSites = 1u << 31;
static_assert(kSites < 31);

/// Calls f(FixedSites<m>) for the m among kMasks equal to the `relevant` part of `sites`, else f(RunTimeSites).
template <std::uint32_t... kMasks, class F>
void with_bf16_masks(Sites sites, Sites relevant, F&& f) {
  const std::uint32_t mask = sites.mask & (relevant.mask | kRunTimeSites);
  bool done = false;
  ((done = done || (mask == kMasks ? (f(FixedSites<kMasks>{}), true) : false)), ...);
  if (!done) f(RunTimeSites{mask & ~kRunTimeSites});
}

/// The same for sites of any format: f(EmulatedSites) where they round to another than BF16.
template <std::uint32_t... kMasks, class F>
void with_masks(Sites sites, Sites relevant, F&& f) {
  const std::uint32_t mask = sites.mask & relevant.mask;
  if (sites.to != DType::bf16 && mask != 0) return f(EmulatedSites{mask, sites.to});
  with_bf16_masks<kMasks...>(sites, relevant, f);
}

/// `site` cleared when what is rounded there goes straight into `destination` and that is no FP32 tensor (or not wanted at all):
/// the store rounds, and R(R(x)) = R(x).
inline Sites stored_sites(Sites sites, Site site, const ConstMat& destination) {
  if (!destination || destination.dtype != DType::f32) sites.set(site, false);
  return sites;
}

/// For a backward: the sites whose gradients are rounded, none when `fused`.
constexpr Sites gradient_sites(Sites sites, BackwardMode mode) {
  return mode == BackwardMode::mirror ? sites : Sites{sites.mask & kRunTimeSites, sites.to};
}

}  // namespace plumb
