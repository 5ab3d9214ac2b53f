// The prober against what real code gave: of every golden file of the regions, in both modes, the sites that the stacks' source says,
// forward and backward, found without being told. Needs PLUMB_SHARED.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>

#include "model/probe/infer.h"
#include "model/regions/region_goldens.h"

namespace plumb {
namespace {

using Values = std::map<Site, std::string>;
using enum Site;

/// By region, for BF16 outputs. "?" where the copy is of a BF16 value, so that nothing can tell.
const std::map<std::string, Values> kSites = {
    {"hf eager",
     {{qk_norm_xhat, "b"},
      {qk_norm_out, "b"},
      {rope_cos_sin_table, "b"},
      {rope_rotated, "?"},
      {rope_products, "b"},
      {rope_out, "b"},
      {swiglu_silu, "b"},
      {swiglu_out, "b"},
      {resid_store, "b"},
      {resid_sum_to_var, "b"},
      {resid_sum_to_scale, "b"},
      {norm_xhat, "b"},
      {norm_out, "b"}}},
    {"hf compiled",
     {{qk_norm_xhat, "f"},
      {qk_norm_out, "f"},
      {rope_cos_sin_table, "f"},
      {rope_rotated, "b"},
      {rope_products, "f"},
      {rope_out, "b"},
      {swiglu_silu, "f"},
      {swiglu_out, "b"},
      {resid_store, "b"},
      {resid_sum_to_var, "b"},
      {resid_sum_to_scale, "b"},
      {norm_xhat, "f"},
      {norm_out, "b"}}},
    {"serving eager",
     {{qk_norm_xhat, "b"},
      {qk_norm_out, "b"},
      {rope_cos_sin_table, "b"},
      {rope_rotated, "?"},
      {rope_products, "b"},
      {rope_out, "b"},
      {resid_store, "b"},
      {resid_sum_to_var, "f"},
      {resid_sum_to_scale, "f"},
      {norm_xhat, "b"},
      {norm_out, "b"}}},
    {"serving compiled",
     {{qk_norm_xhat, "f"},
      {qk_norm_out, "f"},
      {rope_cos_sin_table, "b"},
      {rope_rotated, "f"},
      {rope_products, "f"},
      {rope_out, "b"},
      {resid_store, "b"},
      {resid_sum_to_var, "f"},
      {resid_sum_to_scale, "f"},
      {norm_xhat, "f"},
      {norm_out, "b"}}},
};

std::string expected(const std::string& stack, const RegionInputs& in, Site site) {
  if (site == rope_rotated && in.region == Region::rope) return "ambiguous";  // a BF16 input
  if (site == rope_cos_sin_table && in.table_given_bf16) return "b";
  const std::string& value = kSites.at(stack).at(site);
  return value == "?" ? "ambiguous" : value;
}

/// The preset that must be named; "": PyTorch's autograd of a serving formula is no stack's.
std::string preset_of(const std::string& stack) {
  if (stack == "hf eager") return "hf_eager";
  if (stack == "hf compiled") return "hf_compiled";
  return stack == "serving compiled" ? "vllm_compiled" : "";
}

/// Where the forward keeps FP32 inside, mirror and fused are the same: then both may be named.
void expect_backward(const ProbeResult& r, BackwardMode mode) {
  ASSERT_FALSE(r.backward.empty());
  for (const BackwardFinding& b : r.backward) EXPECT_NE(std::find(b.modes.begin(), b.modes.end(), mode), b.modes.end()) << b.part;
}

TEST(ProbeRegionGoldens, EveryFileGivesTheSitesOfItsStack) {
  const char* shared = std::getenv("PLUMB_SHARED");
  if (shared == nullptr) GTEST_SKIP() << "PLUMB_SHARED is not set: the golden values of the regions are not there";
  Context ctx(2);
  int probed = 0;
  for (const auto& path : region_files(std::string(shared) + "/conformance/regions")) {
    const RegionFile file(path);
    const RegionInputs in = file.inputs();
    const std::string kind = path.filename().string().starts_with("serving") ? "serving " : "hf ";
    for (const RegionObservation& o : file.observations(in)) {
      const std::string stack = kind + o.mode;
      SCOPED_TRACE(path.filename().string() + ", " + stack);
      const ProbeResult r = infer_sites(ctx, in, o);
      ASSERT_TRUE(r.found());
      ++probed;
      EXPECT_EQ(r.closest.apart, 0);
      EXPECT_EQ(r.sites.size(), sites_of(in.region).size());
      for (const SiteFinding& f : r.sites) EXPECT_EQ(name_of(f.verdict), expected(stack, in, f.site)) << name_of(f.site);
      expect_backward(r, o.mode == "eager" ? BackwardMode::mirror : BackwardMode::fused);
      const std::string preset = preset_of(stack);
      EXPECT_TRUE(preset.empty() || std::find(r.presets.begin(), r.presets.end(), preset) != r.presets.end()) << preset;
    }
  }
  EXPECT_EQ(probed, 2 * 17);
}

}  // namespace
}  // namespace plumb
