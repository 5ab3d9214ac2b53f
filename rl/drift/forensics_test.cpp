#include "rl/drift/forensics.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/core/rng.h"
#include "model/files/files.h"
#include "rl/drift/drift_testing.h"
#include "rl/drift/mix.h"
#include "rl/drift/tokens.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;
using testing_drift::SmallCase;

constexpr Family kDecoders[] = {Family::qwen3, Family::qwen2, Family::llama};

Forensics explain(Evaluator& evaluator, const std::vector<float>& recorded, double quantum, const ForensicsOptions& options = {}) {
  return explain_recorded(evaluator, recorded, recording_tolerance(recorded, quantum, evaluator.model().config().vocab_size), options);
}

TEST(Forensics, NamesEveryPresetFromItsOwnLogProbs) {
  for (const Family family : kDecoders) {
    SmallCase small(family, 21);
    Evaluator evaluator = small.evaluator();
    for (const std::string_view name : usable_presets()) {
      std::vector<float> recorded = evaluator.of(preset(name)).logprob;
      for (float& x : recorded) x = std::round(x * 1e6f) / 1e6f;  // printed with six digits
      const Forensics f = explain(evaluator, recorded, 1e-6);
      EXPECT_EQ(f.verdict, Verdict::reproduced) << name << ": " << f.sentence;
      const Candidate& best = f.ranking.front();
      EXPECT_EQ(evaluator.of(best.numerics).bits, evaluator.of(preset(name)).bits) << name << ": " << f.sentence;
    }
  }
}

// A stack that no preset is: one site of one flipped. The record alone tells which.
TEST(Forensics, FindsAPlantedSite) {
  const std::vector<std::string_view> names = usable_presets();
  int found = 0;
  constexpr int kPlants = 12;
  for (std::uint64_t plant = 0; plant < kPlants; ++plant) {
    const RandomKey key{.seed = 5, .draw = std::uint32_t(plant)};
    SmallCase small(kDecoders[plant % 3], plant + 40);
    Evaluator evaluator = small.evaluator();
    Numerics planted = preset("fused");
    for (std::uint64_t i = 0; i == 0 || planted.compute == DType::f32; ++i) planted = preset(names[random_below(key, i, names.size())]);
    Site site = Site::norm_out;
    for (std::uint64_t i = 50; region_of(site) == Region::storage; ++i) site = Site(random_below(key, i, kSites));
    std::erase_if(planted.overrides, [&](const SiteOverride& o) { return o.site == site; });
    planted.base.set(site, !planted.base.rounded(site));
    const std::vector<float> recorded = evaluator.of(planted).logprob;
    const Forensics f = explain(evaluator, recorded, 0);
    const bool same = evaluator.of(f.ranking.front().numerics).bits == evaluator.of(planted).bits;
    found += same;
    if (!same) fmt::print("plant {}: {} of {} not found: {}\n", plant, name_of(site), planted.preset, f.sentence);
  }
  fmt::print("{} of {} plants found\n", found, kPlants);
  EXPECT_EQ(found, kPlants);
}

TEST(Forensics, SaysNoneWhenNothingFits) {
  SmallCase small(Family::qwen3, 30), other(Family::qwen3, 31);
  Evaluator evaluator = small.evaluator();
  // Other weights of the same shape, and noise of the size of a real mismatch.
  Evaluator wrong(other.model, evaluator.sequences(), 1.0f);
  EXPECT_EQ(explain(evaluator, wrong.of(preset("hf_eager")).logprob, 0).verdict, Verdict::none);
  std::vector<float> noisy = evaluator.of(preset("hf_eager")).logprob;
  for (std::size_t i = 0; i < noisy.size(); ++i) noisy[i] += float(0.01 * random_normal({.seed = 3}, i));
  const Forensics f = explain(evaluator, noisy, 0);
  EXPECT_EQ(f.verdict, Verdict::none) << f.sentence;
  EXPECT_NE(f.sentence.find("none of these"), std::string::npos);
}

TEST(Forensics, ReadsTheStepOfTheRecordedNumbers) {
  EXPECT_EQ(quantum_of({double(-1.2345678f), double(-0.1f)}), 0);
  EXPECT_EQ(quantum_of({-0.8818002, -0.0707557, -8.5091276}), 1e-7);
  EXPECT_EQ(quantum_of({-0.82, -0.071303, -7.591381}), 1e-6);
  EXPECT_EQ(quantum_of({-0.123456789012}), 0);
}

/// conformance/, or an empty path.
fs::path conformance() {
  const char* shared = std::getenv("PLUMB_SHARED");
  return shared == nullptr ? fs::path() : fs::path(shared) / "conformance";
}

struct Loaded {
  explicit Loaded(const fs::path& folder)
      : config(read_hf_config(folder)), model(ctx, config, load_hf_parameters(folder, ParameterList(config), config)) {}
  Context ctx{2};
  ModelConfig config;
  DriftModel model;
};

bool usable(const std::string& name) { return unsupported(preset(name)).empty(); }

void expect_named(Loaded& loaded, const DriftTokens& tokens, const std::string& want, const std::string& what) {
  Evaluator evaluator(loaded.model, tokens.sequences(), 1.0f);
  const Forensics f = explain(evaluator, tokens.recorded, tokens.quantum);
  fmt::print("{}: {}: {}\n", what, enum_name(f.verdict), f.sentence);
  EXPECT_EQ(f.named, want) << what;
}

TEST(SlowForensics, NamesTransformersModes) {
  if (conformance().empty()) GTEST_SKIP() << "PLUMB_SHARED is not set: no golden log-probs";
  for (int seed = 1; seed <= 3; ++seed) {
    for (const char* family : {"qwen3", "qwen2", "llama"}) {
      const fs::path folder = conformance() / "model_bf16" / std::to_string(seed) / family;
      Loaded loaded(folder);
      for (const auto& [mode, name] : {std::pair{"eager", "hf_eager"}, std::pair{"sdpa", "hf_sdpa"}, std::pair{"compiled", "hf_compiled"},
                                       std::pair{"autocast", "hf_autocast_fp32params"}, std::pair{"fp32", "fp32"}}) {
        if (!usable(name)) continue;
        const DriftTokens tokens = read_token_file(folder / "golden_bf16.safetensors", loaded.config, fmt::format("{}.logprobs", mode));
        expect_named(loaded, tokens, name, fmt::format("{} {} {}", seed, family, mode));
      }
    }
  }
}

/// The goldens of conformance/vllm: prompts and sampled continuations.
DriftTokens read_vllm(const fs::path& file) {
  const nlohmann::json json = read_json(file);
  DriftTokens out;
  const auto add = [&](std::vector<std::int32_t> prompt, const std::vector<std::int32_t>& response, const nlohmann::json& logprobs) {
    out.prompt_lens.push_back(std::int64_t(prompt.size()));
    prompt.insert(prompt.end(), response.begin(), response.end());
    out.ids.push_back(prompt);
    for (double x : logprobs) out.recorded.push_back(float(x));
  };
  for (const auto& p : json["prompt"]) {
    const auto ids = p["ids"].get<std::vector<std::int32_t>>();
    add({ids[0]}, {ids.begin() + 1, ids.end()}, p["logprobs"]);
  }
  for (const auto& s : json["sampled"]) add(s["prompt_ids"], s["ids"], s["logprobs"]);
  return out;
}

TEST(SlowForensics, NamesVllmsModes) {
  if (conformance().empty()) GTEST_SKIP() << "PLUMB_SHARED is not set: no golden log-probs";
  for (int set = 1; set <= 2; ++set) {
    for (const char* family : {"qwen3", "qwen2", "llama"}) {
      const fs::path folder = conformance() / "vllm" / std::to_string(set) / family;
      Loaded loaded(folder);
      for (const char* mode : {"eager", "compiled"}) {
        const std::string name = fmt::format("vllm_cpu_{}", mode);
        if (!usable(name)) continue;
        expect_named(loaded, read_vllm(folder / fmt::format("vllm_{}.json", mode)), name, fmt::format("{} {} {}", set, family, mode));
      }
    }
  }
}

}  // namespace
}  // namespace plumb
