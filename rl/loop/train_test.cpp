// Whole runs of tiny models in this process; the command line's end-to-end tests cover folders and processes.
#include "rl/loop/train.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/config/config.h"
#include "model/files/files.h"
#include "rl/loop/evaluate.h"
#include "tests/support/temp_folder.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;

class Training : public testing::Test {
 protected:
  void SetUp() override {
    write_file(folder_ / "model.yaml",
               "{family: qwen3, hidden_size: 24, intermediate_size: 40, layers: 2, heads: 2, kv_heads: 1, head_dim: 12, max_positions: 32, "
               "tied: true}");
  }

  RunConfig config(const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> all{"run.steps=3",
                                 "run.seed=3",
                                 "model.config=" + (folder_ / "model.yaml").string(),
                                 "task.digits=1",
                                 "rollout.prompts=4",
                                 "rollout.samples=4",
                                 "sampling.max_new_tokens=4",
                                 "optimizer.lr=0.01",
                                 "eval.problems=0",
                                 "checkpoint.save_every=0",
                                 "logging.tensorboard=false",
                                 "execution.threads=2"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return parse_config<RunConfig>("{}", "test", all);
  }
  fs::path run(const std::string& name, const RunConfig& c, bool resume = false) const {
    const fs::path out = folder_ / name;
    fs::create_directories(out);
    EXPECT_EQ(run_training(std::make_unique<RunInputs>(c), {.folder = out, .resume = resume, .quiet = true}), 0);
    return out;
  }
  static std::vector<nlohmann::ordered_json> metrics(const fs::path& out, bool with_eval = true) {
    std::vector<nlohmann::ordered_json> rows;
    std::ifstream file(out / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto row = nlohmann::ordered_json::parse(line);
      nlohmann::ordered_json kept;
      for (const auto& [key, value] : row.items()) {
        if (key != "config" && !key.starts_with("time/") && (with_eval || !key.starts_with("eval/"))) kept[key] = value;
      }
      if (kept.size() > 2) rows.push_back(kept);  // more than step and numerics
    }
    return rows;
  }
  static std::string model_bytes(const fs::path& out) { return read_file(out / "latest/model/model.safetensors"); }

  const test::TempFolder folder_;
};

TEST_F(Training, EvaluationChangesNothing) {
  const fs::path without = run("without", config());
  const fs::path with = run("with", config({"eval.problems=8", "eval.every=1", "eval.k=3"}));
  EXPECT_EQ(model_bytes(with), model_bytes(without));
  EXPECT_EQ(metrics(with, false), metrics(without));
}

TEST_F(Training, ResumedEqualsStraight) {
  const std::vector<std::string> settings{"warm_start.steps=2",  "warm_start.batch=4", "grpo.kl=k3",      "grpo.kl_coef=0.1",
                                          "grpo.mini_batches=2", "grpo.epochs=2",      "eval.problems=4", "eval.every=2"};
  const auto steps = [&](int n) {
    auto all = settings;
    all.push_back("run.steps=" + std::to_string(n));
    return config(all);
  };
  const fs::path straight = run("straight", steps(4));
  const fs::path halves = run("halves", steps(2));
  run("halves", steps(4), true);
  EXPECT_EQ(metrics(halves), metrics(straight));
  for (const auto& entry : fs::recursive_directory_iterator(straight / "checkpoints/step-000004")) {
    if (!entry.is_regular_file()) continue;
    const fs::path relative = fs::relative(entry.path(), straight);
    EXPECT_TRUE(read_file(entry.path()) == read_file(halves / relative)) << relative;
  }
}

TEST_F(Training, MismatchIsExactlyNothingAndMeasuredEitherWay) {
  for (const char* old : {"recompute", "rollout"}) {
    const fs::path out = run(old, config({std::string("grpo.old_logprobs=") + old, "grpo.mini_batches=2", "sampling.top_p=0.9"}));
    for (const auto& row : metrics(out)) {
      EXPECT_EQ(row.at("mismatch/bitwise_equal_frac"), 1.0);
      EXPECT_EQ(row.at("mismatch/abs_logp_diff_max"), 0.0);
      EXPECT_EQ(row.at("mismatch/argmax_flip_frac"), 0.0);
      EXPECT_EQ(row.at("actor/phantom_clip_frac"), 0.0);
    }
  }
}

TEST_F(Training, DifferentNumericsAreSeenAndSecondWeightsFollow) {
  const fs::path out = run("fp32", config({"numerics.rollout=fused", "numerics.update=fp32"}));
  for (const auto& row : metrics(out)) {
    EXPECT_LT(row.at("mismatch/bitwise_equal_frac").get<double>(), 1.0);
    EXPECT_GT(row.at("mismatch/abs_logp_diff_max").get<double>(), 0.0);
    EXPECT_LT(row.at("mismatch/abs_logp_diff_max").get<double>(), 0.2);  // the sampler's copy keeps up with the masters
  }
}

TEST_F(Training, RecordedRolloutsAreTrainedOnAndMeasured) {
  const fs::path file = folder_ / "rollouts.jsonl";
  write_file(file, R"({"group": 0, "prompt_ids": [1, 2], "response_ids": [3], "logprobs": [-0.5], "reward": 1})"
                   "\n"
                   R"({"group": 0, "prompt_ids": [1, 2], "response_ids": [4, 5], "logprobs": [-0.5, -1], "reward": 0})"
                   "\n");
  const fs::path out =
      run("recorded", config({"rollout.source=recorded", "rollout.file=" + file.string(), "rollout.prompts=1", "run.steps=30"}));
  const auto rows = metrics(out);
  ASSERT_EQ(rows.size(), 30u);
  EXPECT_EQ(rows[0].at("reward/mean"), .5);
  EXPECT_GT(rows[0].at("mismatch/abs_logp_diff_mean").get<double>(), .1);
  EXPECT_FALSE(rows[0].contains("mismatch/argmax_flip_frac"));
  // What earned the reward becomes likelier, so the recorded log-probs fall further and further behind the policy.
  EXPECT_GT(rows[29].at("mismatch/ratio_max").get<double>(), rows[0].at("mismatch/ratio_max").get<double>());
}

TEST_F(Training, AWarmStartBeforeRecordedRolloutsLooksAtItsReward) {
  write_file(folder_ / "one.jsonl", R"({"group": 0, "prompt_ids": [1, 2], "response_ids": [3], "logprobs": [-0.5], "reward": 1})"
                                    "\n");
  const fs::path out = run("looks", config({"rollout.source=recorded", "rollout.file=" + (folder_ / "one.jsonl").string(),
                                            "rollout.prompts=1", "warm_start.steps=5", "warm_start.stop_reward=1", "run.steps=1"}));
  EXPECT_TRUE(metrics(out).at(4).contains("warm_start/reward"));
}

TEST_F(Training, SupervisedFromAFileInFileOrderAndFromTheTask) {
  write_file(folder_ / "sft.jsonl",
             "{\"prompt\": \"1+2=\", \"response\": \"30\"}\n{\"ids\": [1, 2, 3, 4], \"prompt_len\": 2}\n{\"text\": \"1+1=20\"}\n");
  const fs::path out = run("file", config({"run.algorithm=sft", "run.steps=40", "sft.batch=3", "sft.shuffle=false", "sft.optimizer.lr=0.01",
                                           "sft.data=" + (folder_ / "sft.jsonl").string()}));
  const auto rows = metrics(out);
  ASSERT_EQ(rows.size(), 40u);
  EXPECT_EQ(rows[0].at("tokens"), 3 + 2 + 5);
  EXPECT_LT(rows[39].at("loss").get<double>(), .3 * rows[0].at("loss").get<double>());
  EXPECT_EQ(metrics(run("task", config({"run.algorithm=sft", "run.steps=2", "sft.batch=3"}))).size(), 2u);
}

TEST_F(Training, LinesThatDoNotFitAreCountedInTheLog) {
  const std::string longer(40, '1');
  write_file(folder_ / "mixed.jsonl", "{\"text\": \"1+2=30\"}\n{\"text\": \" \"}\n{\"text\": \"1\"}\n{\"text\": \"" + longer + "\"}\n");
  const auto log_of = [&](const std::string& too_long) {
    const fs::path out = run(too_long, config({"run.algorithm=sft", "sft.skip_empty=true", "sft.too_long=" + too_long,
                                               "sft.data=" + (folder_ / "mixed.jsonl").string()}));
    return read_file(out / "log.txt");
  };
  EXPECT_THAT(log_of("drop"), testing::HasSubstr("supervised examples: 1 used, 0 of them cut; passed over: 2 empty, 1 too long"));
  EXPECT_THAT(log_of("right"), testing::HasSubstr("supervised examples: 2 used, 1 of them cut; passed over: 2 empty, 0 too long"));
}

TEST_F(Training, DataIsReadOnce) {
  write_file(folder_ / "sft.jsonl", "{\"prompt\": \"1+2=\", \"response\": \"30\"}\n");
  auto inputs = std::make_unique<RunInputs>(config({"run.algorithm=sft", "sft.data=" + (folder_ / "sft.jsonl").string()}));
  fs::remove(folder_ / "sft.jsonl");
  fs::create_directories(folder_ / "once");
  EXPECT_EQ(run_training(std::move(inputs), {.folder = folder_ / "once", .quiet = true}), 0);
  EXPECT_EQ(metrics(folder_ / "once").size(), 3u);
}

TEST_F(Training, AWarmStartEndsAtItsReward) {
  const fs::path out = run("warm", config({"warm_start.steps=400", "warm_start.batch=16", "warm_start.optimizer.lr=0.01",
                                           "warm_start.stop_reward=0.1", "run.steps=1"}));
  std::vector<double> rewards;
  std::size_t steps = 0;
  for (const auto& row : metrics(out)) {
    steps += row.contains("warm_start/loss");
    if (row.contains("warm_start/reward")) rewards.push_back(row.at("warm_start/reward"));
  }
  ASSERT_LT(steps, 400u);
  EXPECT_EQ(rewards.size(), steps / 5);
  for (std::size_t i = 0; i + 1 < rewards.size(); ++i) EXPECT_LT(rewards[i], .1);
  EXPECT_GE(rewards.back(), .1);
}

TEST_F(Training, EvaluationOfASavedModelEqualsTheRunsOwn) {
  const RunConfig c = config({"eval.problems=8", "eval.every=3", "eval.k=4"});
  const fs::path out = run("saved", c);
  const EvalReport report = run_evaluation(c, out / "latest/model");
  const auto last = metrics(out).back();
  const MetricSet figures = metrics_of(report);
  for (const auto& [name, metric] : figures.all()) EXPECT_EQ(last.at(name), metric.value()) << name;
  EXPECT_EQ(report.problems, 8);
  EXPECT_EQ(report.pass_at_k.size(), 4u);
}

}  // namespace
}  // namespace plumb
