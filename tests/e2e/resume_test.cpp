// Exact resume: N + N steps equal N killed at any moment and continued, in every file of the final checkpoint and in every
// metrics line but for times.
#include <gtest/gtest.h>
#include <signal.h>

#include <random>

#include "tests/e2e/process.h"

namespace plumb::e2e {
namespace {

using std::chrono::milliseconds;

void expect_equal_runs(const std::filesystem::path& a, const std::filesystem::path& b, const std::string& what) {
  const auto x = files_of(a / "latest/");
  const auto y = files_of(b / "latest/");
  ASSERT_GT(x.size(), 4u) << what;
  ASSERT_EQ(x.size(), y.size()) << what;
  for (const auto& [name, bytes] : x) EXPECT_TRUE(y.contains(name) && y.at(name) == bytes) << what << ": " << name << " differs";
  EXPECT_EQ(metrics_without_times(a), metrics_without_times(b)) << what;
}

TEST(SlowResume, HalfAndHalfEqualsTheWhole) {
  TempFolder tmp;
  write_file(tmp / "run.yaml", tiny_grpo_config(6));
  ASSERT_EQ(plumb({"train", tmp / "run.yaml", "--out", tmp / "whole", "--quiet"}).code, 0);
  ASSERT_EQ(plumb({"train", tmp / "run.yaml", "--out", tmp / "half", "--quiet", "--set", "run.steps=3"}).code, 0);
  const Finished second = plumb({"train", "--resume", tmp / "half", "--quiet", "--set", "run.steps=6"});
  ASSERT_EQ(second.code, 0) << second.err;
  expect_equal_runs(tmp / "whole", tmp / "half", "3 + 3 steps");
}

TEST(SlowResume, KilledAtTenRandomMomentsItEndsTheSame) {
  TempFolder tmp;
  write_file(tmp / "run.yaml", tiny_grpo_config(8, 3));
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(plumb({"train", tmp / "run.yaml", "--out", tmp / "whole", "--quiet"}).code, 0);
  const auto took = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start);
  std::mt19937 random(std::random_device{}());
  int killed = 0;
  for (int i = 0; i < 10; ++i) {
    const std::string run = "run" + std::to_string(i);
    const milliseconds after(random() % std::max<std::uint32_t>(1, std::uint32_t(took.count())));
    const Finished first = plumb_then_signal({"train", tmp / "run.yaml", "--out", tmp / run, "--quiet"}, SIGKILL, after);
    killed += first.code == 128 + SIGKILL;
    const bool started = std::filesystem::exists(tmp / (run + "/config.yaml"));
    if (!started) std::filesystem::remove_all(tmp / run);
    const std::vector<std::string> again = started ? std::vector<std::string>{"train", "--resume", tmp / run, "--quiet"}
                                                   : std::vector<std::string>{"train", tmp / "run.yaml", "--out", tmp / run, "--quiet"};
    const Finished second = plumb(again);
    ASSERT_EQ(second.code, 0) << "killed after " << after.count() << " ms: " << second.err;
    expect_equal_runs(tmp / "whole", tmp / run, "killed after " + std::to_string(after.count()) + " ms");
  }
  EXPECT_GT(killed, 0);
}

TEST(SlowResume, AnInterruptSavesAndResumes) {
  TempFolder tmp;
  write_file(tmp / "run.yaml", tiny_grpo_config(8));
  ASSERT_EQ(plumb({"train", tmp / "run.yaml", "--out", tmp / "whole", "--quiet"}).code, 0);
  for (int signal : {SIGINT, SIGTERM}) {
    const std::string run = "run" + std::to_string(signal);
    const Finished first = plumb_then_signal({"train", tmp / "run.yaml", "--out", tmp / run, "--quiet"}, signal, milliseconds(150));
    ASSERT_TRUE(first.code == 130 || first.code == 0) << first.err;
    const Finished second = plumb({"train", "--resume", tmp / run, "--quiet"});
    ASSERT_EQ(second.code, 0) << second.err;
    expect_equal_runs(tmp / "whole", tmp / run, "signal " + std::to_string(signal));
  }
}

TEST(SlowResume, OtherKeysThanExecutionOnesAreRefusedByName) {
  TempFolder tmp;
  write_file(tmp / "run.yaml", tiny_grpo_config(2));
  ASSERT_EQ(plumb({"train", tmp / "run.yaml", "--out", tmp / "run", "--quiet"}).code, 0);
  const Finished f = plumb({"train", "--resume", tmp / "run", "--quiet", "--set", "run.steps=3", "--set", "optimizer.lr=0.5"});
  EXPECT_EQ(f.code, 2);
  EXPECT_NE(f.err.find("optimizer.lr"), std::string::npos) << f.err;
  EXPECT_EQ(plumb({"train", "--resume", tmp / "run", "--quiet", "--set", "run.steps=3", "--set", "execution.threads=1"}).code, 0);
}

TEST(SlowResume, EvaluationChangesNothing) {
  TempFolder tmp;
  write_file(tmp / "run.yaml", tiny_grpo_config(4));
  ASSERT_EQ(plumb({"train", tmp / "run.yaml", "--out", tmp / "often", "--quiet", "--set", "eval.every=1"}).code, 0);
  ASSERT_EQ(plumb({"train", tmp / "run.yaml", "--out", tmp / "never", "--quiet", "--set", "eval.every=0"}).code, 0);
  const auto a = files_of(tmp / "often/latest/model/");
  const auto b = files_of(tmp / "never/latest/model/");
  EXPECT_EQ(a, b);
}

}  // namespace
}  // namespace plumb::e2e
