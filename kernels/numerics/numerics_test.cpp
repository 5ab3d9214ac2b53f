#include "kernels/numerics/numerics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "kernels/core/error.h"
#include "kernels/core/nearest.h"
#include "kernels/numerics/preset_sites.h"
#include "kernels/numerics/presets.h"
#include "kernels/numerics/site_dispatch.h"

namespace plumb {
namespace {

using testing::HasSubstr;

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

TEST(Numerics, SiteNamesGoBothWaysAndAreDistinct) {
  std::set<std::string_view> names;
  for (int i = 0; i < kSites; ++i) {
    EXPECT_EQ(site_from_name(name_of(Site(i))), Site(i));
    names.insert(name_of(Site(i)));
  }
  EXPECT_EQ(int(names.size()), kSites);
}

TEST(Numerics, UnknownNamesSuggestTheNearest) {
  EXPECT_THAT(error_of([] { site_from_name("rope.product"); }), HasSubstr("'rope.products'"));
  EXPECT_THAT(error_of([] { preset("hf-eager"); }), HasSubstr("'hf_eager'"));
  EXPECT_THAT(error_of([] { preset("vllm_cpu_compield"); }), HasSubstr("'vllm_cpu_compiled'"));
  EXPECT_THAT(error_of([] { preset("zzzzzz"); }), HasSubstr("known: fused, fp32, hf_autocast_fp32params"));
}

TEST(Numerics, EditDistanceCountsASwapOnce) {
  EXPECT_EQ(edit_distance("learnign_rate", "learning_rate"), 1);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(nearest("learnign_rate", {"batch", "learning_rate", "rate"}), "learning_rate");
  EXPECT_EQ(nearest("q", {"learning_rate"}), "");
}

TEST(Numerics, PresetsAreWhatTheStacksDo) {
  const Sites fused = preset("fused").sites(3, 4, Place::block);
  for (Site s : {Site::embedding, Site::resid_store, Site::norm_out, Site::rope_out, Site::attn_out, Site::swiglu_out, Site::linear_out}) {
    EXPECT_TRUE(fused.rounded(s)) << name_of(s);
  }
  EXPECT_EQ(__builtin_popcount(fused.mask), 7);
  const Sites eager = preset("hf_eager").sites(0, 4, Place::input_norm);
  for (int i = 0; i < kSites; ++i) EXPECT_TRUE(eager.rounded(Site(i))) << name_of(Site(i));
  const Sites vllm = preset("vllm_cpu_compiled").sites(0, 4, Place::post_attention_norm);
  EXPECT_FALSE(vllm.rounded(Site::resid_store));
  EXPECT_TRUE(vllm.rounded(Site::rope_cos_sin_table));
  EXPECT_FALSE(vllm.rounded(Site::rope_products));
  EXPECT_FALSE(vllm.rounded(Site::attn_probs));
  EXPECT_TRUE(vllm.rounded(Site::lm_head_logits));
  EXPECT_FALSE(vllm.rounded(Site::logits_temperature));
  EXPECT_EQ(preset("vllm_cpu_compiled").scale_at, ScaleAt::query);
  const Sites vllm_eager = preset("vllm_cpu_eager").sites(0, 4, Place::post_attention_norm);
  for (Site s : {Site::resid_store, Site::norm_xhat, Site::swiglu_silu, Site::qk_norm_xhat})
    EXPECT_TRUE(vllm_eager.rounded(s)) << name_of(s);
  for (Site s : {Site::resid_sum_to_var, Site::resid_sum_to_scale, Site::rope_products, Site::attn_scores, Site::attn_probs})
    EXPECT_FALSE(vllm_eager.rounded(s)) << name_of(s);
  EXPECT_EQ(preset("vllm_cpu_eager").reductions.attention_exp, AttentionExp::u20);
  const Sites sdpa = preset("hf_sdpa").sites(0, 4, Place::block);
  EXPECT_TRUE(sdpa.rounded(Site::attn_probs));
  EXPECT_FALSE(sdpa.rounded(Site::attn_scaled));
  EXPECT_EQ(preset("hf_sdpa").softmax, Softmax::flash);
  EXPECT_EQ(preset("hf_eager").softmax, Softmax::normalised);
  EXPECT_EQ(preset("hf_eager").backward.attention, BackwardMode::mirror);
  EXPECT_FALSE(preset("hf_eager").backward.merged_qkv);
  EXPECT_EQ(preset("fp32").sites(0, 1, Place::block), Sites{});
}

TEST(Numerics, APresetSaysHowEachFactIsKnown) {
  EXPECT_GE(presets().size(), 16u);
  for (const Preset& p : presets()) {
    EXPECT_EQ(p.numerics.preset, p.name);
    EXPECT_FALSE(p.stack.empty() || p.summary.empty()) << p.name;
    EXPECT_GE(int(p.facts.size()), p.name == "fp32" ? 1 : kSites) << p.name;
    for (const PresetFact& f : p.facts) EXPECT_FALSE(f.source.empty()) << p.name << " " << f.key;
  }
  EXPECT_EQ(find_preset("hf_eager").facts[1].key, "embedding");
  EXPECT_EQ(find_preset("hf_eager").facts[1].knowledge, Knowledge::proven);
  EXPECT_EQ(find_preset("torchtitan").numerics.preset, "torchtitan");
}

TEST(Numerics, CompiledModelsKeepTheFirstBlocksStream) {
  const Numerics n = preset("hf_compiled");
  for (Site s : {Site::resid_store, Site::resid_sum_to_var, Site::resid_sum_to_scale}) {
    EXPECT_FALSE(n.sites(0, 4, Place::post_attention_norm).rounded(s)) << name_of(s);
    EXPECT_TRUE(n.sites(1, 4, Place::post_attention_norm).rounded(s)) << name_of(s);
    EXPECT_TRUE(n.sites(0, 4, Place::input_norm).rounded(s)) << name_of(s);
    EXPECT_TRUE(n.sites(0, 4, Place::final_norm).rounded(s)) << name_of(s);
  }
}

TEST(Numerics, WhatNoKernelDoesIsNamed) {
  for (const char* name : {"fused", "fp32", "hf_eager", "hf_sdpa", "hf_compiled", "vllm_cpu_eager", "vllm_cpu_compiled", "vllm_compiled"}) {
    EXPECT_EQ(unsupported(preset(name)), "") << name;
  }
  Numerics n = preset("fused");
  n.compute = e8_dtype(5);
  n.base.set(Site::rope_out, false);
  n.reductions.shards = 3;
  EXPECT_EQ(unsupported(n), "rope.out f (it is stored in e8m5), reductions.shards 3");
  n = preset("fused");
  n.overrides.push_back({.first_layer = 1, .last_layer = 1, .place = Place::final_norm, .site = Site::norm_out, .rounded = false});
  EXPECT_EQ(unsupported(n), "norm.out f (it is stored in bf16)");
  n.compute = DType::f32;
  EXPECT_EQ(unsupported(n), "");
}

TEST(Numerics, TheOrderOfOverridesOfDifferentSitesIsNoFact) {
  const SiteOverride a{.first_layer = 0, .last_layer = 0, .place = Place::block, .site = Site::swiglu_silu, .rounded = true};
  const SiteOverride b{.first_layer = 0, .last_layer = 0, .place = Place::input_norm, .site = Site::norm_xhat, .rounded = true};
  Numerics one = preset("fused");
  Numerics two = one;
  one.overrides = {a, b};
  two.overrides = {b, a};
  EXPECT_TRUE(one == two);
  two.overrides.pop_back();
  EXPECT_FALSE(one == two);
}

TEST(Numerics, WhatASequenceEndChanges) {
  EXPECT_FALSE(needs_whole_sequences(preset("hf_eager").reductions));
  EXPECT_FALSE(needs_whole_sequences(preset("vllm_cpu_eager").reductions));
  const Reductions sdpa = preset("hf_sdpa").reductions;
  EXPECT_TRUE(needs_whole_sequences(sdpa));
  const Reductions endless = without_sequence_end(sdpa);
  EXPECT_FALSE(needs_whole_sequences(endless));
  EXPECT_EQ(endless.attention_exp, AttentionExp::torch_fast_all);
  EXPECT_EQ(endless.attention_sum, AttentionSum::lanes16);
  EXPECT_EQ(endless.attention_qk, MatmulOrder::natural);
  const Reductions fused = preset("fused").reductions;
  EXPECT_EQ(without_sequence_end(fused), fused);
}

TEST(Numerics, ComputeInFp32RoundsNowhere) {
  Numerics n = preset("hf_eager");
  n.compute = DType::f32;
  for (int p = 0; p < int(Place::count); ++p) EXPECT_EQ(n.sites(0, 2, Place(p)), Sites{});
}

// Compiled Hugging Face models keep the stream after attention of the first block in FP32, and only there.
TEST(Numerics, ASiteHasAValuePerLayerAndPlace) {
  Numerics n = preset("hf_eager");
  for (Site s : {Site::resid_store, Site::resid_sum_to_var, Site::resid_sum_to_scale}) {
    n.overrides.push_back({.first_layer = 0, .last_layer = 0, .place = Place::post_attention_norm, .site = s, .rounded = false});
  }
  EXPECT_FALSE(n.sites(0, 4, Place::post_attention_norm).rounded(Site::resid_store));
  EXPECT_FALSE(n.sites(0, 4, Place::post_attention_norm).rounded(Site::resid_sum_to_var));
  EXPECT_TRUE(n.sites(0, 4, Place::post_attention_norm).rounded(Site::norm_xhat));
  EXPECT_TRUE(n.sites(0, 4, Place::input_norm).rounded(Site::resid_store));
  EXPECT_TRUE(n.sites(1, 4, Place::post_attention_norm).rounded(Site::resid_store));
  EXPECT_TRUE(n.sites(0, 4, Place::final_norm).rounded(Site::resid_store));
}

TEST(Numerics, NegativeLayersCountFromTheEndAndLaterOverridesWin) {
  Numerics n = preset("fused");
  n.overrides.push_back({.first_layer = -2, .last_layer = -1, .place = Place::block, .site = Site::swiglu_silu, .rounded = true});
  n.overrides.push_back({.first_layer = -1, .last_layer = -1, .place = Place::block, .site = Site::swiglu_silu, .rounded = false});
  EXPECT_FALSE(n.sites(1, 4, Place::block).rounded(Site::swiglu_silu));
  EXPECT_TRUE(n.sites(2, 4, Place::block).rounded(Site::swiglu_silu));
  EXPECT_FALSE(n.sites(3, 4, Place::block).rounded(Site::swiglu_silu));
  n.overrides.push_back({.first_layer = 7, .last_layer = 7, .place = Place::final_norm, .site = Site::norm_xhat, .rounded = true});
  EXPECT_TRUE(n.sites(0, 4, Place::final_norm).rounded(Site::norm_xhat));
}

TEST(Numerics, EveryFactChangesTheHash) {
  std::set<std::uint64_t> hashes;
  const auto add = [&](const Numerics& n) { return hashes.insert(n.hash()).second; };
  for (std::string_view name : preset_names()) EXPECT_TRUE(add(preset(name))) << name;
  const Numerics base = preset("fused");
  for (int i = 0; i < kSites; ++i) {
    Numerics n = base;
    n.base.set(Site(i), !n.base.rounded(Site(i)));
    EXPECT_TRUE(add(n)) << name_of(Site(i));
    EXPECT_FALSE(n == base);
  }
  const auto changed = [&](auto&& edit) {
    Numerics n = base;
    edit(n);
    return add(n) && !(n == base);
  };
  EXPECT_TRUE(changed([](Numerics& n) { n.overrides.push_back({.site = Site::norm_xhat, .rounded = true}); }));
  EXPECT_TRUE(changed([](Numerics& n) { n.compute = e8_dtype(6); }));
  EXPECT_TRUE(changed([](Numerics& n) { n.softmax = Softmax::normalised; }));
  EXPECT_TRUE(changed([](Numerics& n) { n.scale_at = ScaleAt::query; }));
  EXPECT_TRUE(changed([](Numerics& n) { n.reductions.attention_kv_tile = 256; }));
  EXPECT_TRUE(changed([](Numerics& n) { n.reductions.shards = 2; }));
  EXPECT_TRUE(changed([](Numerics& n) { n.backward.norm = BackwardMode::mirror; }));
  EXPECT_TRUE(changed([](Numerics& n) { n.backward.qk_norm = BackwardMode::mirror; }));
  EXPECT_TRUE(changed([](Numerics& n) { n.backward.rope = BackwardMode::mirror; }));
  EXPECT_TRUE(changed([](Numerics& n) { n.backward.attention = BackwardMode::mirror; }));
  EXPECT_TRUE(changed([](Numerics& n) { n.backward.swiglu = BackwardMode::mirror; }));
  EXPECT_TRUE(changed([](Numerics& n) { n.backward.linear = BackwardMode::mirror; }));
  EXPECT_TRUE(changed([](Numerics& n) { n.backward.embedding = BackwardMode::mirror; }));
  EXPECT_TRUE(changed([](Numerics& n) { n.backward.merged_qkv = false; }));
  EXPECT_TRUE(changed([](Numerics& n) { n.backward.merged_gate_up = false; }));
  Numerics renamed = base;
  renamed.preset = "mine";
  EXPECT_TRUE(renamed == base);
  EXPECT_EQ(renamed.hash(), base.hash());
}

TEST(SiteDispatch, ListedMasksTakeTheFixedPathAndOthersTheRunTimeOne) {
  constexpr Sites kRelevant = make_sites({Site::swiglu_silu, Site::swiglu_out});
  constexpr Sites kOut = make_sites({Site::swiglu_out});
  const auto path = [&](Sites s) {
    std::pair<bool, Sites> seen;
    with_masks<0u, kOut.mask>(s, kRelevant, [&](auto sites) {
      seen.first = std::is_same_v<decltype(sites), RunTimeSites>;
      seen.second.set(Site::swiglu_silu, sites.rounded(Site::swiglu_silu));
      seen.second.set(Site::swiglu_out, sites.rounded(Site::swiglu_out));
    });
    return seen;
  };
  EXPECT_EQ(path(Sites{}), std::pair(false, Sites{}));
  EXPECT_EQ(path(kFusedSites), std::pair(false, kOut));
  EXPECT_EQ(path(Sites{kFusedSites.mask | kRunTimeSites}), std::pair(true, kOut));
  EXPECT_EQ(path(kHfEagerSites), std::pair(true, kRelevant));
}

TEST(SiteDispatch, ARoundingStoreNeedsNoSite) {
  float memory[4] = {};
  const ConstMat f32 = make_const_mat(memory, 1, 4, DType::f32);
  const ConstMat bf16 = make_const_mat(memory, 1, 4, DType::bf16);
  EXPECT_EQ(stored_sites(kFusedSites, Site::norm_out, f32), kFusedSites);
  EXPECT_FALSE(stored_sites(kFusedSites, Site::norm_out, bf16).rounded(Site::norm_out));
  EXPECT_FALSE(stored_sites(kFusedSites, Site::resid_store, ConstMat{}).rounded(Site::resid_store));
}

}  // namespace
}  // namespace plumb
