#include "engine/config/numerics_section.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "engine/config/config.h"
#include "engine/config/numerics_facts.h"
#include "engine/config/sections.h"
#include "kernels/core/error.h"
#include "kernels/numerics/presets.h"
#include "tests/paths.h"

namespace plumb {

struct NumericsRun {
  NumericsSection numerics;
};
template <class V>
void visit(V& v, NumericsRun& c) {
  v.section("numerics", c.numerics, "which bits");
}

namespace {

using testing::AllOf;
using testing::HasSubstr;

NumericsRun numerics_of(const std::string& yaml, const std::vector<std::string>& sets = {}) {
  return parse_config<NumericsRun>(yaml, "f.yaml", sets);
}
Numerics side(const NumericsRun& r, NumericsSide s, std::int64_t step = 0) { return resolve_numerics(r.numerics, s, step); }
Numerics update(const std::string& yaml, const std::vector<std::string>& sets = {}) {
  return side(numerics_of(yaml, sets), NumericsSide::update);
}

std::string refusal_of(const std::string& yaml, const std::vector<std::string>& sets = {}) {
  try {
    validate(numerics_of(yaml, sets).numerics);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(NumericsSection, SidesFollowEachOther) {
  const NumericsRun none = numerics_of("{}");
  for (int s = 0; s < kNumericsSides; ++s) EXPECT_TRUE(side(none, NumericsSide(s)) == preset("fused"));
  const NumericsRun one = numerics_of("numerics: {rollout: hf_eager}\n");
  for (int s = 0; s < kNumericsSides; ++s) EXPECT_TRUE(side(one, NumericsSide(s)) == preset("hf_eager"));
  const NumericsRun two = numerics_of("numerics: {rollout: hf_eager, update: fp32, critic: fused}\n");
  EXPECT_TRUE(side(two, NumericsSide::reference) == preset("fp32"));
  EXPECT_TRUE(side(two, NumericsSide::critic) == preset("fused"));
}

TEST(NumericsSection, EveryWayToNameAPreset) {
  for (const std::vector<std::string>& sets : {std::vector<std::string>{"numerics.update=hf_eager"},
                                               {"numerics.update.preset=hf_eager"},
                                               {"numerics.update={preset: hf_eager}"},
                                               {"numerics={update: hf_eager}"},
                                               {"numerics.update.rope.products=f", "numerics.update=hf_eager"}}) {
    EXPECT_TRUE(update("{}", sets) == preset("hf_eager")) << sets[0];
  }
}

TEST(NumericsSection, EveryWayToMoveASite) {
  Numerics want = preset("hf_eager");
  want.base.set(Site::rope_products, false);
  for (const char* text :
       {"numerics: {update: {preset: hf_eager, rope.products: f}}\n", "numerics: {update: {preset: hf_eager, rope: {products: f}}}\n"})
    EXPECT_TRUE(update(text) == want) << text;
  EXPECT_TRUE(update("numerics: {update: hf_eager}\n", {"numerics.update.rope.products=f"}) == want);
  EXPECT_TRUE(update("numerics: {update: {rope.products: f}}\n", {"numerics.update.preset=hf_eager"}) == want);
  EXPECT_TRUE(update("numerics: {update: {preset: hf_eager, rope.products: b}}\n", {"numerics.update.rope.products=f"}) == want);
}

TEST(NumericsSection, LayersAndPlaces) {
  const Numerics n = update(
      "numerics:\n  update:\n    preset: hf_eager\n    layers:\n      0: {post_attention_norm: {resid.store: f}, swiglu.silu: f}\n"
      "      2-3: {norm.xhat: f}\n      last: {block: {rope.products: f}}\n    final_norm: {norm.xhat: f}\n");
  const auto rounded = [&](int layer, Place place, Site site) { return n.sites(layer, 6, place).rounded(site); };
  EXPECT_FALSE(rounded(0, Place::post_attention_norm, Site::resid_store));
  EXPECT_TRUE(rounded(0, Place::input_norm, Site::resid_store));
  EXPECT_FALSE(rounded(0, Place::block, Site::swiglu_silu));
  EXPECT_TRUE(rounded(1, Place::block, Site::swiglu_silu));
  for (Place p : {Place::input_norm, Place::post_attention_norm}) {
    EXPECT_TRUE(rounded(1, p, Site::norm_xhat));
    EXPECT_FALSE(rounded(2, p, Site::norm_xhat));
    EXPECT_FALSE(rounded(3, p, Site::norm_xhat));
    EXPECT_TRUE(rounded(4, p, Site::norm_xhat));
  }
  EXPECT_FALSE(rounded(5, Place::block, Site::rope_products));
  EXPECT_FALSE(rounded(0, Place::final_norm, Site::norm_xhat));
  // The same from the command line, and a site given without a layer is meant everywhere.
  EXPECT_TRUE(update("numerics: {update: hf_eager}\n", {"numerics.update.layers.0.post_attention_norm.resid.store=f"}) ==
              update("numerics: {update: {preset: hf_eager, layers: {first: {post_attention_norm: {resid: {store: f}}}}}}\n"));
  EXPECT_TRUE(update("numerics: {update: hf_compiled}\n",
                     {"numerics.update.resid.store=b", "numerics.update.resid.sum_to_var=b", "numerics.update.resid.sum_to_scale=b"})
                  .overrides.empty());
}

TEST(NumericsSection, TheOtherFacts) {
  Numerics want = preset("fused");
  want.softmax = Softmax::normalised;
  want.scale_at = ScaleAt::query;
  want.backward.norm = BackwardMode::mirror;
  want.backward.merged_qkv = false;
  want.reductions.matmul = MatmulOrder::chains_4;
  want.reductions.attention_kv_tile = 128;
  want.base.set(Site::lm_head_logits, true);
  want.base.set(Site::logits_temperature, true);
  EXPECT_TRUE(
      update("numerics: {update: {preset: fused, softmax: normalised, scale_at: query, backward: {norm: mirror}, merged_qkv: false, "
             "reductions: {matmul: chains_4, attention_kv_tile: 128}, head: bf16}}\n") == want);
  EXPECT_EQ(update("{}", {"numerics.update.backward=mirror"}).backward.rope, BackwardMode::mirror);
  EXPECT_EQ(update("{}", {"numerics.update.backward=mirror", "numerics.update.backward.swiglu=liger"}).backward.swiglu,
            BackwardMode::fused);
  EXPECT_EQ(update("{}", {"numerics.update.reductions.matmul=natural"}).reductions.matmul, MatmulOrder::natural);
  EXPECT_EQ(update("{}", {"numerics.update.compute=fp32"}).compute, DType::f32);
  EXPECT_EQ(update("{}", {"numerics.update.mantissa_bits=5"}).compute, e8_dtype(5));
  EXPECT_EQ(update("{}", {"numerics.update.mantissa_bits=7"}).compute, DType::bf16);
  EXPECT_EQ(update("{}", {"numerics.update.compute=fp16"}).compute, DType::f16);
  EXPECT_EQ(update("{}", {"numerics.update.compute=e8m12"}).compute, e8_dtype(12));
  EXPECT_EQ(update("numerics: {update: {mantissa_bits: 5, compute: bf16}}\n").compute, e8_dtype(5));
  EXPECT_EQ(update("numerics: {update: {mantissa_bits: 5}}\n", {"numerics.update.compute=bf16"}).compute, e8_dtype(5));
  EXPECT_TRUE(update("numerics: {update: {preset: fused, head: fp16, compute: fp16}}\n").base.rounded(Site::lm_head_logits));
}

TEST(NumericsSection, AlignCopiesAGroupFromTheOtherSide) {
  const std::string pair = "numerics: {rollout: vllm_cpu_compiled, update: {preset: hf_eager, align: [rope]}}\n";
  const Numerics n = update(pair);
  const Numerics rollout = preset("vllm_cpu_compiled");
  for (int i = 0; i < kSites; ++i) {
    const bool taken = sites_of(AlignGroup::rope).rounded(Site(i));
    EXPECT_EQ(n.base.rounded(Site(i)), (taken ? rollout : preset("hf_eager")).base.rounded(Site(i))) << name_of(Site(i));
  }
  EXPECT_EQ(n.backward.rope, BackwardMode::fused);
  EXPECT_EQ(n.backward.norm, BackwardMode::mirror);
  EXPECT_EQ(update(pair, {"numerics.update.backward.rope=mirror"}).backward.rope, BackwardMode::mirror);
  EXPECT_TRUE(update(pair, {"numerics.update.rope.products=b"}).base.rounded(Site::rope_products));
  // Overrides by layer come along, and the rollout side may align as well.
  const NumericsRun back = numerics_of("numerics: {rollout: {preset: fused, align: [resid_norm]}, update: hf_compiled}\n");
  EXPECT_FALSE(side(back, NumericsSide::rollout).sites(0, 4, Place::post_attention_norm).rounded(Site::resid_store));
  EXPECT_TRUE(side(back, NumericsSide::rollout).sites(1, 4, Place::post_attention_norm).rounded(Site::resid_store));
  EXPECT_FALSE(side(back, NumericsSide::rollout).base.rounded(Site::rope_products));
  EXPECT_TRUE(side(numerics_of("numerics: {rollout: fused, update: hf_eager, reference: {preset: fused, align: [all], anchor: update}}\n"),
                   NumericsSide::reference)
                  .base == preset("hf_eager").base);
}

TEST(NumericsSection, ReductionsAreAGroupOfTheirOwn) {
  const Numerics n = update(
      "numerics: {rollout: {preset: vllm_cpu_compiled, reductions: {shards: 4}}, update: {preset: hf_eager, align: [reductions]}}\n");
  Numerics want = preset("hf_eager");
  want.reductions = preset("vllm_cpu_compiled").reductions;
  want.preset = n.preset;
  EXPECT_TRUE(n == want) << n.describe();
}

TEST(NumericsSection, AllAlignedIsTheOtherSideButForReductionsAndBackward) {
  for (const Preset& a : presets()) {
    for (const Preset& b : presets()) {
      if (a.numerics.compute != b.numerics.compute) continue;
      Numerics n = b.numerics;
      align(n, a.numerics, AlignGroup::all);
      n.backward = a.numerics.backward;
      n.reductions = a.numerics.reductions;
      EXPECT_TRUE(n == a.numerics) << a.name << " " << b.name;
    }
  }
}

TEST(NumericsSection, AScheduleDependsOnTheStepAlone) {
  const NumericsRun r = numerics_of(
      "numerics:\n  rollout: vllm_cpu_compiled\n  update: hf_eager\n  schedule:\n    - {step: 200, side: update, align: [rope]}\n"
      "    - {step: 300, side: update, align: []}\n    - {step: 300, side: rollout, align: [swiglu]}\n");
  EXPECT_EQ(numerics_steps(r.numerics), (std::vector<std::int64_t>{0, 200, 300}));
  EXPECT_TRUE(side(r, NumericsSide::update, 199) == preset("hf_eager"));
  for (std::int64_t step : {200, 299}) EXPECT_FALSE(side(r, NumericsSide::update, step).base.rounded(Site::rope_products));
  EXPECT_TRUE(side(r, NumericsSide::update, 300) == preset("hf_eager"));
  EXPECT_TRUE(side(r, NumericsSide::reference, 250) == side(r, NumericsSide::update, 250));
  EXPECT_TRUE(side(r, NumericsSide::rollout, 300).base.rounded(Site::swiglu_silu));
  EXPECT_FALSE(side(r, NumericsSide::rollout, 299).base.rounded(Site::swiglu_silu));
}

TEST(NumericsSection, MistakesNamePlaceKeyAndWhatWouldBeRight) {
  const std::pair<std::string, std::vector<const char*>> cases[] = {
      {"numerics:\n  update: hf_eagr\n", {"f.yaml:2: numerics.update:", "did you mean 'hf_eager'?"}},
      {"numerics:\n  update:\n    preset: hf_eagr\n", {"f.yaml:3: numerics.update.preset:", "did you mean 'hf_eager'?"}},
      {"numerics:\n  update:\n    rope.product: f\n", {"f.yaml:3: numerics.update:", "'rope.product'", "did you mean 'rope.products'?"}},
      {"numerics:\n  update:\n    rope:\n      product: f\n", {"f.yaml:4: numerics.update:", "did you mean 'rope.products'?"}},
      {"numerics:\n  update:\n    rope.products: x\n", {"f.yaml:3: numerics.update: rope.products: found 'x'; f or b is right"}},
      {"numerics:\n  update:\n    sofmax: flash\n", {"f.yaml:3:", "did you mean 'softmax'?"}},
      {"numerics:\n  update:\n    align: [rop]\n", {"f.yaml:3: numerics.update.align:", "did you mean 'rope'?"}},
      {"numerics:\n  update:\n    layers: {2-: {swiglu.silu: f}}\n", {"f.yaml:3:", "'2-' names no layers"}},
      {"numerics:\n  update:\n    layers: {0: {block: {norm.xhat: f}}}\n", {"norm.xhat has no value at block", "post_attention_norm"}},
      {"numerics:\n  update:\n    layers: {0: {lm_head.logits: f}}\n", {"lm_head.logits belongs to no layer"}},
      {"numerics:\n  update:\n    reductions: {matmull: natural}\n", {"did you mean 'matmul'?"}},
      {"numerics:\n  update:\n    compute: fp8\n", {"f.yaml:3:", "compute: found 'fp8'", "e8mN", "did you mean 'fp16'?"}},
      {"numerics:\n  update:\n    compute: e8m24\n", {"f.yaml:3:", "compute: found 'e8m24'"}},
      {"numerics:\n  update:\n    mantissa_bits: 0\n", {"f.yaml:3:", "mantissa_bits is 0; 1 to 23 is right"}},
      {"numerics:\n  update:\n    mantissa_bits: 24\n", {"f.yaml:3:", "mantissa_bits is 24; 1 to 23 is right"}},
      {"numerics:\n  update:\n    mantissa_bits: x\n", {"f.yaml:3:", "a whole number"}},
      {"numerics: {update: {compute: fp16, mantissa_bits: 5}}\n", {"mantissa_bits 5 with compute fp16"}},
      {"numerics: {update: {head: fp16}}\n", {"head: found 'fp16'; bf16 or fp32 is right"}},
      {"numerics: {update: {mantissa_bits: 5, head: bf16}}\n", {"head: found 'bf16'; e8m5 or fp32 is right"}},
      {"numerics: {update: {anchor: update}}\n", {"anchor is the side itself"}},
      {"numerics: {rollout: {align: [rope]}}\n", {"lead back to each other"}},
      {"numerics: {update: {align: [rope]}, rollout: {align: [rope]}}\n", {"lead back to each other"}},
      {"numerics: {schedule: [{step: 0, side: update, align: []}]}\n", {"numerics.schedule.step is 0; at least 1"}},
      {"numerics: {schedule: [{step: 1, side: updat, align: []}]}\n", {"did you mean 'update'?"}},
      {"numerics: {schedule: [{step: 1, align: []}]}\n", {"has no side"}},
      {"numerics: {update: {rope.out: f}}\n", {"no kernel does this yet: rope.out f"}}};
  for (const auto& [yaml, says] : cases) {
    for (const char* what : says) EXPECT_THAT(refusal_of(yaml), HasSubstr(what)) << yaml;
  }
  EXPECT_THAT(refusal_of("{}", {"numerics.update.rope.product=f"}),
              AllOf(HasSubstr("--set numerics.update.rope.product"), HasSubstr("'rope.products'")));
  EXPECT_EQ(refusal_of("numerics: {rollout: fused, update: {preset: hf_eager, align: [all]}}\n"), "no error");
}

TEST(NumericsSection, ThePrintOutShowsBothSidesAndLoadsBack) {
  const NumericsRun r = numerics_of(
      "numerics:\n  rollout: vllm_cpu_compiled\n  update: {preset: hf_compiled, align: [rope], rope: {products: b}, layers: {2-4: "
      "{swiglu.silu: b}}}\n"
      "  critic: {anchor: update, align: [swiglu], preset: fused}\n  schedule: [{step: 5, side: update, align: [all]}]\n",
      {"numerics.update.layers.2-4.swiglu.silu=f", "numerics.update.reductions.matmul=natural"});
  const std::string text = print_config(r);
  EXPECT_THAT(text, AllOf(HasSubstr("preset: vllm_cpu_compiled"), HasSubstr("inert: "), HasSubstr("hash "), HasSubstr("# as update")));
  const NumericsRun again = parse_config<NumericsRun>(text, "printed");
  EXPECT_EQ(print_config(again), text);
  EXPECT_EQ(config_hash(again), config_hash(r));
  EXPECT_TRUE(differing_keys(again, r).empty());
  for (int s = 0; s < kNumericsSides; ++s) {
    for (std::int64_t step : {0, 5}) EXPECT_TRUE(side(again, NumericsSide(s), step) == side(r, NumericsSide(s), step)) << s << " " << step;
  }
}

TEST(NumericsSection, TheHashIsOverWhatIsComputed) {
  const auto hash = [](const std::string& yaml) { return config_hash(numerics_of(yaml)); };
  EXPECT_EQ(hash("numerics: {rollout: hf_eager}\n"), hash("numerics: {rollout: hf_eager, update: hf_eager}\n"));
  EXPECT_EQ(hash("{}"), hash("numerics: {update: {rope.products: f}}\n"));
  EXPECT_NE(hash("{}"), hash("numerics: {update: {rope.products: b}}\n"));
  EXPECT_NE(hash("{}"), hash("numerics: {update: {layers: {0: {swiglu.silu: b}}}}\n"));
  EXPECT_NE(hash("numerics: {update: hf_eager}\n"),
            hash("numerics: {update: hf_eager, schedule: [{step: 1, side: update, align: [rope]}]}\n"));
  // They look alike until step 5 takes the alignment away.
  EXPECT_NE(
      hash("numerics: {update: {preset: hf_eager, align: [rope]}, schedule: [{step: 5, side: update, align: []}]}\n"),
      hash("numerics: {update: {preset: hf_eager, rope.products: f, rope.cos_sin_table: f, rope.rotated: f, backward: {rope: fused}}, "
           "schedule: [{step: 5, side: update, align: []}]}\n"));
  const auto differences = differing_keys(numerics_of("{}"), numerics_of("numerics: {update: {rope.products: b}}\n"));
  ASSERT_EQ(differences.size(), 3u);  // reference and critic follow
  EXPECT_EQ(differences[0].key, "numerics.update.rope.products");
}

/// The cells of a line of a Markdown table, without blanks and marks.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  for (std::size_t begin = 1; begin < line.size();) {
    const auto end = std::min(line.find('|', begin), line.size());
    std::string cell;
    for (const char c : line.substr(begin, end - begin)) {
      if (c != ' ' && c != '*' && c != '`') cell += c;
    }
    cells.push_back(cell);
    begin = end + 1;
  }
  return cells;
}

TEST(NumericsSection, TheDocumentedTableIsWhatIsCompiledIn) {
  std::ifstream file(std::string(test::source_dir) + "/docs/numerics.md");
  std::vector<std::string> names;
  int rows = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("| site | fused")) names = cells_of(line);
    if (names.empty() || !line.starts_with("| `")) continue;
    const auto cells = cells_of(line);
    if (cells.size() != names.size()) continue;
    ++rows;
    for (std::size_t i = 1; i < names.size(); ++i) {
      const auto facts = numerics_facts(preset(names[i]));
      const auto fact = std::find_if(facts.begin(), facts.end(), [&](const auto& f) { return f.first == cells[0]; });
      ASSERT_NE(fact, facts.end()) << cells[0];
      EXPECT_EQ(fact->second, cells[i]) << names[i] << " " << cells[0];
    }
  }
  EXPECT_EQ(rows, kSites + 2);
}

}  // namespace
}  // namespace plumb
