// Where does an implementation round? Every choice of sites of a region's op is run on the inputs that it was given; those that give its
// outputs are what it may be. What all of them agree on is found; what they differ in, these inputs cannot tell.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/context.h"
#include "model/probe/region.h"
#include "model/probe/region_file.h"

namespace plumb {

enum class ProbeVerdict : std::uint8_t { rounded, kept, ambiguous };
/// "b", "f", "ambiguous"
const char* name_of(ProbeVerdict);

struct SiteFinding {
  Site site = Site::embedding;
  ProbeVerdict verdict = ProbeVerdict::ambiguous;
  std::string reason;  // where it is not the outputs' bits that decide, or where they cannot
};

struct BackwardFinding {
  std::string_view part;            // "rope", "qk_norm", "swiglu", "norm"
  std::vector<BackwardMode> modes;  // that fit; two: ambiguous
};

struct ProbeCandidate {
  RegionNumerics numerics;
  std::int64_t apart = 0;                        // elements that are not those of the implementation
  std::map<std::string, std::int64_t> apart_in;  // by output, of those where there are any
};

struct ProbeResult {
  std::vector<SiteFinding> sites;            // every site of the region; empty when nothing fits
  std::vector<BackwardFinding> backward;     // empty when no gradient was given, or when none fits
  std::vector<RowSumOrder> row_sums;         // that fit; empty where there is no norm
  std::vector<std::string_view> presets;     // whose sites, backward and order of sums fit
  std::vector<std::string_view> same_sites;  // whose forward sites fit, whatever the rest
  std::vector<ProbeCandidate> fitting;
  bool backward_fits = true;  // false: the candidates fit the outputs, and none of them the gradients
  ProbeCandidate closest;     // the one with the fewest elements apart, fitting or not
  std::int64_t candidates = 0;
  std::int64_t elements = 0;  // compared, of all outputs
  bool found() const { return !fitting.empty(); }
  bool explained() const { return found() && backward_fits; }
};

/// A candidate fits when of every output at most `tolerance` of the elements, or two, are not those recorded: another exp, or another
/// order of a row's sum, now and then flips a tie. Where some candidates fit without any such element, only they count.
inline constexpr double kProbeTolerance = 1e-4;

/// inputs: checked; observation: of their sizes.
ProbeResult infer_sites(Context&, const RegionInputs& inputs, const RegionObservation& observation, double tolerance = kProbeTolerance);

/// The candidates among which infer_sites looks when all outputs are BF16: every choice of the sites that are free then and, with
/// `orders`, of the norm's order of summation; backward fused.
std::vector<RegionNumerics> forward_candidates(const RegionInputs&, const RegionWanted& outputs, bool orders);

}  // namespace plumb
