#include "rl/rollout/rollout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "model/files/files.h"
#include "rl/rollout/problem_stream.h"
#include "rl/rollout/recorded.h"
#include "tests/support/temp_folder.h"

namespace plumb {
namespace {

/// Rewards the answer "1"; fails in every way that a reward can on some others.
class FakeTask : public Task {
 public:
  /// Generated held-out problems come twice in a row.
  Problem problem(Split split, std::uint64_t index) const override {
    return {.prompt = std::to_string(!files && split == Split::held_out ? index / 2 : index), .answer = "1"};
  }
  Reward reward(const Problem& p, const std::vector<std::string>& pieces, bool finished) const override {
    std::string text;
    for (const std::string& piece : pieces) text += piece;
    if (text == "2") throw Error("no such thing");
    if (text == "3") return {.total = std::numeric_limits<double>::quiet_NaN()};
    return {.total = finished && text == p.answer ? 1.0 : 0.0};
  }
  std::string alphabet() const override { return "0123456789"; }
  int max_prompt_chars() const override { return 2; }
  int max_answer_chars() const override { return 1; }
  std::uint64_t size(Split) const override { return files ? 5 : 0; }
  std::uint64_t different(Split, std::uint64_t enough) const override { return std::min<std::uint64_t>(enough, files ? 5 : 10); }
  bool files = false;
};

TEST(Rewards, ErrorsAreCountedAndZeroStaysZero) {
  const FakeTask task;
  const Tokenizer tokenizer = Tokenizer::characters(task.alphabet());
  const std::int32_t eos = *tokenizer.eos_id();
  RolloutBatch batch;
  batch.problems = {task.problem(Split::train, 0)};
  for (const std::vector<std::int32_t>& response : std::vector<std::vector<std::int32_t>>{{1, eos}, {0, eos}, {2, eos}, {3, eos}, {eos}}) {
    Rollout r;
    r.tokens = {5};
    r.prompt_len = 1;
    r.tokens.insert(r.tokens.end(), response.begin(), response.end());
    batch.rollouts.push_back(r);
  }
  score_rewards(task, tokenizer, std::vector<std::int32_t>{eos}, batch);
  const auto& r = batch.rollouts;
  EXPECT_EQ(r[0].reward.total, 1.0);
  EXPECT_EQ(r[1].reward.total, 0.0);
  EXPECT_EQ(r[1].reward.status, RewardStatus::ok);
  EXPECT_EQ(r[2].reward.status, RewardStatus::error);
  EXPECT_EQ(r[3].reward.status, RewardStatus::error);
  EXPECT_EQ(r[3].reward.total, 0.0);
  EXPECT_EQ(r[4].reward.total, 0.0);
  EXPECT_EQ(r[4].reward.status, RewardStatus::ok);
}

TEST(ProblemStream, IsAFunctionOfThePosition) {
  FakeTask task;
  ProblemStream generated(task, 1);
  EXPECT_EQ(generated.train(7, 2)[1].prompt, "8");
  task.files = true;
  ProblemStream listed(task, 1);
  std::vector<std::string> straight, resumed;
  for (const Problem& p : listed.train(0, 15)) straight.push_back(p.prompt);
  for (const std::uint64_t at : {12, 3, 6}) {
    ProblemStream again(task, 1);
    for (const Problem& p : again.train(at, 3)) resumed.push_back(p.prompt);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(resumed[resumed.size() - 3 + i], straight[at + i]);
  }
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::string> seen(straight.begin() + std::ptrdiff_t(5 * epoch), straight.begin() + std::ptrdiff_t(5 * epoch + 5));
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(seen, (std::vector<std::string>{"0", "1", "2", "3", "4"}));
  }
  const auto held_out = ProblemStream(FakeTask{}, 1).held_out(3);
  ASSERT_EQ(held_out.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(held_out[i].prompt, std::to_string(i)) << "all different";
  int left = 2;
  EXPECT_EQ(generated.train(0, 1000, [&] { return left-- == 0; }).size(), 2u) << "stops when asked";
  EXPECT_EQ(listed.held_out(3).size(), 3u);
  EXPECT_EQ(listed.held_out(99).size(), 5u);
}

TEST(Recorded, ConsecutiveLinesOfAGroupAreAGroup) {
  const test::TempFolder folder;
  const auto file = folder / "recorded.jsonl";
  write_file(file, R"({"group": 4, "prompt_ids": [1, 2], "response_ids": [3], "logprobs": [-0.5], "reward": 1})"
                   "\n"
                   R"({"group": 4, "prompt_ids": [1, 2], "response_ids": [4, 5], "logprobs": [-0.5, -1], "reward": 0, "finish": "length"})"
                   "\n"
                   R"({"group": 2, "prompt_ids": [1], "response_ids": [6], "logprobs": [-2], "advantages": 0.5})"
                   "\n");
  const RecordedRollouts recorded(file, 10, 4);
  EXPECT_EQ(recorded.longest(), 4);
  const RolloutBatch batch = recorded.batch(1, 2);  // the second group, then round to the first
  ASSERT_EQ(batch.rollouts.size(), 3u);
  EXPECT_EQ(batch.rollouts[0].group, 0u);
  EXPECT_EQ(batch.rollouts[0].advantages, (std::vector<double>{.5}));
  EXPECT_EQ(batch.rollouts[1].group, 1u);
  EXPECT_EQ(batch.rollouts[2].group, 1u);
  EXPECT_EQ(batch.rollouts[2].finish, FinishReason::length);
  EXPECT_EQ(batch.rollouts[2].logprobs, (std::vector<float>{-.5f, -1}));
  EXPECT_EQ(batch.rollouts[1].reward.total, 1);
}

}  // namespace
}  // namespace plumb
