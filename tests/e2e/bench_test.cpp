// Every `plumb bench` runs and prints lines that make sense; how fast anything was is nobody's business here.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/e2e/process.h"

namespace plumb::e2e {
namespace {

class SlowBench : public testing::TestWithParam<const char*> {};

TEST_P(SlowBench, RunsAndPrintsItsLines) {
  const TempFolder tmp;
  const Finished f = plumb({"bench", GetParam(), "--repeats", "1", "--threads", "2", "--json", tmp / "figures.json"});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_EQ(f.err, "");
  const auto lines = nlohmann::json::parse(read_file(tmp / "figures.json"));
  ASSERT_GE(lines.size(), 1u);
  EXPECT_EQ(std::size_t(std::count(f.out.begin(), f.out.end(), '\n')), lines.size() + 1) << f.out;
  for (const auto& line : lines) {
    const std::string name = line["name"];
    EXPECT_NE(f.out.find(name), std::string::npos) << name;
    EXPECT_EQ(line["threads"], 2) << name;
    const auto& figures = line.contains("percent") ? line["percent"] : line["per_second"];
    for (const char* which : {"min", "median", "max"}) EXPECT_GT(figures[which].get<double>(), 0) << name;
    if (!line.contains("seconds")) continue;
    EXPECT_GT(line["seconds"]["median"].get<double>(), 0) << name;
    EXPECT_GT(line["flops_per_second"].get<double>(), 0) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Subcommands, SlowBench, testing::Values("machine", "matmul", "decode", "train", "grpo"),
                         [](const auto& p) { return std::string(p.param); });

// One small model, every preset: a line each, in the text and in the file.
TEST(SlowPresetBench, PresetsAreAllCompared) {
  const TempFolder tmp;
  const Finished f = plumb({"bench", "presets", "--config", "addition-167k", "--sequences", "1", "--tokens", "9", "--repeats", "1",
                            "--threads", "2", "--json", tmp / "figures.json"});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_EQ(f.err, "");
  const auto names = nlohmann::json::parse(plumb({"numerics", "list", "--json"}).out);
  const auto lines = nlohmann::json::parse(read_file(tmp / "figures.json"));
  ASSERT_EQ(lines.size(), names.size());
  ASSERT_GE(lines.size(), 16u);
  EXPECT_EQ(std::size_t(std::count(f.out.begin(), f.out.end(), '\n')), lines.size() + 3) << f.out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["name"], names[i]["name"]);
    EXPECT_EQ(lines[i]["ratio_to"], "fused");
    EXPECT_NE(f.out.find("\n" + lines[i]["name"].get<std::string>() + " "), std::string::npos) << f.out;
    for (const char* work : {"train", "decode"}) {
      for (const char* figure : {"ratio", "percent", "seconds"}) {
        const auto& spread = lines[i][work][figure];
        EXPECT_GT(spread["min"].get<double>(), 0) << work << " " << figure;
        EXPECT_LE(spread["min"], spread["median"]);
        EXPECT_LE(spread["median"], spread["max"]);
      }
    }
  }
}

TEST(SlowPresetBench, PresetsAreChosenAndComparedWithAnother) {
  const TempFolder tmp;
  ASSERT_EQ(plumb({"bench", "presets", "--config", "addition-167k", "--sequences", "1", "--tokens", "8", "--repeats", "2", "--presets",
                   "fp32,hf_eager", "--numerics", "liger", "--json", tmp / "figures.json"})
                .code,
            0);
  const auto lines = nlohmann::json::parse(read_file(tmp / "figures.json"));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["name"], "fp32");
  EXPECT_EQ(lines[1]["name"], "hf_eager");
  EXPECT_EQ(lines[1]["ratio_to"], "liger");
}

TEST(SlowPresetBench, TogglesAreEveryFactMovedAlone) {
  const TempFolder tmp;
  ASSERT_EQ(plumb({"bench", "toggles", "--config", "addition-167k", "--sequences", "1", "--tokens", "8", "--repeats", "1", "--numerics",
                   "hf_eager", "--json", tmp / "figures.json"})
                .code,
            0);
  std::vector<std::string> names;
  for (const auto& line : nlohmann::json::parse(read_file(tmp / "figures.json"))) {
    names.push_back(line["name"]);
    EXPECT_EQ(line["ratio_to"], "hf_eager");
  }
  EXPECT_EQ(names.front(), "hf_eager");
  for (const char* name : {"rope.products f", "swiglu.silu f", "norm.xhat f", "softmax flash", "reductions.matmul natural"})
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
}

TEST(SlowModelBench, AModelFromAFolderIsTimed) {
  const TempFolder tmp;
  write_file(tmp / "run.yaml", tiny_grpo_config(1, 0));
  ASSERT_EQ(plumb({"train", tmp / "run.yaml", "--out", tmp / "run", "--quiet", "--set", "model.config=addition-167k"}).code, 0);
  const std::string model = tmp / "run/latest/model";
  const Finished f = plumb({"bench", "model", "--model", model, "--repeats", "1", "--threads", "2", "--json", tmp / "figures.json"});
  ASSERT_EQ(f.code, 0) << f.err;
  const auto lines = nlohmann::json::parse(read_file(tmp / "figures.json"));
  ASSERT_EQ(lines.size(), 5u);
  for (const auto& line : lines) {
    EXPECT_NE(f.out.find(line["name"].get<std::string>()), std::string::npos);
    EXPECT_GT(line["percent"]["median"].get<double>(), 0);
    EXPECT_TRUE(line.contains("answer_tokens_per_second") || line.contains("prompt_tokens_per_second"));
  }
}

TEST(Bench, WrongUseIsToldBeforeAnyWork) {
  const TempFolder tmp;
  expect_one_line(plumb({"bench", "machin"}), 2, "machine");
  expect_one_line(plumb({"bench", "machine", "--repeats", "0"}), 2, "--repeats is '0'");
  expect_one_line(plumb({"bench", "machine", "--threads", "100000"}), 2, "--threads is '100000'");
  expect_one_line(plumb({"bench", "machine", "--json", tmp}), 1, "is a folder");
  expect_one_line(plumb({"bench", "train", "--tokens", "8"}), 2, "are options of presets and toggles alone");
  expect_one_line(plumb({"bench", "toggles", "--presets", "fused"}), 2, "an option of presets alone");
  expect_one_line(plumb({"bench", "presets", "--presets", "hf_eage"}), 2, "did you mean 'hf_eager'");
  expect_one_line(plumb({"bench", "presets", "--numerics", "fuse"}), 2, "did you mean 'fused'");
  expect_one_line(plumb({"bench", "presets", "--config", "addition-167k", "--tokens", "65"}), 2, "addition-167k takes 64 positions");
  expect_one_line(plumb({"bench", "presets", "--config", "no-such-model"}), 2, "no-such-model");
}

}  // namespace
}  // namespace plumb::e2e
