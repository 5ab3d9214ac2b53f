#include "rl/cli/numerics_probe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/core/error.h"
#include "kernels/core/nearest.h"
#include "model/probe/craft.h"
#include "model/probe/library.h"
#include "model/probe/region_file.h"
#include "rl/loop/session.h"

namespace plumb {
namespace {

using ProbeJson = nlohmann::ordered_json;

/// An implementation's outputs and what they tell.
struct Probed {
  std::string what;  // the mode, "" when it has no name
  Region region;
  ProbeResult result;
};

template <class E>
std::vector<std::string> enum_names_of(const std::vector<E>& values) {
  std::vector<std::string> names;
  for (const E value : values) names.emplace_back(enum_name(value));
  return names;
}

std::string sites_text(Region region, Sites sites) {
  std::vector<std::string> parts;
  for (const Site site : sites_of(region)) parts.push_back(fmt::format("{}={}", name_of(site), sites.rounded(site) ? "b" : "f"));
  return fmt::format("{}", fmt::join(parts, " "));
}

ProbeJson as_json(const Probed& p) {
  const ProbeResult& r = p.result;
  ProbeJson out = {
      {"mode", p.what},         {"region", enum_name(p.region)},    {"found", r.found()},         {"backward_fits", r.backward_fits},
      {"elements", r.elements}, {"closest_apart", r.closest.apart}, {"candidates", r.candidates}, {"fitting", r.fitting.size()}};
  if (r.closest.apart != 0) out["closest_apart_in"] = r.closest.apart_in;
  if (!r.found()) return out;
  for (const SiteFinding& f : r.sites) {
    out["sites"][std::string(name_of(f.site))] = {{"value", name_of(f.verdict)}};
    if (!f.reason.empty()) out["sites"][std::string(name_of(f.site))]["reason"] = f.reason;
  }
  for (const BackwardFinding& b : r.backward)
    out["backward"][std::string(b.part)] = b.modes.size() == 1 ? enum_name(b.modes[0]) : name_of(ProbeVerdict::ambiguous);
  if (!r.row_sums.empty()) out["row_sum"] = enum_names_of(r.row_sums);
  out["presets"] = r.presets;
  out["same_sites"] = r.same_sites;
  return out;
}

std::string names_or_none(const std::vector<std::string_view>& names) {
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

void print_closest(const Probed& p) {
  for (const auto& [output, apart] : p.result.closest.apart_in) fmt::print("  {:<20} {} elements differ\n", output, apart);
}

void print_table(const Probed& p) {
  const ProbeResult& r = p.result;
  fmt::print("{}{}: ", p.what.empty() ? "" : p.what + ": ", enum_name(p.region));
  if (!r.found()) {
    fmt::print("no choice of sites gives these outputs; the closest differs in {} of {} elements\n  {}\n", r.closest.apart, r.elements,
               sites_text(p.region, r.closest.numerics.sites));
    return print_closest(p);
  }
  fmt::print("{} of {} candidates give these {}, {} of {} elements apart\n", r.fitting.size(), r.candidates,
             r.backward_fits ? "outputs" : "outputs but not their gradients", r.closest.apart, r.elements);
  if (!r.backward_fits) print_closest(p);
  for (const SiteFinding& f : r.sites) fmt::print("  {:<20} {:<10} {}\n", name_of(f.site), name_of(f.verdict), f.reason);
  for (const BackwardFinding& b : r.backward) {
    const bool one = b.modes.size() == 1;
    fmt::print("  {:<20} {:<10} {}\n", fmt::format("backward {}", b.part), one ? enum_name(b.modes[0]) : name_of(ProbeVerdict::ambiguous),
               one ? "" : "mirror and fused give the same here");
  }
  if (!r.row_sums.empty()) fmt::print("  {:<20} {}\n", "row_sum", fmt::join(enum_names_of(r.row_sums), ", "));
  fmt::print("  {:<20} {}\n", "presets", names_or_none(r.presets));
  if (r.same_sites != r.presets) fmt::print("  {:<20} {}\n", "the same sites", names_or_none(r.same_sites));
}

std::vector<RegionObservation> chosen_modes(std::vector<RegionObservation> all, const ProbeArguments& a) {
  if (a.mode.empty()) return all;
  std::vector<RegionObservation> chosen;
  std::vector<std::string_view> names;
  for (RegionObservation& o : all) {
    names.push_back(o.mode);
    if (o.mode == a.mode) chosen.push_back(o);
  }
  if (chosen.empty()) throw UsageError(fmt::format("{}: no mode '{}'{}", a.file, a.mode, suggestion(a.mode, names)));
  return chosen;
}

void check_use(const ProbeArguments& a) {
  const int sources = int(!a.file.empty()) + int(!a.library.empty()) + int(!a.write_inputs.empty());
  if (sources != 1) throw UsageError("probe: give one of FILE, --library and --write-inputs");
  if (!a.library.empty() && a.symbol.empty()) throw UsageError("probe: --library needs --symbol, the name of its function");
  if (a.library.empty() && !(a.symbol.empty() && a.backward.empty()))
    throw UsageError("probe: --symbol and --backward are names of functions of a --library");
  const bool crafted = !a.write_inputs.empty() || (!a.library.empty() && a.inputs.empty());
  if (crafted && a.region.empty()) throw UsageError("probe: --region is missing: rope, qk_norm_rope, swiglu or resid_norm");
  if (!crafted && !(a.region.empty() && a.width == 0))
    throw UsageError("probe: --region and --width are those of crafted inputs; a file has its own");
  if (!a.mode.empty() && a.file.empty()) throw UsageError("probe: --mode is one of FILE's");
  if (a.stream != "bf16" && a.stream != "f32") throw UsageError(fmt::format("probe: --stream is '{}'; bf16 or f32 is right", a.stream));
}

RegionInputs crafted(const ProbeArguments& a) {
  Context one(1);
  return craft_inputs(one, region_from_name(a.region), a.width);
}

int write_crafted(const ProbeArguments& a) {
  const RegionInputs in = crafted(a);
  write_region_inputs(a.write_inputs, in);
  fmt::print("{}: {} rows of {}; run them through the implementation, store out.0, ... and probe that file with --inputs {}\n",
             a.write_inputs, in.tensors.at(shaped_like(in, "out.0")).rows(), a.region, a.write_inputs);
  return 0;
}

/// What there is to explain, with its inputs.
std::vector<RegionObservation> observations_of(const ProbeArguments& a, RegionInputs& inputs) {
  if (a.library.empty()) {
    inputs = RegionFile(a.inputs.empty() ? a.file : a.inputs).inputs();
    return chosen_modes(RegionFile(a.file).observations(inputs), a);
  }
  inputs = a.inputs.empty() ? crafted(a) : RegionFile(a.inputs).inputs();
  RegionObservation o =
      observe_library({.path = a.library, .symbol = a.symbol, .backward = a.backward, .stream_f32 = a.stream == "f32"}, inputs);
  o.mode = a.symbol;
  return {std::move(o)};
}

}  // namespace

int probe_numerics(const ProbeArguments& a) {
  check_use(a);
  if (!a.write_inputs.empty()) return write_crafted(a);
  RegionInputs inputs;
  const auto observations = observations_of(a, inputs);  // before there are threads
  const auto ctx = make_context(ExecutionConfig{.threads = a.threads});
  std::vector<Probed> all;
  for (const RegionObservation& o : observations) all.push_back({o.mode, inputs.region, infer_sites(*ctx, inputs, o, a.tolerance / 100)});
  auto json = ProbeJson::array();
  for (const Probed& p : all) {
    if (a.json)
      json.push_back(as_json(p));
    else
      print_table(p);
  }
  if (a.json) fmt::print("{}\n", json.dump(2));
  return std::all_of(all.begin(), all.end(), [](const Probed& p) { return p.result.explained(); }) ? 0 : 1;
}

}  // namespace plumb
