// Bad input of every kind: one clear line, the right exit code, nothing half-written.
#include <gtest/gtest.h>

#include "tests/e2e/process.h"

namespace plumb::e2e {
namespace {

TEST(CommandLine, HelpAndVersionAreThere) {
  for (const char* command : {"train", "eval", "sample", "score", "config", "inspect"}) {
    const Finished f = plumb({command, "--help"});
    EXPECT_EQ(f.code, 0) << command;
    EXPECT_GT(f.out.size(), 200u) << command;
  }
  EXPECT_EQ(plumb({"--version"}).code, 0);
  EXPECT_EQ(plumb({"--help"}).code, 0);
}

TEST(CommandLine, UnknownWordsSuggestTheNearOne) {
  const Finished command = plumb({"trian", "x.yaml"});
  EXPECT_EQ(command.code, 2);
  EXPECT_NE(command.err.find("train"), std::string::npos) << command.err;
  const Finished option = plumb({"train", "x.yaml", "--resum", "x"});
  EXPECT_EQ(option.code, 2);
  EXPECT_NE(option.err.find("--resume"), std::string::npos) << option.err;
  EXPECT_EQ(plumb({}).code, 2);
}

TEST(CommandLine, ConfigurationFaultsNameFileLineAndTheRightKey) {
  TempFolder tmp;
  const std::string good = tiny_grpo_config(1);
  const auto fails = [&](const std::string& text, const std::string& says) {
    write_file(tmp / "bad.yaml", text);
    expect_one_line(plumb({"train", tmp / "bad.yaml", "--out", tmp / "run"}), 2, says);
    EXPECT_FALSE(std::filesystem::exists(tmp / "run")) << says;
  };
  fails(good + "optimiser: {lr: 1}\n", "optimizer");
  fails("optimizer:\n  learnign_rate: 1\n", "bad.yaml:2");
  fails(good + "task: {digits: 2}\n", "task");
  fails("optimizer: {lr: fast}\n", "lr");
  fails("run: {steps: 1.5}\n", "steps");
  fails("run: {algorithm: gropo}\n", "grpo");
  fails("rollout: {samples: 1}\nmodel: {config: addition-167k}\n", "rollout.samples");
  fails("numerics: {rollout: hf_eagre}\nmodel: {config: addition-167k}\n", "hf_eager");
  fails("optimizer: {schedule: {kind: cosine}}\nmodel: {config: addition-167k}\n", "total_steps");
  fails("run: [", "bad.yaml:1");
  expect_one_line(plumb({"train", tmp / "none.yaml"}), 2, "none.yaml");
}

TEST(CommandLine, OverridesAreCheckedLikeTheFile) {
  TempFolder tmp;
  write_file(tmp / "run.yaml", tiny_grpo_config(1));
  expect_one_line(plumb({"config", tmp / "run.yaml", "--set", "optimizer.lrr=1"}), 2, "optimizer.lr");
  expect_one_line(plumb({"config", tmp / "run.yaml", "--set", "optimizer.lr"}), 2, "--set");
  const Finished f = plumb({"config", tmp / "run.yaml", "--set", "optimizer.lr=0.125"});
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("0.125"), std::string::npos);
}

TEST(CommandLine, TheResolvedConfigurationLoadsBack) {
  TempFolder tmp;
  write_file(tmp / "run.yaml", tiny_grpo_config(1));
  const Finished first = plumb({"config", tmp / "run.yaml"});
  ASSERT_EQ(first.code, 0) << first.err;
  write_file(tmp / "again.yaml", first.out);
  const Finished second = plumb({"config", tmp / "again.yaml"});
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(first.out, second.out);
}

TEST(CommandLine, MissingDamagedAndHostileModelsAreRefused) {
  TempFolder tmp;
  expect_one_line(plumb({"sample", "--model", tmp / "none", "--prompt", "1+1="}), 2, "none");
  write_file(tmp / "run.yaml", tiny_grpo_config(1, 0));
  ASSERT_EQ(plumb({"train", tmp / "run.yaml", "--out", tmp / "run", "--quiet"}).code, 0);
  const auto model = std::filesystem::canonical(tmp / "run/latest/model");
  const std::string whole = read_file(model / "model.safetensors");
  for (std::size_t cut : {std::size_t(0), std::size_t(7), std::size_t(100), whole.size() / 2, whole.size() - 1}) {
    write_file(model / "model.safetensors", whole.substr(0, cut));
    expect_one_line(plumb({"sample", "--model", model, "--prompt", "12+34="}), 1, "model.safetensors");
  }
  std::string hostile = whole;
  for (int i = 0; i < 8; ++i) hostile[std::size_t(i)] = char(0xFF);
  write_file(model / "model.safetensors", hostile);
  expect_one_line(plumb({"sample", "--model", model, "--prompt", "12+34="}), 1, "model.safetensors");
  write_file(model / "model.safetensors", whole);
  expect_one_line(plumb({"sample", "--model", model, "--prompt", std::string(200, '1')}), 2, "window");
  const Finished good = plumb({"sample", "--model", model, "--prompt", "12+34=", "-n", "2", "--max-new-tokens", "4", "--seed", "1"});
  EXPECT_EQ(good.code, 0) << good.err;
}

TEST(CommandLine, AUsedFolderIsNotOverwritten) {
  TempFolder tmp;
  write_file(tmp / "run.yaml", tiny_grpo_config(1, 0));
  ASSERT_EQ(plumb({"train", tmp / "run.yaml", "--out", tmp / "run", "--quiet"}).code, 0);
  const auto before = files_of(tmp / "run");
  expect_one_line(plumb({"train", tmp / "run.yaml", "--out", tmp / "run", "--quiet"}), 2, "--resume");
  EXPECT_EQ(files_of(tmp / "run"), before);
  write_file(tmp / "file", "x");
  expect_one_line(plumb({"train", tmp / "run.yaml", "--out", tmp / "file/run", "--quiet"}), 1, "file");
  expect_one_line(plumb({"train", "--resume", tmp / "nowhere", "--quiet"}), 2, "nowhere");
}

TEST(CommandLine, InspectSaysWhetherThingsAreWhole) {
  TempFolder tmp;
  write_file(tmp / "run.yaml", tiny_grpo_config(2, 0));
  ASSERT_EQ(plumb({"train", tmp / "run.yaml", "--out", tmp / "run", "--quiet"}).code, 0);
  EXPECT_EQ(plumb({"inspect", tmp / "run"}).code, 0);
  EXPECT_EQ(plumb({"inspect", tmp / "run/latest"}).code, 0);
  EXPECT_EQ(plumb({"inspect", tmp / "run/latest/model"}).code, 0);
  const auto optimizer = std::filesystem::canonical(tmp / "run/latest") / "optimizer.safetensors";
  write_file(optimizer, read_file(optimizer) + "x");
  const Finished damaged = plumb({"inspect", tmp / "run/latest"});
  EXPECT_EQ(damaged.code, 1);
  EXPECT_NE((damaged.out + damaged.err).find("optimizer.safetensors"), std::string::npos);
}

}  // namespace
}  // namespace plumb::e2e
