// The experiment that this engine is for, on a real 135M model: sampled in vLLM's bits and trained in transformers', Plumb's own rollouts
// have the mismatch that vLLM's rollouts have against transformers' trainer; aligned, they have none. Skipped, visibly, without
// PLUMB_SHARED (what the two real stacks recorded) and PLUMB_SMOLLM2 (the model).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/e2e/process.h"
#include "tests/paths.h"

namespace plumb::e2e {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// How far a trainer's log-probs are from a sampler's, d = trainer - sampler.
struct Gap {
  std::int64_t tokens = 0;
  double mean_abs = 0;
  double max_abs = 0;
  double kl = 0;  // mean(-d)
  double k3 = 0;  // mean(exp d - d - 1)
  double equal = 0;
};

void print(const std::string& what, const Gap& g) {
  std::printf("%-52s %5lld tokens: mean |dlogp| %.4f, max %.3f, kl %+.4f, k3 %.5f, equal %.4f\n", what.c_str(), (long long)g.tokens,
              g.mean_abs, g.max_abs, g.kl, g.k3, g.equal);
}

/// Between what vLLM and what transformers computed for the same tokens, of the first groups (0: all). By the formulas, not by Plumb.
Gap recorded_gap(const fs::path& file, int groups) {
  Gap g;
  for (const Json& line : json_lines_of(file)) {
    if (groups > 0 && line["group"].get<int>() >= groups) continue;
    for (std::size_t i = 0; i < line["logprobs"].size(); ++i) {
      const double d = line["trainer_hf_eager"][i].get<double>() - line["logprobs"][i].get<double>();
      ++g.tokens;
      g.mean_abs += std::abs(d);
      g.max_abs = std::max(g.max_abs, std::abs(d));
      g.kl -= d;
      g.k3 += std::exp(d) - d - 1;
      g.equal += std::abs(d) < 1e-6;
    }
  }
  for (double* mean : {&g.mean_abs, &g.kl, &g.k3, &g.equal}) *mean /= double(g.tokens);
  return g;
}

/// By the names of the mismatch metrics, as a training run and drift print them.
Gap gap_of(const Json& metrics, std::int64_t tokens) {
  const auto value = [&](const char* name) { return metrics.at(std::string("mismatch/") + name).get<double>(); };
  return {.tokens = tokens,
          .mean_abs = value("abs_logp_diff_mean"),
          .max_abs = value("abs_logp_diff_max"),
          .kl = value("kl"),
          .k3 = value("k3"),
          .equal = value("bitwise_equal_frac")};
}

class SlowRealPairConformance : public testing::Test {
 protected:
  void SetUp() override {
    const char* const model = std::getenv("PLUMB_SMOLLM2");
    const char* const shared = std::getenv("PLUMB_SHARED");
    if (model == nullptr || shared == nullptr) GTEST_SKIP() << "PLUMB_SMOLLM2 or PLUMB_SHARED is not set: no real pair";
    model_ = model;
    records_ = fs::path(shared) / "conformance/vllm";
  }

  /// A record against the trainer in transformers' bits, with `explained_by` as what may have made it.
  Json drift(const fs::path& record, const std::string& explained_by, std::int64_t tokens) const {
    const Finished f = plumb({"drift", "--model", model_, "--a", "hf_eager", "--b", explained_by, "--recorded", record, "--by", "none",
                              "--max-tokens", std::to_string(tokens), "--json"});
    EXPECT_EQ(f.code, 0) << f.err;
    return Json::parse(f.out);
  }

  /// Four answers to each of four questions of the shipped run, in vLLM's bits.
  void sample(const std::string& preset, const fs::path& out) const {
    std::vector<std::string> arguments = {"sample", "--model", model_, "--numerics",       preset, "-n",
                                          "4",      "--seed",  "1",    "--max-new-tokens", "32",   "--json"};
    for (const char* numbers : {"17 + 39", "4 + 58", "23 + 21", "60 + 8"}) {
      arguments.insert(arguments.end(),
                       {"--prompt",
                        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
                        "<|im_start|>user\nWhat is " +
                            std::string(numbers) + "? Answer with the number only.<|im_end|>\n<|im_start|>assistant\n"});
    }
    const Finished f = plumb(arguments);
    EXPECT_EQ(f.code, 0) << f.err;
    write_file(out, f.out);
  }

  fs::path model_;
  fs::path records_;
};

/// The same size: mean |dlogp| within 30 %, k3 within a factor of 2, the largest within 3, a bias that is small against the spread.
/// Group by group the recorded mean |dlogp| has a relative deviation of 0.22 and k3 of 0.4, so over four groups 11 and 20 %.
void expect_same_size(const Gap& own, const Gap& real) {
  EXPECT_GT(own.tokens, 150);
  EXPECT_NEAR(own.mean_abs, real.mean_abs, 0.3 * real.mean_abs);
  EXPECT_GT(own.k3, real.k3 / 2);
  EXPECT_LT(own.k3, real.k3 * 2);
  EXPECT_GT(own.max_abs, real.max_abs / 3);
  EXPECT_LT(own.max_abs, real.max_abs * 3);
  EXPECT_LT(std::abs(own.kl), real.mean_abs / 2);
  EXPECT_LT(own.equal, 0.02);
}

TEST_F(SlowRealPairConformance, OwnRolloutsHaveTheMismatchOfTheRecordedOnes) {
  TempFolder tmp;
  for (const std::string mode : {"eager", "compiled"}) {
    const Gap real = recorded_gap(records_ / ("smollm2_" + mode + ".jsonl"), 0);
    sample("vllm_cpu_" + mode, tmp / "own.jsonl");
    const Json report = drift(tmp / "own.jsonl", "vllm_cpu_" + mode, 0);
    const Gap own = gap_of(report["metrics"], report["tokens"]);
    print("vLLM " + mode + " against transformers eager", real);
    print("Plumb's vllm_cpu_" + mode + " against its hf_eager", own);
    expect_same_size(own, real);
    EXPECT_EQ(report["unexplained"], 0.0) << mode;  // scored in the sampler's bits nothing is left
  }
}

// The same tokens: vLLM's record, and the trainer that Plumb has in transformers' bits.
TEST_F(SlowRealPairConformance, RecordedRolloutsHaveTheMismatchThatTheTwoStacksHave) {
  const fs::path file = records_ / "smollm2_eager.jsonl";
  const Gap real = recorded_gap(file, 4);
  const Json report = drift(file, "vllm_cpu_eager", real.tokens);
  const Gap own = gap_of(report["metrics"], report["tokens"]);
  print("vLLM eager's record against transformers eager", real);
  print("vLLM eager's record against Plumb's hf_eager", own);
  EXPECT_EQ(own.tokens, real.tokens);
  EXPECT_NEAR(own.mean_abs, real.mean_abs, 2e-6);  // the record has six or seven digits
  EXPECT_NEAR(own.max_abs, real.max_abs, 2e-6);
  EXPECT_NEAR(own.kl, real.kl, 2e-6);
  EXPECT_NEAR(own.k3, real.k3, 2e-6);
  EXPECT_LT(report["unexplained"].get<double>(), 1e-6);
}

// The shipped run: the first step as the two stacks are, the second, after an update, with everything aligned.
TEST_F(SlowRealPairConformance, ATrainingRunShowsTheMismatchAndAlignedNone) {
  TempFolder tmp;
  const Finished f = plumb({"train", std::string(test::source_dir) + "/configs/runs/smollm2-mismatch.yaml", "--out", tmp / "run", "--quiet",
                            "--set", "model.path=" + model_.string(), "--set", "numerics.rollout=vllm_cpu_compiled", "--set",
                            "numerics.schedule=[{step: 2, side: update, align: [all, reductions]}]", "--set", "rollout.prompts=2", "--set",
                            "run.steps=2", "--set", "optimizer.lr=1e-4"});
  ASSERT_EQ(f.code, 0) << f.err;
  const std::vector<Json> rows = mismatch_rows(tmp / "run");
  ASSERT_EQ(rows.size(), 2u);
  const Gap apart = gap_of(rows[0], rows[0].at("tokens"));
  print("trained: step 1, apart", apart);
  print("trained: step 2, aligned", gap_of(rows[1], rows[1].at("tokens")));
  expect_same_size(apart, recorded_gap(records_ / "smollm2_compiled.jsonl", 0));
  expect_no_mismatch(rows[1]);
}

}  // namespace
}  // namespace plumb::e2e
