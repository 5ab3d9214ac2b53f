// Crafted inputs tell every preset's sites, by their outputs in a file as a stack would record them.
#include "model/probe/craft.h"

#include <gtest/gtest.h>

#include "kernels/core/error.h"
#include "kernels/numerics/presets.h"
#include "model/probe/infer.h"
#include "model/probe/region_file.h"
#include "model/safetensors/safetensors.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_folder.h"

namespace plumb {
namespace {

class CraftedInputs : public testing::TestWithParam<Region> {
 protected:
  static const RegionInputs& crafted(Region region) {
    static std::map<Region, RegionInputs> all;
    static Context ctx(2);
    if (!all.contains(region)) all[region] = craft_inputs(ctx, region);
    return all.at(region);
  }
  Context ctx_{2};
};

StoredTensor stored(const std::string& name, const RegionTensor& t) {
  return {.name = name,
          .dtype = t.dtype() == DType::f32 ? StoredType::f32 : StoredType::bf16,
          .shape = {t.rows(), t.cols()},
          .data = t.bytes()};
}

/// What a stack stores: BF16 but where its site says FP32.
RegionWanted stored_outputs(const RegionInputs& in, const RegionNumerics& n) {
  RegionWanted wanted = all_outputs(in);
  const auto f32_unless = [&](Site site, const char* name) {
    if (wanted.contains(name) && !n.sites.rounded(site)) wanted[name] = DType::f32;
  };
  const bool rope = in.head_dim > 0;
  f32_unless(rope ? Site::rope_out : in.region == Region::swiglu ? Site::swiglu_out : Site::norm_out, "out.0");
  f32_unless(rope ? Site::rope_out : Site::resid_store, "out.1");
  return wanted;
}

TEST_P(CraftedInputs, TellTheSitesOfEveryPreset) {
  test::TempFolder folder;
  const Region region = GetParam();
  write_region_inputs(folder / "inputs.safetensors", crafted(region));
  const RegionInputs in = RegionFile(folder / "inputs.safetensors").inputs();
  for (const Preset& p : presets()) {
    SCOPED_TRACE(p.name);
    const RegionNumerics n = region_numerics(p.numerics, region);
    const RegionTensors outputs = run_region(ctx_, in, n, stored_outputs(in, n));
    std::vector<StoredTensor> tensors;
    for (const auto& [name, t] : outputs) tensors.push_back(stored(name, t));
    write_safetensors(folder / "outputs.safetensors", tensors);
    const ProbeResult r = infer_sites(ctx_, in, RegionFile(folder / "outputs.safetensors").observations(in).at(0));
    ASSERT_TRUE(r.found());
    for (const SiteFinding& f : r.sites) {
      const bool inert = f.site == Site::rope_rotated && (region == Region::rope || n.sites.rounded(Site::qk_norm_out));
      EXPECT_EQ(name_of(f.verdict), std::string(inert ? "ambiguous" : n.sites.rounded(f.site) ? "b" : "f")) << name_of(f.site);
    }
    EXPECT_NE(std::find(r.presets.begin(), r.presets.end(), p.name), r.presets.end());
    EXPECT_EQ(r.closest.apart, 0);
  }
}

TEST_P(CraftedInputs, AreFewRowsAndAlwaysTheSame) {
  const RegionInputs& in = crafted(GetParam());
  const std::string first = in.region == Region::swiglu ? "gate" : in.region == Region::resid_norm ? "h" : "q";
  EXPECT_LE(in.tensors.at(first).rows(), 150);
  const RegionInputs again = craft_inputs(ctx_, GetParam());
  for (const auto& [name, t] : in.tensors) EXPECT_EQ(t.bytes(), again.tensors.at(name).bytes()) << name;
}

INSTANTIATE_TEST_SUITE_P(Regions, CraftedInputs, testing::Values(Region::rope, Region::qk_norm_rope, Region::swiglu, Region::resid_norm),
                         [](const auto& p) { return enum_name(p.param); });

// A head of 64 has too few elements for some pairs of orders to flip a tie: then both are named.
TEST(CraftedInputsOfANorm, TellTheOrderOfTheSum) {
  Context ctx(2);
  for (const Region region : {Region::resid_norm, Region::qk_norm_rope}) {
    const RegionInputs in = craft_inputs(ctx, region);
    for (const char* sites : {"hf_eager", "fused"}) {
      for (const auto& [order, name] : enum_names(RowSumOrder{})) {
        SCOPED_TRACE(std::string(enum_name(region)) + " " + sites + " " + name);
        RegionNumerics n = region_numerics(preset(sites), region);
        n.row_sum = order;
        const ProbeResult r = infer_sites(ctx, in, {.outputs = run_region(ctx, in, n, all_outputs(in))});
        EXPECT_NE(std::find(r.row_sums.begin(), r.row_sums.end(), order), r.row_sums.end());
        EXPECT_LE(r.row_sums.size(), region == Region::resid_norm ? 1u : 2u);
      }
    }
  }
}

TEST(CraftedInputsOfAWidth, HaveItOrAreRefused) {
  Context ctx(2);
  EXPECT_EQ(craft_inputs(ctx, Region::rope, 128).tensors.at("q").cols(), 512);
  EXPECT_EQ(craft_inputs(ctx, Region::swiglu, 100).tensors.at("up").cols(), 100);
  EXPECT_EQ(test::error_of([&] { craft_inputs(ctx, Region::rope, 65); }), "the width of rope is 65; an even number from 8 to 512 is right");
  EXPECT_NE(test::error_of([&] { craft_inputs(ctx, Region::swiglu, 100000); }).find("8192"), std::string::npos);
}

}  // namespace
}  // namespace plumb
