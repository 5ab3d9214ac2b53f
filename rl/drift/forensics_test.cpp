#include "rl/drift/forensics.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/core/rng.h"
#include "kernels/numerics/fields.h"
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

// A right preset of a deep model that flips now and then: half of the answers are equal from end to end, the others part at a token and
// stay apart. Fewer than half of the tokens are equal, and still it is named; the same number of tokens equal here and there is not enough.
TEST(Forensics, WholeSequencesNameAPresetThatLosesHalfOfTheTokens) {
  SmallCase small(Family::llama, 33, {12, 14, 11, 13, 12, 15, 13, 12, 14, 13});
  Evaluator evaluator = small.evaluator();
  const std::vector<float> exact = evaluator.of(preset("hf_eager")).logprob;
  std::vector<float> runs = exact, scattered = exact;
  std::size_t at = 0;
  for (std::size_t s = 0; s < evaluator.sequences().size(); ++s) {
    for (std::int64_t t = 0; t < evaluator.sequences()[s].response_len(); ++t, ++at) {
      const float moved = exact[at] - float(0.01 + 0.01 * std::abs(random_normal({.seed = 4}, at)));
      if (s % 3 != 0 || s == 9) runs[at] = moved;
      if (at % 3 != 0) scattered[at] = moved;
    }
  }
  const Forensics whole = explain(evaluator, runs, 0, {.refine = false});
  EXPECT_LT(whole.ranking.front().equal_share(), 0.4);
  EXPECT_EQ(whole.ranking.front().equal_sequences, 3);
  EXPECT_EQ(whole.verdict, Verdict::named) << whole.sentence;
  EXPECT_NE(whole.sentence.find("3 of 10 sequences from end to end"), std::string::npos) << whole.sentence;
  const Forensics here_and_there = explain(evaluator, scattered, 0, {.refine = false});
  EXPECT_GT(here_and_there.ranking.front().equal_share(), 0.3);
  EXPECT_EQ(here_and_there.verdict, Verdict::none) << here_and_there.sentence;
}

// Facts that move no bit are told apart from those that the record proves; what is proven is what the preset says.
TEST(Forensics, SaysOfEachFactWhatTheRecordProves) {
  SmallCase small(Family::llama, 34, {30, 30});
  Evaluator evaluator = small.evaluator();
  const Numerics& eager = preset("hf_eager");
  const Forensics f = explain(evaluator, evaluator.of(eager).logprob, 0);
  ASSERT_EQ(f.verdict, Verdict::reproduced);
  int proven = 0, silent = 0;
  for (const FactEvidence& e : f.facts) {
    EXPECT_EQ(e.equal, e.tokens) << e.fact;
    if (e.same_bits) {
      ++silent;
      EXPECT_EQ(e.nats, 0) << e.fact;
      continue;
    }
    proven += e.nats > 10;
    EXPECT_LT(e.equal_instead, e.tokens) << e.fact;
  }
  EXPECT_GE(proven, 8);
  EXPECT_GE(silent, 1);
  const auto of = [&](const std::string& fact) {
    return std::find_if(f.facts.begin(), f.facts.end(), [&](const FactEvidence& e) { return e.fact == fact; });
  };
  ASSERT_NE(of("rope.products"), f.facts.end());
  EXPECT_EQ(of("rope.products")->value, "b");
  EXPECT_EQ(of("rope.products")->instead, "f");
  ASSERT_NE(of("reductions.matmul"), f.facts.end());
  EXPECT_EQ(of("reductions.matmul")->value, value_text(eager.reductions.matmul));
  EXPECT_TRUE(of("embedding")->same_bits);
  EXPECT_EQ(of("qk_norm.out"), f.facts.end());  // the model has none
}

// Real rollouts of a 30-layer model: what vLLM reported of them, and what transformers computed for the same tokens.
TEST(SlowForensicsConformance, NamesBothStacksOfRealRollouts) {
  const char* const where = std::getenv("PLUMB_SMOLLM2");
  if (conformance().empty() || where == nullptr) GTEST_SKIP() << "PLUMB_SHARED or PLUMB_SMOLLM2 is not set: no real rollouts";
  Loaded loaded(where);
  struct Column {
    const char* file;
    const char* key;
    const char* name;
    std::int64_t tokens;
    bool facts;
  };
  for (const Column& c :
       {Column{"smollm2_eager", "logprobs", "vllm_cpu_eager", 64, true}, Column{"smollm2_eager", "trainer_hf_eager", "hf_eager", 64, false},
        Column{"smollm2_compiled", "logprobs", "vllm_cpu_compiled", 256, false}}) {
    const DriftTokens tokens = read_recorded(conformance() / "vllm" / fmt::format("{}.jsonl", c.file), loaded.config, c.key);
    Evaluator evaluator(loaded.model, tokens.sequences(c.tokens), 1.0f);
    const std::vector<float> recorded(tokens.recorded.begin(), tokens.recorded.begin() + c.tokens);
    const Forensics f = explain(evaluator, recorded, tokens.quantum, {.refine = false, .facts = c.facts});
    fmt::print("{} {}: {}: {}\n", c.file, c.key, enum_name(f.verdict), f.sentence);
    EXPECT_EQ(f.named, c.name) << c.file << " " << c.key;
    for (const FactEvidence& e : f.facts) {
      EXPECT_TRUE(e.same_bits || e.nats > 100) << e.fact << " " << e.value << ": " << e.nats << " nats";
    }
  }
}

}  // namespace
}  // namespace plumb
