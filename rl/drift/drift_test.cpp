#include "rl/drift/drift.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <map>

#include "kernels/core/error.h"
#include "kernels/core/rng.h"
#include "rl/drift/drift_testing.h"
#include "rl/drift/report.h"

namespace plumb {
namespace {

using testing_drift::SmallCase;

constexpr Family kFamilies[] = {Family::qwen3, Family::qwen2, Family::llama};

double sum_of(const DriftAttribution& a) {
  double sum = 0;
  for (const PlayerShare& s : a.shares.players) sum += s.shapley;
  return sum;
}

/// The player with the largest value that is not inert; "" when there is none.
std::string first_of(const DriftAttribution& a) {
  const PlayerShare* best = nullptr;
  std::string name;
  for (std::size_t i = 0; i < a.players.size(); ++i) {
    const PlayerShare& s = a.shares.players[i];
    if (s.inert || (best != nullptr && s.shapley <= best->shapley)) continue;
    best = &s;
    name = a.players[i].name;
  }
  return name;
}

// Every pair of presets: moving nothing computes A, moving everything computes B, whatever the players are.
TEST(NumericsMix, NothingMovedIsAAndEverythingMovedIsB) {
  for (const Family family : kFamilies) {
    SmallCase small(family, 1, {12});
    Evaluator evaluator = small.evaluator();
    for (const std::string_view name_a : usable_presets()) {
      for (const std::string_view name_b : usable_presets()) {
        const Numerics a = preset(name_a), b = preset(name_b);
        for (const PlayersBy by : {PlayersBy::regions, PlayersBy::sites, PlayersBy::layers}) {
          const NumericsMix mix(a, b, small.config, by);
          EXPECT_EQ(evaluator.of(mix.mix(0)).bits, evaluator.of(a).bits) << name_a << " " << name_b;
          EXPECT_EQ(evaluator.of(mix.mix(mix.everything())).bits, evaluator.of(b).bits) << name_a << " " << name_b << " " << enum_name(by);
        }
        if (name_a == name_b) {
          EXPECT_TRUE(forward_differences(a, b, small.config).empty()) << name_a;
        }
      }
    }
  }
}

// One site flipped in a random preset, everywhere or at one layer and place. It is the only thing that moves a bit, and it is named:
// among players that do nothing, by region, by layer, and by the place where the bits part.
TEST(Drift, ARandomPlantIsNamedFirstOrInert) {
  const std::vector<std::string_view> names = usable_presets();
  int inert = 0, named = 0;
  for (std::uint64_t plant = 0; plant < 100; ++plant) {
    const RandomKey key{.seed = 11, .draw = std::uint32_t(plant)};
    SmallCase small(kFamilies[random_below(key, 0, 3)], plant);
    Evaluator evaluator = small.evaluator();
    Numerics a = preset(names[random_below(key, 1, names.size())]);
    if (a.compute == DType::f32) a = preset("fused");
    Site site = Site::embedding;
    for (std::uint64_t i = 2; region_of(site) == Region::storage || i == 2; ++i) site = Site(random_below(key, i, kSites));
    Numerics b = a;
    b.preset = "planted";
    const bool in_layers = region_of(site) != Region::head && region_of(site) != Region::embedding;
    int layer = -1;
    if (in_layers && random_below(key, 100, 2) == 0) {
      layer = int(random_below(key, 101, std::uint64_t(small.config.layers)));
      const bool norm = region_of(site) == Region::resid_norm;
      const Place place = norm ? (random_below(key, 102, 2) == 0 ? Place::input_norm : Place::post_attention_norm) : Place::block;
      const bool now = a.sites(layer, small.config.layers, place).rounded(site);
      b.overrides.push_back({.first_layer = layer, .last_layer = layer, .place = place, .site = site, .rounded = !now});
    } else {
      std::erase_if(b.overrides, [&](const SiteOverride& o) { return o.site == site; });
      b.base.set(site, !a.base.rounded(site));
    }
    // Decoys: they differ and cannot matter here.
    b.backward.norm = BackwardMode::mirror;
    if (site != Site::logits_temperature) b.base.set(Site::logits_temperature, !b.base.rounded(Site::logits_temperature));
    if (!small.config.qk_norm && site != Site::qk_norm_out) b.base.set(Site::qk_norm_out, !b.base.rounded(Site::qk_norm_out));

    const DriftReport report = explain_drift(evaluator, a, b, nullptr, {.attribution = {.orders = 4}});
    const std::string what = fmt::format("plant {}: {} in {}, layer {}", plant, name_of(site), a.preset, layer);
    const bool moved = evaluator.of(a).bits != evaluator.of(b).bits;
    for (const DriftAttribution& d : report.attributions) {
      EXPECT_NEAR(sum_of(d), report.mismatch, 1e-12) << what;
      if (!moved) {
        EXPECT_EQ(first_of(d), "") << what;
      }
    }
    if (!moved) {
      ++inert;
      EXPECT_EQ(report.mismatch, 0) << what;
      continue;
    }
    ++named;
    EXPECT_EQ(first_of(report.attributions[0]), enum_name(region_of(site))) << what;
    EXPECT_EQ(first_of(report.attributions[1]), name_of(site)) << what;
    if (layer >= 0) {
      EXPECT_EQ(first_of(report.attributions[2]), fmt::format("layer {}", layer)) << what;
    }
    for (const PlaceCount& c : place_counts(report.stages)) {
      if (c.place.kind == FirstDifference::Kind::none || c.place.kind == FirstDifference::Kind::context) continue;
      EXPECT_NE(suspects(a, b, small.config, c.place).find(name_of(site)), std::string::npos) << what << ": " << place_text(c.place);
      if (layer >= 0) {
        EXPECT_GE(c.place.layer, layer) << what;
      }
    }
  }
  fmt::print("{} plants named, {} inert\n", named, inert);
  EXPECT_GE(named, 50);
}

TEST(Drift, TwoRealStacksSumReproduceAndSwap) {
  SmallCase small(Family::qwen3, 4);
  const Numerics a = preset("hf_eager"), b = preset("vllm_cpu_compiled");
  Evaluator evaluator = small.evaluator();
  const DriftReport report = explain_drift(evaluator, a, b, nullptr, {.attribution = {.exact_players = 6, .orders = 8, .seed = 1}});
  EXPECT_GT(report.mismatch, 0);
  for (const DriftAttribution& d : report.attributions) EXPECT_NEAR(sum_of(d), report.mismatch, 1e-12) << enum_name(d.by);
  EXPECT_TRUE(report.attributions[0].shares.exact);
  EXPECT_FALSE(report.attributions[1].shares.exact);

  // Another evaluator, other threads: the same text.
  SmallCase again(Family::qwen3, 4);
  Context two(2);
  DriftModel model(two, again.config, testing_model::lively_parameters(again.config, 4));
  Evaluator other(model, again.evaluator().sequences(), 1.0f);
  const DriftReport twice = explain_drift(other, a, b, nullptr, {.attribution = {.exact_players = 6, .orders = 8, .seed = 1}});
  EXPECT_EQ(drift_json(twice, again.config).dump(), drift_json(report, small.config).dump());
  EXPECT_EQ(drift_html(twice, again.config), drift_html(report, small.config));

  const DriftReport swapped = explain_drift(evaluator, b, a, nullptr, {.attribute_by = {}});
  EXPECT_EQ(swapped.mismatch, report.mismatch);
  EXPECT_EQ(swapped.distribution.mean, -report.distribution.mean);
}

TEST(Drift, EqualNumericsShowNothing) {
  SmallCase small(Family::llama, 5);
  Evaluator evaluator = small.evaluator();
  const DriftReport report = explain_drift(evaluator, preset("hf_eager"), preset("hf_eager"), nullptr, {});
  EXPECT_EQ(report.mismatch, 0);
  EXPECT_EQ(report.distribution.equal_share, 1);
  EXPECT_EQ(report.distribution.histogram[0], report.tokens);
  for (const DriftAttribution& d : report.attributions) EXPECT_TRUE(d.players.empty());
  const std::vector<PlaceCount> places = place_counts(report.stages);
  ASSERT_EQ(places.size(), 1u);
  EXPECT_EQ(places[0].place.kind, FirstDifference::Kind::none);
  EXPECT_NE(drift_html(report, small.config).find("</html>"), std::string::npos);
}

// Against a record, what B leaves is told apart from what the players explain.
TEST(Drift, AgainstARecordExplainedAndUnexplainedSumToTheMismatch) {
  SmallCase small(Family::qwen2, 6);
  Evaluator evaluator = small.evaluator();
  Record record{.logprob = evaluator.of(preset("vllm_cpu_compiled")).logprob};
  for (float& x : record.logprob) x = std::min(0.0f, x + 0.25f * float(&x == &record.logprob[3]));  // one token that nothing explains
  record.tolerance.assign(record.logprob.size(), 1e-6f);
  const DriftReport report = explain_drift(evaluator, preset("hf_eager"), preset("vllm_cpu_compiled"), &record, {});
  EXPECT_GT(report.unexplained, 0);
  for (const DriftAttribution& d : report.attributions) EXPECT_NEAR(sum_of(d) + report.unexplained, report.mismatch, 1e-12);
}

// Sequences that are all alike leave no doubt about a part; different ones do, and the interval holds what each half of them says.
TEST(Drift, ThePartsHaveIntervalsOverTheSequences) {
  SmallCase small(Family::qwen3, 12, {9, 9, 9, 9, 9, 9, 9, 9});
  const auto parts_of = [&](const std::vector<TrainSequence>& sequences) {
    Evaluator evaluator(small.model, sequences, 1.0f);
    return explain_drift(evaluator, preset("hf_eager"), preset("vllm_cpu_compiled"), nullptr, {.attribute_by = {PlayersBy::regions}})
        .attributions[0];
  };
  const std::vector<TrainSequence> different = small.evaluator().sequences();
  const DriftAttribution alike = parts_of(std::vector<TrainSequence>(8, different[0]));
  ASSERT_EQ(alike.part_intervals.size(), alike.players.size());
  for (std::size_t i = 0; i < alike.players.size(); ++i) {
    EXPECT_NEAR(alike.part_intervals[i].low, alike.part(i), 1e-12) << alike.players[i].name;
    EXPECT_NEAR(alike.part_intervals[i].high, alike.part(i), 1e-12) << alike.players[i].name;
  }
  const DriftAttribution all = parts_of(different);
  const DriftAttribution half = parts_of({different.begin(), different.begin() + 4});
  int moved = 0;
  for (std::size_t i = 0; i < all.players.size(); ++i) {
    if (all.shares.players[i].inert) continue;
    ++moved;
    EXPECT_LT(all.part_intervals[i].low, all.part_intervals[i].high) << all.players[i].name;
    EXPECT_LE(half.part_intervals[i].low, all.part(i)) << all.players[i].name;
    EXPECT_GE(half.part_intervals[i].high, all.part(i)) << all.players[i].name;
  }
  EXPECT_GE(moved, 3);
  EXPECT_TRUE(parts_of({different.begin(), different.begin() + 3}).part_intervals.empty());
}

TEST(Drift, EveryMetricCanBeAttributed) {
  SmallCase small(Family::llama, 8, {10, 7});
  Evaluator evaluator = small.evaluator();
  for (const std::string& metric : drift_metrics()) {
    const DriftReport r =
        explain_drift(evaluator, preset("hf_eager"), preset("fused"), nullptr, {.metric = metric, .attribute_by = {PlayersBy::regions}});
    const double gone =
        explain_drift(evaluator, preset("fused"), preset("fused"), nullptr, {.metric = metric, .attribute_by = {}}).mismatch;
    if (metric != "ppl_train" && metric != "ppl_rollout") {
      EXPECT_NEAR(sum_of(r.attributions[0]), r.mismatch - gone, 1e-9) << metric;
    }
  }
  EXPECT_THROW(explain_drift(evaluator, preset("fused"), preset("hf_eager"), nullptr, {.metric = "abs_logp_dif_mean"}), UsageError);
}

// Four layers and 4,096 tokens, two real stacks, every split: seconds, and a progress that counts to the end.
TEST(SlowDrift4Layers, FourThousandTokensTakeSecondsAndShowProgress) {
  ModelConfig config = testing_model::small_config(Family::qwen3, false);
  config.layers = 4;
  config.max_positions = 256;
  Context ctx(2);
  DriftModel model(ctx, config, testing_model::lively_parameters(config, 3));
  const std::vector<int> lengths(32, 129);
  const auto ids = testing_model::random_sequences(config, lengths, 3);
  std::vector<TrainSequence> sequences;
  for (const auto& s : ids) sequences.push_back({.tokens = s, .prompt_len = 1});
  Evaluator evaluator(model, sequences, 1.0f);
  ASSERT_EQ(evaluator.tokens(), 4096);
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> seen;
  const auto start = std::chrono::steady_clock::now();
  const DriftReport report = explain_drift(evaluator, preset("hf_eager"), preset("vllm_cpu_compiled"), nullptr, {},
                                           [&](const char* what, std::int64_t done, std::int64_t total) {
                                             EXPECT_EQ(done, seen[what].first + 1) << what;
                                             EXPECT_LE(done, total) << what;
                                             seen[what] = {done, total};
                                           });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("{} evaluations of 4096 tokens in 4 layers of width {}: {:.1f} s\n", evaluator.computed(), config.hidden_size, seconds);
  EXPECT_LT(seconds, 60);
  ASSERT_EQ(seen.size(), 3u);
  for (const DriftAttribution& d : report.attributions) {
    EXPECT_EQ(seen[enum_name(d.by)].first, d.shares.coalitions) << enum_name(d.by);
    EXPECT_NEAR(sum_of(d), report.mismatch, 1e-12) << enum_name(d.by);
  }
}

TEST(Drift, StopsWhenAsked) {
  SmallCase small(Family::llama, 9);
  int left = 3;
  Evaluator evaluator(small.model, small.evaluator().sequences(), 1.0f, [&] { return left-- > 0; });
  EXPECT_THROW(explain_drift(evaluator, preset("fused"), preset("hf_eager"), nullptr, {}), DriftInterrupted);
}

TEST(Distribution, IsWhatItSays) {
  const std::vector<float> a = {-1, -1, -2, -3}, b = {-1, -1.5f, -2.25f, -2};
  const Distribution d = describe_difference(a, b, bit_equal(a, b));
  EXPECT_EQ(d.equal_share, 0.25);
  EXPECT_DOUBLE_EQ(d.mean_abs, (0.5 + 0.25 + 1) / 4);
  EXPECT_DOUBLE_EQ(d.mean, (-0.5 - 0.25 + 1) / 4);
  EXPECT_EQ(d.max_abs, 1);
  EXPECT_EQ(d.quantiles[0], (std::pair{0.5, 0.25}));
  EXPECT_EQ(d.quantiles[3].second, 1);
  EXPECT_EQ(d.histogram[0], 1);
  std::int64_t all = 0, by = 0;
  for (auto n : d.histogram) all += n;
  for (const auto& x : d.by_probability) by += x.tokens;
  EXPECT_EQ(all, 4);
  EXPECT_EQ(by, 4);
}

}  // namespace
}  // namespace plumb
