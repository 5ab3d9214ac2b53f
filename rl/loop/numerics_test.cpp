// What the two sides' numerics do to a run: aligned sides agree to the last bit, other orders of summation do not, and a schedule of
// alignments depends on the step alone.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/config/config.h"
#include "kernels/core/context.h"
#include "model/files/files.h"
#include "rl/loop/train.h"
#include "tests/support/temp_folder.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;

class SidesOfARun : public testing::Test {
 protected:
  void SetUp() override {
    write_file(folder_ / "model.yaml",
               "{family: qwen3, hidden_size: 24, intermediate_size: 40, layers: 3, heads: 2, kv_heads: 1, head_dim: 12, max_positions: 32, "
               "tied: true}");
  }

  fs::path run(const std::string& name, const std::string& numerics, int steps, bool resume = false,
               const std::vector<std::string>& more = {}) const {
    std::vector<std::string> sets = {"run.steps=" + std::to_string(steps),
                                     "run.seed=3",
                                     "model.config=" + (folder_ / "model.yaml").string(),
                                     "task.digits=1",
                                     "rollout.prompts=4",
                                     "rollout.samples=4",
                                     "sampling.max_new_tokens=4",
                                     "sampling.temperature=0.9",
                                     "optimizer.lr=0.01",
                                     "eval.problems=0",
                                     "checkpoint.save_every=0",
                                     "logging.tensorboard=false",
                                     "execution.threads=2",
                                     "numerics=" + numerics};
    sets.insert(sets.end(), more.begin(), more.end());
    const auto config = parse_config<RunConfig>("{}", "test", sets);
    const fs::path out = folder_ / name;
    fs::create_directories(out);
    EXPECT_EQ(run_training(std::make_unique<RunInputs>(config), {.folder = out, .resume = resume, .quiet = true}), 0);
    return out;
  }

  static std::vector<nlohmann::json> metrics(const fs::path& out) {
    std::vector<nlohmann::json> rows;
    std::ifstream file(out / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      auto row = nlohmann::json::parse(line);
      if (row.contains("mismatch/bitwise_equal_frac")) rows.push_back(row);
    }
    return rows;
  }
  static bool aligned(const nlohmann::json& row) {
    const bool bits = row.at("mismatch/bitwise_equal_frac").get<double>() == 1;
    EXPECT_EQ(row.at("mismatch/abs_logp_diff_mean").get<double>() == 0, bits);
    return bits;
  }

  const test::TempFolder folder_;
};

class EveryPreset : public SidesOfARun, public testing::WithParamInterface<std::string_view> {};

// Parity and the law in one short run with updates: with one preset on both sides every mismatch metric is at its identity value, and
// no setting of Execution changes a byte of the checkpoint.
TEST_P(EveryPreset, AgreesWithItselfWhateverTheExecution) {
  const std::string numerics = "{rollout: " + std::string(GetParam()) + "}";
  const std::vector<std::string> work = {"grpo.mini_batches=2", "grpo.epochs=2", "grpo.kl=k3", "grpo.kl_coef=0.01"};
  std::vector<std::vector<std::string>> settings = {
      {},
      {"execution.threads=1", "execution.recompute=true", "execution.sampler_sequences=1"},
      {"execution.threads=3", "execution.merged_matmuls=false", "execution.micro_batch_tokens=24", "execution.prefill_tokens=2"},
      {"execution.micro_batch_tokens=41", "execution.logits_rows=3", "execution.sampler_sequences=3"}};
  for (const Isa isa : machine_isas()) settings.push_back({std::string("execution.isa=") + name_of(isa)});
  fs::path first;
  for (std::size_t i = 0; i < settings.size(); ++i) {
    std::vector<std::string> all = work;
    all.insert(all.end(), settings[i].begin(), settings[i].end());
    const fs::path out = run("run" + std::to_string(i), numerics, 2, false, all);
    const auto rows = metrics(out);
    ASSERT_EQ(rows.size(), 2u);
    for (const auto& row : rows) EXPECT_TRUE(aligned(row));
    if (i == 0) first = out;
    for (const char* file : {"model/model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"})
      EXPECT_TRUE(read_file(out / "latest" / file) == read_file(first / "latest" / file))
          << file << " under " << (settings[i].empty() ? "" : settings[i][0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, EveryPreset, testing::ValuesIn(usable_presets()), [](const auto& p) { return std::string(p.param); });

// `all` leaves the reductions alone: they are set equal here, or aligned as a group of their own.
const std::string kOrders =
    "reductions: {matmul: natural, row_sum: lanes16, attention_qk: pair_swapped, attention_pv: pair_swapped, attention_sum: lanes16, "
    "attention_exp: exact}";

TEST_F(SidesOfARun, AllAlignedWithEqualReductionsIsExactlyZero) {
  const std::pair<std::string, std::string> pairs[] = {{"vllm_cpu_compiled", "hf_eager"},
                                                       {"hf_eager", "fused"},
                                                       {"hf_compiled", "hf_autocast_fp32params"},
                                                       {"hf_autocast_fp32params", "vllm_compiled"}};
  int i = 0;
  for (const auto& [rollout, update] : pairs) {
    const std::string start = "{rollout: {preset: " + rollout + ", " + kOrders + "}, update: {preset: " + update + ", " + kOrders;
    for (const auto& row : metrics(run("all" + std::to_string(i), start + ", align: [all]}}", 3))) EXPECT_TRUE(aligned(row)) << rollout;
    const std::string grouped = "{rollout: " + rollout + ", update: {preset: " + update + ", align: [all, reductions]}}";
    for (const auto& row : metrics(run("grouped" + std::to_string(i), grouped, 3))) EXPECT_TRUE(aligned(row)) << rollout;
    for (const auto& row : metrics(run("apart" + std::to_string(i), start + "}}", 1))) EXPECT_FALSE(aligned(row)) << rollout;
    ++i;
  }
}

TEST_F(SidesOfARun, TheRolloutSideCanAlignToTheUpdateSide) {
  const std::string start =
      "{update: {preset: hf_eager, " + kOrders + "}, rollout: {preset: vllm_cpu_compiled, align: [all], " + kOrders + "}}";
  for (const auto& row : metrics(run("back", start, 2))) EXPECT_TRUE(aligned(row));
}

TEST_F(SidesOfARun, AnotherOrderOfSummationIsAMismatchOfItsOwn) {
  for (const char* split : {"chains_2", "chains_4"}) {
    const auto rows = metrics(run(split, std::string("{rollout: fused, update: {preset: fused, reductions: {matmul: ") + split + "}}}", 2));
    ASSERT_EQ(rows.size(), 2u);
    for (const auto& row : rows) EXPECT_FALSE(aligned(row)) << split;
  }
}

TEST_F(SidesOfARun, Fp16IsScaledAgreesWithItselfAndResumesExactly) {
  const std::string numerics = "{rollout: {preset: hf_eager, compute: fp16}}";
  const fs::path straight = run("straight16", numerics, 4);
  const auto rows = metrics(straight);
  ASSERT_EQ(rows.size(), 4u);
  for (const auto& row : rows) {
    EXPECT_TRUE(aligned(row));
    EXPECT_EQ(row.at("actor/loss_scale").get<double>(), 65536);
  }
  const fs::path again = run("again16", numerics, 2);
  run("again16", numerics, 4, true);
  EXPECT_EQ(metrics(again).size(), 4u);
  for (const char* file : {"model/model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"})
    EXPECT_EQ(read_file(straight / "latest" / file), read_file(again / "latest" / file)) << file;
}

TEST_F(SidesOfARun, Bf16GradientsAndStateTrainAndResumeExactly) {
  const std::vector<std::string> precision = {"optimizer.accumulation={dtype: bf16, sequences: 3}",
                                              "optimizer.precision={weights: bf16, moments: bf16}"};
  const fs::path straight = run("straight_bf16", "{rollout: hf_eager}", 4, false, precision);
  for (const auto& row : metrics(straight)) EXPECT_TRUE(aligned(row));
  const fs::path again = run("again_bf16", "{rollout: hf_eager}", 2, false, precision);
  run("again_bf16", "{rollout: hf_eager}", 4, true, precision);
  for (const char* file : {"model/model.safetensors", "optimizer.safetensors", "master.safetensors", "state.json", "manifest.json"})
    EXPECT_EQ(read_file(straight / "latest" / file), read_file(again / "latest" / file)) << file;
}

// Dose-response: the fewer mantissa bits one side has, the larger the mismatch; with as many as the other it is exactly zero.
TEST_F(SidesOfARun, MantissaBitsOfOneSideAreADose) {
  double last = 0;
  for (int bits : {7, 6, 4, 2}) {
    const auto rows =
        metrics(run("bits" + std::to_string(bits), "{rollout: fused, update: {mantissa_bits: " + std::to_string(bits) + "}}", 1));
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(aligned(rows[0]), bits == 7) << bits;
    const double mismatch = rows[0].at("mismatch/abs_logp_diff_mean").get<double>();
    if (bits < 7) {
      EXPECT_GT(mismatch, 1.5 * last) << bits;
    }
    last = mismatch;
  }
}

TEST_F(SidesOfARun, AScheduleAlignsAndResumesExactly) {
  const std::string numerics = "{rollout: {preset: vllm_cpu_compiled, " + kOrders + "}, update: {preset: hf_eager, " + kOrders +
                               "}, schedule: [{step: 3, side: update, align: [all]}, {step: 4, side: update, align: []}, "
                               "{step: 5, side: rollout, align: [all]}]}";
  const fs::path whole = run("whole", numerics, 6);
  const auto rows = metrics(whole);
  ASSERT_EQ(rows.size(), 6u);
  for (int step = 1; step <= 6; ++step) EXPECT_EQ(aligned(rows[std::size_t(step - 1)]), step == 3 || step >= 5) << step;
  EXPECT_EQ(rows[0].at("numerics"), rows[1].at("numerics"));
  EXPECT_EQ(rows[0].at("numerics"), rows[3].at("numerics"));
  EXPECT_NE(rows[1].at("numerics").at("update"), rows[2].at("numerics").at("update"));
  EXPECT_NE(rows[3].at("numerics").at("rollout"), rows[4].at("numerics").at("rollout"));
  for (int first = 2; first <= 5; ++first) {
    const std::string name = "parts" + std::to_string(first);
    run(name, numerics, first);
    const fs::path parts = run(name, numerics, 6, true);
    for (const char* file : {"model/model.safetensors", "optimizer.safetensors", "manifest.json"}) {
      EXPECT_TRUE(read_file(whole / "latest" / file) == read_file(parts / "latest" / file)) << first << " " << file;
    }
    const auto again = metrics(parts);
    ASSERT_EQ(again.size(), rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (const auto& [key, value] : rows[i].items()) {
        if (key.starts_with("time/")) continue;
        EXPECT_EQ(again[i].at(key), value) << first << " " << key;
      }
    }
  }
  const auto manifest = nlohmann::json::parse(read_file(whole / "latest/manifest.json"));
  EXPECT_EQ(manifest.at("numerics").at("rollout"), rows[5].at("numerics").at("rollout"));
  EXPECT_GT(manifest.at("numerics").at("resolved").at("update").size(), 40u);
}

}  // namespace
}  // namespace plumb
