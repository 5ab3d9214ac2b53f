// Trained models: the text that others got from them is the text that we get. stories260K (PLUMB_SHARED) and a real 135M
// instruct model (PLUMB_SMOLLM2); skipped, visibly, without them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/sampler/sampler.h"
#include "engine/trainer/scorer.h"
#include "engine/trainer/trainer.h"
#include "model/tokenizer/tokenizer.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;

/// A model folder with its weights in the preset's compute dtype.
struct LoadedModel {
  LoadedModel(Context& ctx, const fs::path& folder, const std::string& preset_name)
      : config(read_hf_config(folder)), numerics(preset(preset_name)), weights(config, numerics.compute) {
    set_weights(ctx, weights, load_hf_parameters(folder, weights.parameters(), config));
  }
  ModelConfig config;
  Numerics numerics;
  Weights weights;
};

std::vector<std::int32_t> greedy(Context& ctx, const LoadedModel& m, const std::vector<std::int32_t>& prompt, std::size_t tokens,
                                 const std::vector<std::int32_t>& eos) {
  const std::int64_t length = std::int64_t(prompt.size() + tokens);
  Sampler sampler(m.config, m.numerics, {}, {.max_sequences = 2, .kv_positions = length, .max_positions = length, .eos_ids = eos});
  const std::vector<GenerationRequest> requests = {
      {.prompt = prompt, .samples = 1, .max_new_tokens = int(tokens), .params = {.temperature = 0}}};
  return sampler.generate(ctx, m.weights, requests)[0][0].tokens;
}

nlohmann::json read_json_file(const fs::path& path) {
  std::ifstream f(path);
  return nlohmann::json::parse(f);
}

std::string piece(const std::string& token) {
  if (token.size() == 6 && token.starts_with("<0x")) return {char(std::stoi(token.substr(3, 2), nullptr, 16))};
  return token;
}

TEST(SlowRealModel, Stories260KTellsTheExpectedStory) {
  const char* shared = std::getenv("PLUMB_SHARED");
  if (shared == nullptr) GTEST_SKIP() << "PLUMB_SHARED is not set: no stories260K";
  const fs::path folder = fs::path(shared) / "data/models/stories260K-hf";
  const auto expected = read_json_file(folder / "expected.json");
  const auto ids = expected["greedy_ids"].get<std::vector<std::int32_t>>();
  Context ctx(2);
  for (const char* family : {"stories260K-hf", "stories260K-qwen2"}) {
    const LoadedModel m(ctx, folder.parent_path() / family, "fp32");
    const auto got = greedy(ctx, m, {ids[0]}, ids.size() - 1, {});
    EXPECT_TRUE(std::equal(got.begin(), got.end(), ids.begin() + 1, ids.end())) << family;
    std::string text;
    for (std::int32_t id : got) text += piece(expected["tokens"][std::size_t(id)].get<std::string>());
    const auto want = expected["text"].get<std::string>();
    text.erase(0, text.find_first_not_of(' '));
    EXPECT_EQ(text, want) << family;
  }
}

TEST(SlowRealModel, SmolLm2AnswersAndScoresAsTransformersDoes) {
  const char* where = std::getenv("PLUMB_SMOLLM2");
  const char* shared = std::getenv("PLUMB_SHARED");
  if (where == nullptr || shared == nullptr) GTEST_SKIP() << "PLUMB_SMOLLM2 or PLUMB_SHARED is not set: no real 135M model";
  const auto expected = read_json_file(fs::path(shared) / "data/models/smollm2-135m-instruct/expected.json");
  Context ctx(2);
  const LoadedModel m(ctx, where, "fp32");
  const Tokenizer tokenizer = Tokenizer::load(where);
  std::int64_t longest = 0;
  for (const auto& chat : expected) longest = std::max(longest, std::int64_t(chat["prompt_ids"].size() + chat["greedy_ids"].size()));
  Scorer scorer(m.config, m.numerics, {.micro_batch_tokens = int(longest) + 1}, longest);
  double worst = 0;
  for (const auto& chat : expected) {
    const auto prompt = chat["prompt_ids"].get<std::vector<std::int32_t>>();
    const auto want = chat["greedy_ids"].get<std::vector<std::int32_t>>();
    EXPECT_EQ(tokenizer.encode(chat["prompt"].get<std::string>()), prompt);
    EXPECT_EQ(greedy(ctx, m, prompt, want.size(), m.config.eos_ids), want);
    EXPECT_EQ(tokenizer.decode(want), chat["greedy_text"].get<std::string>());
    std::vector<std::int32_t> all = prompt;
    all.insert(all.end(), want.begin(), want.end());
    const std::vector<TrainSequence> sequences = {{.tokens = all, .prompt_len = 1}};
    const TokenScores scores = scorer.score(ctx, m.weights, sequences, 1.0f);
    const auto logprobs = chat["logprobs_fp32"].get<std::vector<double>>();
    ASSERT_EQ(scores.logprob.size(), logprobs.size());
    for (std::size_t i = 0; i < logprobs.size(); ++i) worst = std::max(worst, std::abs(scores.logprob[i] - logprobs[i]));
  }
  RecordProperty("largest_logprob_difference", std::to_string(worst));
  std::printf("largest difference of a log-prob from transformers in FP32: %.2e\n", worst);
  EXPECT_LT(worst, 1e-3);
}

/// The recorded rollouts of a real vLLM: prompt, response and, per token, what transformers said of it.
struct Rollouts {
  Rollouts(const fs::path& file, const char* scores) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
      const auto row = nlohmann::json::parse(line);
      auto tokens = row["prompt_ids"].get<std::vector<std::int32_t>>();
      const auto response = row["response_ids"].get<std::vector<std::int32_t>>();
      prompt_lens.push_back(std::int64_t(tokens.size()));
      tokens.insert(tokens.end(), response.begin(), response.end());
      longest = std::max(longest, std::int64_t(tokens.size()));
      ids.push_back(std::move(tokens));
      for (double x : row[scores]) want.push_back(x);
    }
  }
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<std::int64_t> prompt_lens;
  std::vector<double> want;
  std::int64_t longest = 0;
};

// 30 layers: one flipped tie anywhere and hardly a log-prob would be equal. They are printed with six digits.
TEST(SlowRealModel, SmolLm2UnderHfEagerIsTransformersBitForBit) {
  const char* where = std::getenv("PLUMB_SMOLLM2");
  const char* shared = std::getenv("PLUMB_SHARED");
  if (where == nullptr || shared == nullptr) GTEST_SKIP() << "PLUMB_SMOLLM2 or PLUMB_SHARED is not set: no real 135M model";
  Context ctx(2);
  const LoadedModel m(ctx, where, "hf_eager");
  for (const char* mode : {"eager", "compiled"}) {
    const Rollouts r(fs::path(shared) / fmt::format("conformance/vllm/smollm2_{}.jsonl", mode), "trainer_hf_eager");
    Scorer scorer(m.config, m.numerics, {.micro_batch_tokens = 2048}, r.longest);
    std::vector<TrainSequence> sequences;
    for (std::size_t i = 0; i < r.ids.size(); ++i) sequences.push_back({.tokens = r.ids[i], .prompt_len = r.prompt_lens[i]});
    const std::vector<float> got = scorer.score(ctx, m.weights, sequences, 1.0f).logprob;
    ASSERT_EQ(got.size(), r.want.size());
    double worst = 0;
    std::size_t equal = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double d = std::abs(double(got[i]) - r.want[i]);
      worst = std::max(worst, d);
      equal += d <= 1e-6;
    }
    fmt::print("rollouts of vLLM {}: {} of {} log-probs of transformers equal to 1e-6, largest difference {:.2e}\n", mode, equal,
               got.size(), worst);
    EXPECT_EQ(equal, got.size());
  }
}

}  // namespace
}  // namespace plumb
