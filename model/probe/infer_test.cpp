// Planted sites are found again; what inputs cannot tell is said to be ambiguous; what fits nothing fits nothing.
#include "model/probe/infer.h"

#include <gtest/gtest.h>

#include "kernels/core/error.h"
#include "kernels/core/rng.h"
#include "kernels/numerics/presets.h"
#include "model/probe/last_bits.h"
#include "tests/support/error_of.h"

namespace plumb {
namespace {

RegionTensor random_tensor(std::int64_t rows, std::int64_t cols, std::uint64_t seed, double scale = 1, double mean = 0,
                           DType dtype = DType::bf16) {
  RegionTensor t(rows, cols, dtype);
  for (std::int64_t i = 0; i < t.elements(); ++i) t.set(i, float(mean + scale * random_normal({.seed = seed}, std::uint64_t(i))));
  return t;
}

RegionInputs random_inputs(Region region, std::int64_t rows = 40) {
  RegionInputs in{.region = region};
  if (region == Region::swiglu) {
    in.tensors = {{"gate", random_tensor(rows, 100, 1, 2)}, {"up", random_tensor(rows, 100, 2)}, {"up.0", random_tensor(rows, 100, 3)}};
  } else if (region == Region::resid_norm) {
    in.tensors = {{"h", random_tensor(rows, 200, 1)},
                  {"r", random_tensor(rows, 200, 2, 4)},
                  {"w", random_tensor(1, 200, 3, 0.2, 1)},
                  {"up.0", random_tensor(rows, 200, 4)},
                  {"up.1", random_tensor(rows, 200, 5)}};
  } else {
    for (std::int64_t i = 0; i < rows; ++i) in.positions.push_back(std::int32_t(3 * i));
    in.head_dim = 32;
    in.table = RopeTable::of_positions(32, 1e4, in.positions);
    in.tensors = {{"q", random_tensor(rows, 96, 1, 3)},
                  {"k", random_tensor(rows, 64, 2, 3)},
                  {"up.0", random_tensor(rows, 96, 3)},
                  {"up.1", random_tensor(rows, 64, 4)}};
    if (region == Region::qk_norm_rope) {
      in.tensors["wq"] = random_tensor(1, 32, 5, 0.2, 1);
      in.tensors["wk"] = random_tensor(1, 32, 6, 0.2, 1);
    }
  }
  check_inputs(in);
  return in;
}

class InferSites : public testing::Test {
 protected:
  RegionObservation observe(const RegionInputs& in, const RegionNumerics& n, const RegionWanted& wanted) {
    return {.outputs = run_region(ctx_, in, n, wanted)};
  }
  static const SiteFinding& of(const ProbeResult& r, Site site) {
    for (const SiteFinding& f : r.sites)
      if (f.site == site) return f;
    throw Error("the site is not of the region");
  }
  Context ctx_{2};
};

/// A site is found as planted, or inert by right: the only one is rope.rotated of a copy that is BF16 already.
void expect_planted(const ProbeResult& r, const RegionNumerics& planted, Region region) {
  ASSERT_TRUE(r.found());
  for (const SiteFinding& f : r.sites) {
    const bool bf16_heads = region == Region::rope || planted.sites.rounded(Site::qk_norm_out);
    const bool inert = f.site == Site::rope_rotated && bf16_heads;
    const std::string want = inert ? "ambiguous" : planted.sites.rounded(f.site) ? "b" : "f";
    EXPECT_EQ(name_of(f.verdict), want) << name_of(f.site) << " " << f.reason;
  }
}

TEST_F(InferSites, EveryPlantedChoiceOfARegionIsFound) {
  for (const auto& [region, name] : enum_names(Region{})) {
    SCOPED_TRACE(name);
    RegionInputs in = random_inputs(region);
    in.tensors.erase("up.0");  // forward alone
    for (const RegionNumerics& planted : forward_candidates(in, all_outputs(in), false)) {
      const ProbeResult r = infer_sites(ctx_, in, observe(in, planted, all_outputs(in)), 0);
      expect_planted(r, planted, region);
      EXPECT_EQ(r.closest.apart, 0);
    }
  }
}

TEST_F(InferSites, BackwardModesAreToldApart) {
  for (const auto& [region, name] : enum_names(Region{})) {
    SCOPED_TRACE(name);
    const RegionInputs in = random_inputs(region);
    for (const BackwardMode mode : {BackwardMode::fused, BackwardMode::mirror}) {
      for (const BackwardMode qk_norm : {BackwardMode::fused, BackwardMode::mirror}) {
        RegionNumerics planted = region_numerics(preset("hf_eager"), region);
        planted.backward = mode;
        planted.qk_norm = qk_norm;
        const ProbeResult r = infer_sites(ctx_, in, observe(in, planted, all_outputs(in)));
        expect_planted(r, planted, region);
        ASSERT_EQ(r.backward.size(), region == Region::qk_norm_rope ? 2u : 1u);
        EXPECT_EQ(r.backward.front().modes, std::vector{mode});
        EXPECT_EQ(r.backward.back().modes, std::vector{region == Region::qk_norm_rope ? qk_norm : mode});
      }
    }
  }
}

TEST_F(InferSites, OutputsInFp32ShowTheStoringSiteToo) {
  for (const auto& [region, name] : enum_names(Region{})) {
    SCOPED_TRACE(name);
    const RegionInputs in = random_inputs(region, 12);
    RegionWanted wanted = {{"out.0", DType::f32}};
    if (region != Region::swiglu) wanted["out.1"] = DType::f32;
    for (const RegionNumerics& planted : forward_candidates(in, wanted, false))
      expect_planted(infer_sites(ctx_, in, observe(in, planted, wanted)), planted, region);
  }
}

TEST_F(InferSites, NoiseFitsNothing) {
  for (const auto& [region, name] : enum_names(Region{})) {
    const RegionInputs in = random_inputs(region);
    RegionObservation o = observe(in, region_numerics(preset("hf_eager"), region), all_outputs(in));
    RegionTensor& out = o.outputs.at("out.0");
    for (std::int64_t i = 0; i < out.elements(); i += 10) out.set(i, out.at(i) * 1.01f);
    const ProbeResult r = infer_sites(ctx_, in, o);
    EXPECT_FALSE(r.found()) << name;
    EXPECT_TRUE(r.sites.empty() && r.presets.empty()) << name;
    EXPECT_GT(r.closest.apart, 50) << name;
  }
}

// The sites are found by the outputs, and the gradients are said to be none of theirs.
TEST_F(InferSites, GradientsThatFitNothingLeaveTheSitesFound) {
  const RegionInputs in = random_inputs(Region::swiglu);
  const RegionNumerics eager = region_numerics(preset("hf_eager"), Region::swiglu);
  RegionObservation o = observe(in, eager, all_outputs(in));
  RegionTensor& gradient = o.outputs.at("grad.up");
  for (std::int64_t i = 0; i < gradient.elements(); i += 10) gradient.set(i, gradient.at(i) * 1.01f);
  const ProbeResult r = infer_sites(ctx_, in, o);
  expect_planted(r, eager, Region::swiglu);
  EXPECT_FALSE(r.explained());
  EXPECT_TRUE(r.backward.empty() && r.presets.empty());
  EXPECT_FALSE(r.same_sites.empty());
  EXPECT_EQ(r.closest.apart_in.size(), 1u);
  EXPECT_GT(r.closest.apart_in.at("grad.up"), 300);
}

// A tie that flips now and then does not hide the sites.
TEST_F(InferSites, AFewFlippedTiesAreAllowed) {
  const RegionInputs in = random_inputs(Region::swiglu, 400);
  const RegionNumerics planted = region_numerics(preset("hf_eager"), Region::swiglu);
  RegionObservation o = observe(in, planted, {{"out.0", DType::bf16}});
  RegionTensor& out = o.outputs.at("out.0");
  for (std::int64_t i : {7, 70, 7000, 20000}) out.set(i, out.at(i) * 1.008f);
  const ProbeResult r = infer_sites(ctx_, in, o);
  expect_planted(r, planted, Region::swiglu);
  EXPECT_EQ(r.closest.apart, 4);
  EXPECT_FALSE(infer_sites(ctx_, in, o, 0).found());
}

TEST_F(InferSites, WhatInputsCannotTellIsAmbiguous) {
  RegionInputs in = random_inputs(Region::swiglu);
  in.tensors["up"] = random_tensor(40, 100, 2, 0, 2);  // times a power of two: what is rounded later was rounded already
  for (const bool rounded : {false, true}) {
    RegionNumerics planted;
    planted.sites.set(Site::swiglu_silu, rounded);
    const ProbeResult r = infer_sites(ctx_, in, observe(in, planted, {{"out.0", DType::bf16}}));
    EXPECT_EQ(of(r, Site::swiglu_silu).verdict, ProbeVerdict::ambiguous);
    EXPECT_EQ(of(r, Site::swiglu_silu).reason, "these inputs cannot tell");
    EXPECT_EQ(r.fitting.size(), 2u);
  }
  // The gradient of up shows the rounded silu where the output does not.
  const RegionNumerics eager = region_numerics(preset("hf_eager"), Region::swiglu);
  EXPECT_EQ(of(infer_sites(ctx_, in, observe(in, eager, all_outputs(in))), Site::swiglu_silu).verdict, ProbeVerdict::rounded);
}

TEST_F(InferSites, ATableThatWasGivenInBf16IsNotTheOpsDoing) {
  RegionInputs in = random_inputs(Region::qk_norm_rope);
  in.table_given_bf16 = true;
  const RegionNumerics compiled = region_numerics(preset("hf_compiled"), Region::qk_norm_rope);
  RegionNumerics planted = compiled;
  planted.sites.set(Site::rope_cos_sin_table, true);
  const ProbeResult r = infer_sites(ctx_, in, observe(in, planted, all_outputs(in)));
  expect_planted(r, planted, Region::qk_norm_rope);
  EXPECT_EQ(of(r, Site::rope_cos_sin_table).reason, "the table was given in BF16");
  EXPECT_EQ(r.presets, std::vector<std::string_view>{"hf_compiled"});
}

TEST(RegionOp, RefusesShapesThatDoNotFit) {
  RegionInputs in = random_inputs(Region::qk_norm_rope);
  in.tensors["wk"] = RegionTensor(1, 31, DType::bf16);
  EXPECT_EQ(test::error_of([&] { check_inputs(in); }), "qk_norm_rope: wk is (1, 31); (1, 32) is right");
  in.tensors.erase("wk");
  EXPECT_EQ(test::error_of([&] { check_inputs(in); }), "qk_norm_rope: the input wk is missing");
  RegionInputs swiglu = random_inputs(Region::swiglu);
  Context ctx(1);
  EXPECT_EQ(test::error_of([&] { run_region(ctx, swiglu, {}, {{"grad.h", DType::bf16}}); }), "these inputs give no grad.h");
  EXPECT_NE(test::error_of([] { region_from_name("swiglue"); }).find("swiglu"), std::string::npos);
}

TEST(LastBits, Fp32MayDifferInItsLastBitsAndBf16InNone) {
  RegionTensor a = random_tensor(10, 10, 1, 1, 0, DType::f32);
  RegionTensor b = a;
  for (std::int64_t i = 0; i < 100; ++i) b.set(i, a.at(i) * (1 + 0x1p-22f));
  EXPECT_EQ(elements_apart(a, b), 0);
  for (std::int64_t i = 0; i < 100; ++i) b.set(i, round_bf16(a.at(i)));
  EXPECT_GT(elements_apart(a, b), 95);
  RegionTensor c = random_tensor(10, 10, 1);
  RegionTensor d = c;
  EXPECT_EQ(elements_apart(c, d), 0);
  d.bytes()[20] ^= std::byte{1};
  EXPECT_EQ(elements_apart(c, d), 1);
}

}  // namespace
}  // namespace plumb
