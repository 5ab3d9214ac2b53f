#include "model/probe/infer.h"

#include <algorithm>
#include <utility>

#include "kernels/numerics/presets.h"
#include "model/probe/last_bits.h"

namespace plumb {
namespace {

constexpr BackwardMode kBothModes[] = {BackwardMode::fused, BackwardMode::mirror};
constexpr std::int64_t kAlwaysAllowed = 2;

bool has_norm(Region region) { return region == Region::qk_norm_rope || region == Region::resid_norm; }

/// The outputs in which a site stores its value.
std::vector<std::string> stored_in(Region region, Site site) {
  if (site == Site::rope_out) return {"out.0", "out.1"};
  if (site == Site::swiglu_out || site == Site::norm_out) return {"out.0"};
  if (region == Region::resid_norm && site == Site::resid_store) return {"out.1"};
  return {};
}

/// A site whose value is no question of bits, and why it is `b`; empty: it is one.
std::string fixed_because(const RegionInputs& in, Site site, const RegionWanted& outputs) {
  if (site == Site::rope_cos_sin_table && in.table_given_bf16) return "the table was given in BF16";
  bool seen = false;
  for (const std::string& name : stored_in(in.region, site)) {
    const auto output = outputs.find(name);
    if (output == outputs.end()) continue;
    if (output->second != DType::bf16) return "";
    seen = true;
  }
  return seen ? "stored in BF16" : "";
}

bool is_gradient(std::string_view output) { return output.starts_with("grad."); }

RegionWanted part_of(const RegionWanted& outputs, bool gradients) {
  RegionWanted part;
  for (const auto& [name, dtype] : outputs)
    if (is_gradient(name) == gradients) part[name] = dtype;
  return part;
}

/// One forward and one backward stage of the search.
class Search {
 public:
  Search(Context& ctx, const RegionInputs& in, const RegionObservation& o, double tolerance)
      : ctx_(ctx), in_(in), observation_(o), tolerance_(tolerance) {}

  struct Stage {
    std::vector<ProbeCandidate> fitting;
    ProbeCandidate closest;
  };
  /// Runs every candidate for these outputs.
  Stage run(const std::vector<ProbeCandidate>& candidates, const RegionWanted& wanted) {
    Stage stage;
    bool first = true;
    for (ProbeCandidate c : candidates) {
      const bool fits = wanted.empty() || compare(c, wanted);
      if (first || c.apart < stage.closest.apart) stage.closest = c;
      first = false;
      if (fits) stage.fitting.push_back(c);
    }
    keep_exact(stage.fitting);
    return stage;
  }

 private:
  bool compare(ProbeCandidate& c, const RegionWanted& wanted) {
    const RegionTensors got = run_region(ctx_, in_, c.numerics, wanted);
    bool fits = true;
    for (const auto& [name, tensor] : got) {
      const std::int64_t apart = elements_apart(observation_.outputs.at(name), tensor);
      c.apart += apart;
      if (apart != 0) c.apart_in[name] = apart;
      fits = fits && (apart <= kAlwaysAllowed || double(apart) <= tolerance_ * double(tensor.elements()));
    }
    return fits;
  }

  /// Where some give every bit, the others' flipped ties are no ties.
  static void keep_exact(std::vector<ProbeCandidate>& fitting) {
    const auto exact = [](const ProbeCandidate& c) { return c.apart == 0; };
    if (std::any_of(fitting.begin(), fitting.end(), exact)) std::erase_if(fitting, [&](const ProbeCandidate& c) { return !exact(c); });
  }

  Context& ctx_;
  const RegionInputs& in_;
  const RegionObservation& observation_;
  double tolerance_;
};

std::vector<ProbeCandidate> with_backward_modes(const std::vector<ProbeCandidate>& forward, Region region) {
  std::vector<ProbeCandidate> all;
  for (const ProbeCandidate& c : forward) {
    for (const BackwardMode mode : kBothModes) {
      for (const BackwardMode qk_norm : kBothModes) {
        if (region != Region::qk_norm_rope && qk_norm != BackwardMode::fused) continue;
        all.push_back(c);
        all.back().numerics.backward = mode;
        all.back().numerics.qk_norm = qk_norm;
      }
    }
  }
  return all;
}

/// What all of them agree on.
template <class Value>
std::vector<Value> values_of(const std::vector<ProbeCandidate>& fitting, Value RegionNumerics::*field) {
  std::vector<Value> values;
  for (const ProbeCandidate& c : fitting) {
    if (std::find(values.begin(), values.end(), c.numerics.*field) == values.end()) values.push_back(c.numerics.*field);
  }
  std::sort(values.begin(), values.end());
  return values;
}

bool all_round(const std::vector<ProbeCandidate>& fitting, Site site) {
  return std::all_of(fitting.begin(), fitting.end(), [&](const auto& c) { return c.numerics.sites.rounded(site); });
}
bool none_rounds(const std::vector<ProbeCandidate>& fitting, Site site) {
  return std::none_of(fitting.begin(), fitting.end(), [&](const auto& c) { return c.numerics.sites.rounded(site); });
}

/// The copy that rotate_half makes is of values that are BF16 already.
bool rotated_is_inert(const RegionInputs& in, const std::vector<ProbeCandidate>& fitting) {
  if (in.region == Region::rope) return in.tensors.at("q").dtype() == DType::bf16;
  return all_round(fitting, Site::qk_norm_out);
}

SiteFinding finding(const RegionInputs& in, Site site, const RegionWanted& outputs, const std::vector<ProbeCandidate>& fitting) {
  if (std::string why = fixed_because(in, site, outputs); !why.empty()) return {site, ProbeVerdict::rounded, std::move(why)};
  if (all_round(fitting, site)) return {site, ProbeVerdict::rounded, ""};
  if (none_rounds(fitting, site)) return {site, ProbeVerdict::kept, ""};
  const bool inert = site == Site::rope_rotated && rotated_is_inert(in, fitting);
  return {site, ProbeVerdict::ambiguous, inert ? "inert: the copy is of a BF16 value" : "these inputs cannot tell"};
}

std::vector<BackwardFinding> backward_findings(Region region, const std::vector<ProbeCandidate>& fitting) {
  const std::string_view part = region == Region::swiglu ? "swiglu" : region == Region::resid_norm ? "norm" : "rope";
  std::vector<BackwardFinding> all = {{part, values_of(fitting, &RegionNumerics::backward)}};
  if (region == Region::qk_norm_rope) all.push_back({"qk_norm", values_of(fitting, &RegionNumerics::qk_norm)});
  return all;
}

/// The sites that are the op's own doing: a table that was given is not.
Sites own_sites(const RegionInputs& in) {
  Sites own;
  for (const Site site : sites_of(in.region)) own.set(site, !(site == Site::rope_cos_sin_table && in.table_given_bf16));
  return own;
}

void name_presets(const RegionInputs& in, bool gradients, ProbeResult& result) {
  const std::uint32_t own = own_sites(in).mask;
  for (const Preset& p : presets()) {
    const RegionNumerics n = region_numerics(p.numerics, in.region);
    const auto sites = [&](const ProbeCandidate& c) { return ((c.numerics.sites.mask ^ n.sites.mask) & own) == 0; };
    const auto everything = [&](const ProbeCandidate& c) {
      const bool backward =
          !gradients || (c.numerics.backward == n.backward && (in.region != Region::qk_norm_rope || c.numerics.qk_norm == n.qk_norm));
      return sites(c) && backward && (!has_norm(in.region) || c.numerics.row_sum == n.row_sum);
    };
    if (std::any_of(result.fitting.begin(), result.fitting.end(), sites)) result.same_sites.push_back(p.name);
    if (result.backward_fits && std::any_of(result.fitting.begin(), result.fitting.end(), everything)) result.presets.push_back(p.name);
  }
}

}  // namespace

const char* name_of(ProbeVerdict v) { return v == ProbeVerdict::rounded ? "b" : v == ProbeVerdict::kept ? "f" : "ambiguous"; }

std::vector<RegionNumerics> forward_candidates(const RegionInputs& in, const RegionWanted& outputs, bool orders) {
  std::vector<RegionNumerics> all(1);
  for (const Site site : sites_of(in.region)) {
    const bool fixed = !fixed_because(in, site, outputs).empty();
    const std::size_t count = all.size();
    for (std::size_t i = 0; i < count; ++i) {
      if (!fixed) all.push_back(all[i]);
      all[i].sites.set(site, true);
    }
  }
  if (!orders || !has_norm(in.region)) return all;
  std::vector<RegionNumerics> ordered;
  for (const RegionNumerics& n : all) {
    for (const auto& [order, name] : enum_names(RowSumOrder{})) {
      ordered.push_back(n);
      ordered.back().row_sum = order;
    }
  }
  return ordered;
}

ProbeResult infer_sites(Context& ctx, const RegionInputs& in, const RegionObservation& observation, double tolerance) {
  const RegionWanted outputs = outputs_of(observation);
  const RegionWanted gradients = part_of(outputs, true);
  ProbeResult result;
  for (const auto& [name, tensor] : observation.outputs) result.elements += tensor.elements();
  std::vector<ProbeCandidate> candidates;
  for (const RegionNumerics& n : forward_candidates(in, outputs, true)) candidates.push_back({.numerics = n});
  result.candidates = std::int64_t(candidates.size());
  Search search(ctx, in, observation, tolerance);
  Search::Stage stage = search.run(candidates, part_of(outputs, false));
  result.closest = stage.closest;
  result.fitting = std::move(stage.fitting);
  if (!result.found()) return result;
  if (!gradients.empty()) {
    const auto with_modes = with_backward_modes(result.fitting, in.region);
    result.candidates += std::int64_t(with_modes.size());
    Search::Stage backward = search.run(with_modes, gradients);
    result.closest = backward.closest;
    result.backward_fits = !backward.fitting.empty();
    if (result.backward_fits) result.fitting = std::move(backward.fitting);
  }
  for (const Site site : sites_of(in.region)) result.sites.push_back(finding(in, site, outputs, result.fitting));
  if (!gradients.empty() && result.backward_fits) result.backward = backward_findings(in.region, result.fitting);
  if (has_norm(in.region)) result.row_sums = values_of(result.fitting, &RegionNumerics::row_sum);
  name_presets(in, !gradients.empty(), result);
  return result;
}

}  // namespace plumb
