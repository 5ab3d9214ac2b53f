// What a run folder that lost something, or a disk without room, is told: one line, and no pretending.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/e2e/process.h"

namespace plumb::e2e {
namespace {

namespace fs = std::filesystem;

/// A finished run of `steps` steps in tmp/run.
void train(const TempFolder& tmp, int steps, const std::vector<std::string>& sets = {}) {
  write_file(tmp / "run.yaml", tiny_grpo_config(steps, 0));
  std::vector<std::string> arguments = {"train", tmp / "run.yaml", "--out", tmp / "run", "--quiet"};
  for (const auto& s : sets) arguments.insert(arguments.end(), {"--set", s});
  const Finished f = plumb(arguments);
  ASSERT_EQ(f.code, 0) << f.err;
}

void expect_refused(const TempFolder& tmp) {
  const auto before = files_of(tmp / "run");
  expect_one_line(plumb({"inspect", tmp / "run"}), 1, "its checkpoints are gone");
  expect_one_line(plumb({"train", "--resume", tmp / "run", "--set", "run.steps=4", "--quiet"}), 1, "its checkpoints are gone");
  EXPECT_EQ(files_of(tmp / "run"), before) << "nothing may be written over what is left";
}

TEST(Damage, ARunWithoutItsCheckpointsIsNotStartedAgainUnasked) {
  TempFolder tmp;
  train(tmp, 3);
  fs::remove_all(tmp / "run/checkpoints");
  expect_refused(tmp);
  fs::create_directory(tmp / "run/checkpoints");
  expect_refused(tmp);
  fs::remove(tmp / "run/latest");
  expect_refused(tmp);
}

TEST(Damage, ARunKilledBeforeItsFirstCheckpointStartsFromItsBeginning) {
  TempFolder tmp;
  train(tmp, 2);
  // What such a run leaves: the line of its first step, an empty folder, no link.
  const std::string metrics = read_file(tmp / "run/metrics.jsonl");
  const auto first = metrics.find("{\"step\":2");
  ASSERT_NE(first, std::string::npos);
  write_file(tmp / "run/metrics.jsonl", metrics.substr(0, first));
  fs::remove_all(tmp / "run/checkpoints");
  fs::create_directory(tmp / "run/checkpoints");
  fs::remove(tmp / "run/latest");
  const Finished inspected = plumb({"inspect", tmp / "run"});
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_NE(inspected.out.find("no checkpoint yet"), std::string::npos);
  const Finished f = plumb({"train", "--resume", tmp / "run", "--fresh-optimizer"});
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("there is no checkpoint yet"), std::string::npos) << f.out;
  EXPECT_NE(f.out.find("--fresh-optimizer changes nothing"), std::string::npos) << f.out;
}

TEST(Damage, AResumedRunThatIsDoneSaysSo) {
  TempFolder tmp;
  train(tmp, 2);
  const auto before = files_of(tmp / "run/checkpoints");
  for (const char* steps : {"run.steps=2", "run.steps=1"}) {
    const Finished f = plumb({"train", "--resume", tmp / "run", "--set", steps, "--fresh-optimizer"});
    EXPECT_EQ(f.code, 0) << f.err;
    EXPECT_NE(f.out.find("already at step 2, run.steps is " + std::string(steps + 10) + ": nothing to do"), std::string::npos) << f.out;
    EXPECT_NE(f.out.find("--fresh-optimizer changes nothing"), std::string::npos) << f.out;
  }
  EXPECT_EQ(files_of(tmp / "run/checkpoints"), before);
}

TEST(Damage, AFullStandardOutputIsAFailure) {
  TempFolder tmp;
  train(tmp, 1);
  const std::string model = tmp / "run/latest/model", config = tmp / "run.yaml", no_room = "standard output: cannot write";
  expect_one_line(plumb_into_a_full_disk({"sample", "--model", model, "--prompt", "12+34="}), 1, no_room);
  expect_one_line(plumb_into_a_full_disk({"inspect", model}), 1, no_room);
  expect_one_line(plumb_into_a_full_disk({"eval", "--model", model, config, "--json"}), 1, no_room);
  expect_one_line(plumb_into_a_full_disk({"config", config}), 1, no_room);
  expect_one_line(plumb_into_a_full_disk({"train", config, "--dry-run"}), 1, no_room);
  expect_one_line(plumb_into_a_full_disk({"--help"}), 1, no_room);
}

}  // namespace
}  // namespace plumb::e2e
