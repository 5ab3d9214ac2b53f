#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "kernels/core/error.h"
#include "model/files/files.h"
#include "rl/tasks/addition.h"
#include "rl/tasks/digit_completion.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_folder.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> out;
  for (const char c : text) out.emplace_back(1, c);
  return out;
}
/// A response of single characters that ends with EOS.
std::vector<std::string> with_eos(const std::string& text) {
  auto out = characters(text);
  out.emplace_back();
  return out;
}

/// Both splits of many problems: written in the alphabet, within the sizes, reproducible, and disjoint.
void check_splits(const TaskConfig& config, std::uint64_t count) {
  std::map<Split, std::set<std::string>> prompts;
  for (const std::uint64_t seed : {3, 4}) {
    const auto task = make_task(config, seed);
    const std::string alphabet = task->alphabet();
    EXPECT_EQ(task->size(Split::train), 0u);
    for (const Split split : {Split::train, Split::held_out}) {
      for (std::uint64_t i = 0; i < count; ++i) {
        const Problem p = task->problem(split, i);
        ASSERT_EQ((p.prompt + p.answer).find_first_not_of(alphabet), std::string::npos) << p.prompt;
        ASSERT_LE(int(p.prompt.size()), task->max_prompt_chars()) << p.prompt;
        ASSERT_LE(int(p.answer.size()), task->max_answer_chars()) << p.answer;
        ASSERT_EQ(make_task(config, seed)->problem(split, i).prompt, p.prompt);
        ASSERT_EQ(task->reward(p, with_eos(p.answer), true).total, 1.0);
        prompts[split].insert(p.prompt);
      }
    }
  }
  std::vector<std::string> both;
  std::set_intersection(prompts[Split::train].begin(), prompts[Split::train].end(), prompts[Split::held_out].begin(),
                        prompts[Split::held_out].end(), std::back_inserter(both));
  EXPECT_TRUE(both.empty());
  EXPECT_GT(prompts[Split::held_out].size(), 3u);
}

TEST(AdditionTest, WritesNumbersAsAsked) {
  const auto solve = [](bool reversed, bool zero_pad, const std::string& prompt) {
    return Addition({.digit_order = reversed ? DigitOrder::reversed : DigitOrder::natural, .zero_pad = zero_pad}, 0).solve(prompt);
  };
  EXPECT_EQ(solve(true, true, "210+900="), "1200");
  EXPECT_EQ(solve(false, true, "012+009="), "0021");
  EXPECT_EQ(solve(true, false, "21+9="), "12");
  EXPECT_EQ(solve(false, false, "12+9="), "21");
  EXPECT_EQ(solve(false, false, "0+0="), "0");
  EXPECT_EQ(solve(false, true, "999+999="), "1998");
  EXPECT_EQ(solve(true, true, "999+999="), "8991");
  for (const char* bad : {"", "1+2", "1-2=", "+2=", "1+=", "a+1=", "1+2+3="}) EXPECT_EQ(solve(true, true, bad), std::nullopt) << bad;
}

TEST(AdditionTest, AnswersAreSums) {
  for (const bool reversed : {true, false}) {
    for (const bool zero_pad : {true, false}) {
      const Addition task({.digits = 4, .digit_order = reversed ? DigitOrder::reversed : DigitOrder::natural, .zero_pad = zero_pad}, 1);
      const auto number = [&](std::string text) {
        if (reversed) std::reverse(text.begin(), text.end());
        return std::stoll(text);
      };
      for (std::uint64_t i = 0; i < 500; ++i) {
        const Problem p = task.problem(Split::train, i);
        const auto plus = p.prompt.find('+');
        ASSERT_EQ(number(p.prompt.substr(0, plus)) + number(p.prompt.substr(plus + 1, p.prompt.size() - plus - 2)), number(p.answer))
            << p.prompt;
        ASSERT_TRUE(!zero_pad || (p.prompt.size() == 10 && p.answer.size() == 5)) << p.prompt;
      }
    }
  }
}

TEST(AdditionTest, AsksInOtherWords) {
  const TaskConfig config{
      .digits = 2, .digit_order = DigitOrder::natural, .zero_pad = false, .question = "<|user|>\nWhat is {a} + {b}? 1 number.\n"};
  const Addition task(config, 7);
  check_splits(config, 200);
  EXPECT_EQ(task.solve("<|user|>\nWhat is 17 + 39? 1 number.\n"), "56");
  for (const char* bad :
       {"17+39=", "<|user|>\nWhat is 17 + 39?", "<|user|>\nWhat is 1 + 2 + 3? 1 number.\n", "<|user|>\nWhat is ? 1 number.\n"})
    EXPECT_EQ(task.solve(bad), std::nullopt) << bad;
  EXPECT_EQ(Addition({}, 0).alphabet(), "0123456789+=");
  const auto refusal = [](const std::string& question) { return error_of([&] { make_task({.question = question}, 0); }); };
  for (const char* wrong : {"", "{a}+", "{b}+{a}=", "{a}+{b}={a}"}) EXPECT_THAT(refusal(wrong), HasSubstr("each once, is right")) << wrong;
  for (const char* wrong : {"1{a}+{b}=", "{a}{b}", "{a}0+{b}", "{a}+0{b}", "{a}+{b}0"})
    EXPECT_THAT(refusal(wrong), HasSubstr("a digit touches a number")) << wrong;
}

TEST(AdditionTest, SplitsAreDisjoint) {
  check_splits({.digits = 1}, 300);
  check_splits({.digits = 2, .zero_pad = false}, 500);
  check_splits({.digits = 3}, 500);
  check_splits({.digits = 18, .digit_order = DigitOrder::natural}, 20);
  // a+b never stands in the other split than b+a.
  const auto task = make_task({.digits = 1}, 0);
  std::map<std::set<char>, Split> seen;
  for (const Split split : {Split::train, Split::held_out}) {
    for (std::uint64_t i = 0; i < 300; ++i) {
      const std::string prompt = task->problem(split, i).prompt;
      ASSERT_EQ(seen.emplace(std::set<char>{prompt[0], prompt[2]}, split).first->second, split) << prompt;
    }
  }
}

TEST(AdditionTest, RewardsOnlyTheWholeAnswerAndEos) {
  const Addition task({}, 0);
  const Problem p{.prompt = "210+900=", .answer = "1200"};
  EXPECT_EQ(task.reward(p, with_eos("1200"), true).total, 1);
  EXPECT_EQ(task.reward(p, {"12", "00", ""}, true).total, 1);
  EXPECT_EQ(task.reward(p, characters("1200"), false).total, 0);
  EXPECT_EQ(task.reward(p, with_eos("120"), true).total, 0);
  EXPECT_EQ(task.reward(p, with_eos("12000"), true).total, 0);
  EXPECT_EQ(task.reward(p, {"12", "", "00", ""}, true).total, 0);
  EXPECT_EQ(task.reward(p, {""}, true).total, 0);
  EXPECT_EQ(task.reward(p, {}, false).total, 0);
  EXPECT_TRUE(task.reward(p, with_eos("1200"), true).per_token.empty());
}

TEST(DigitCompletionTest, ContinuesTheSequence) {
  const DigitCompletion task({}, 0);
  EXPECT_EQ(task.solve("8,3:9,4"), "7,2,6,1");
  EXPECT_EQ(task.solve("5,8:9,0"), "");
  EXPECT_EQ(task.solve("9,0:9,2"), "0,0");
  EXPECT_EQ(task.solve("10,15:20,3"), "0,5,10");
  for (const char* bad : {"", "1,2:3", "1,2:3,", "1,2,3,4", "1,2:0,4", "-1,2:3,4", "1,2:3,4x", "1,2:3,99999999"}) {
    EXPECT_EQ(task.solve(bad), std::nullopt) << bad;
  }
}

TEST(DigitCompletionTest, SplitsAreDisjoint) {
  check_splits({.name = "digit_completion"}, 500);
  check_splits({.name = "digit_completion", .min_modulus = 2, .max_modulus = 20, .min_terms = 1, .max_terms = 12}, 500);
}

TEST(DigitCompletionTest, RewardsLeadingCharacters) {
  const DigitCompletion task({.per_token_reward = true}, 0);
  const Problem p{.prompt = "8,3:9,2", .answer = "7,2"};
  const auto reward = [&](const std::vector<std::string>& pieces, bool finished) { return task.reward(p, pieces, finished); };
  EXPECT_EQ(reward(with_eos("7,2"), true).total, 1);
  EXPECT_THAT(reward(with_eos("7,2"), true).per_token, ElementsAre(.25, .25, .25, .25));
  EXPECT_THAT(reward(characters("7,2"), false).per_token, ElementsAre(.25, .25, .25));
  EXPECT_THAT(reward(with_eos("7,3"), true).per_token, ElementsAre(.25, .25, 0, 0));
  EXPECT_THAT(reward(with_eos("7,"), true).per_token, ElementsAre(.25, .25, 0));
  EXPECT_THAT(reward(with_eos("7,22"), true).per_token, ElementsAre(.25, .25, .25, 0, 0));
  EXPECT_THAT(reward({"7,", "3", "2"}, false).per_token, ElementsAre(.5, 0, 0));
  EXPECT_THAT(reward({"7,2:", ""}, true).per_token, ElementsAre(.75, 0));
  EXPECT_EQ(reward({"7,2:", ""}, true).total, .75);
  EXPECT_THAT(reward({""}, true).per_token, ElementsAre(0));
  EXPECT_EQ(task.reward({.prompt = "5,8:9,0", .answer = ""}, {""}, true).total, 1);
  EXPECT_TRUE(DigitCompletion({}, 0).reward(p, with_eos("7,2"), true).per_token.empty());
}

/// Counts what is drawn until nothing new has come for long.
std::size_t prompts_drawn(const Task& task, Split split, std::uint64_t draws) {
  std::set<std::string> prompts;
  for (std::uint64_t i = 0; i < draws; ++i) prompts.insert(task.problem(split, i).prompt);
  return prompts.size();
}

TEST(TaskTest, CountsItsDifferentProblems) {
  for (const TaskConfig& config :
       {TaskConfig{.digits = 1}, TaskConfig{.digits = 1, .digit_order = DigitOrder::natural}, TaskConfig{.name = "digit_completion"},
        TaskConfig{.name = "digit_completion", .min_modulus = 2, .max_terms = 1}}) {
    const auto task = make_task(config, 1);
    std::size_t both = 0;
    for (const Split split : {Split::train, Split::held_out}) {
      const std::uint64_t all = task->different(split, 1'000'000);
      EXPECT_EQ(all, prompts_drawn(*task, split, 40 * all)) << config.name;
      EXPECT_EQ(task->different(split, 3), 3u) << config.name;
      both += all;
    }
    EXPECT_TRUE(config.name != "addition" || both == 100u) << both;
  }
  EXPECT_EQ(make_task({.digits = 18}, 1)->different(Split::held_out, 5000), 5000u);
}

class TaskFileTest : public testing::Test {
 protected:
  TaskConfig listed(const std::string& train, const std::string& held_out) const {
    write_file(folder_ / "train.jsonl", train);
    write_file(folder_ / "held_out.jsonl", held_out);
    return {.name = "digit_completion",
            .train_file = (folder_ / "train.jsonl").string(),
            .held_out_file = (folder_ / "held_out.jsonl").string()};
  }
  const test::TempFolder folder_;
};

TEST_F(TaskFileTest, ReadsProblems) {
  const auto task = make_task(listed("{\"prompt\":\"8,3:9,4\"}\n\n{\"prompt\":\"free\",\"answer\":\"text\"}\n",
                                     "{\"prompt\":[{\"role\":\"user\",\"content\":\"1,2:9,1\"}]}"),
                              0);
  EXPECT_EQ(task->size(Split::train), 2u);
  EXPECT_EQ(task->size(Split::held_out), 1u);
  EXPECT_EQ(task->problem(Split::train, 0).answer, "7,2,6,1");
  EXPECT_EQ(task->problem(Split::train, 1).answer, "text");
  EXPECT_EQ(task->problem(Split::held_out, 0).prompt, "1,2:9,1");
  EXPECT_EQ(task->max_prompt_chars(), 7);
  EXPECT_EQ(task->max_answer_chars(), 7);
}

TEST_F(TaskFileTest, NamesTheLineOfABadProblem) {  // case 41
  const std::string good = "{\"prompt\":\"8,3:9,4\"}\n";
  const auto error = [&](const std::string& line) { return error_of([&] { make_task(listed(good + line, good), 0); }); };
  EXPECT_THAT(error("{}"), HasSubstr("train.jsonl:2: no prompt"));
  EXPECT_THAT(error("{\"prompt\":\"  \"}"), HasSubstr("train.jsonl:2: the prompt is empty"));
  EXPECT_THAT(error("{\"prompt\":\"1+1\"}"), HasSubstr("train.jsonl:2: no answer, and prompt '1+1' is not one of this task"));
  EXPECT_THAT(error("{\"prompt\":3}"), HasSubstr("train.jsonl:2: prompt is neither text nor"));
  EXPECT_THAT(error("{\"prompt\":\"x\",\"answer\":3}"), HasSubstr("train.jsonl:2: \"answer\" must be a string"));
  EXPECT_THAT(error("{\"prompt\":"), HasSubstr("train.jsonl:2: not valid JSON"));
  EXPECT_THAT(error_of([&] { make_task(listed("\n", good), 0); }), HasSubstr("holds no problem"));
  EXPECT_THAT(error_of([] { make_task({.train_file = "x"}, 0); }), HasSubstr("go together"));
}

TEST(TaskTest, RefusesSettingsByName) {
  const auto error = [](const TaskConfig& config) { return error_of([&] { make_task(config, 0); }); };
  EXPECT_THAT(error({.name = "adition"}), HasSubstr("did you mean 'addition'"));
  EXPECT_THAT(error({.digits = 0}), HasSubstr("task.digits is 0"));
  EXPECT_THAT(error({.digits = 19}), HasSubstr("task.digits is 19"));
  EXPECT_THAT(error({.per_token_reward = true}), HasSubstr("task.per_token_reward"));
  EXPECT_THAT(error({.name = "digit_completion", .min_modulus = 10}), HasSubstr("task.min_modulus 10"));
  EXPECT_THAT(error({.name = "digit_completion", .max_terms = -1}), HasSubstr("task.min_terms"));
}

TEST(DigitCompletionConformanceTest, EveryPromptOfTheDataSet) {
  const char* shared = std::getenv("PLUMB_SHARED");
  if (shared == nullptr) GTEST_SKIP() << "set PLUMB_SHARED to the folder with the third-party data";
  const fs::path folder = fs::path(shared) / "data/datasets/digit-completion";
  const auto task = make_task(
      {.name = "digit_completion", .train_file = (folder / "train.jsonl").string(), .held_out_file = (folder / "test.jsonl").string()}, 0);
  EXPECT_EQ(task->size(Split::train), 800u);
  EXPECT_EQ(task->size(Split::held_out), 200u);
  for (const Split split : {Split::train, Split::held_out}) {
    for (std::uint64_t i = 0; i < task->size(split); ++i) {
      const Problem p = task->problem(split, i);
      int first = 0, second = 0, max = 0, n = 0;
      ASSERT_EQ(std::sscanf(p.prompt.c_str(), "%d,%d:%d,%d", &first, &second, &max, &n), 4);
      // Term j of the sequence is first + j * (second - first), modulo max; the answer starts at j = 2.
      std::string expected;
      for (int j = 2; j < n + 2; ++j) {
        const int term = ((first + j * (second - first)) % max + max) % max;
        expected += fmt::format("{}{}", j > 2 ? "," : "", term);
      }
      ASSERT_EQ(p.answer, expected) << p.prompt;
      // The defaults generate problems of just this kind.
      ASSERT_TRUE(max == 9 && first <= 9 && second < 9 && n <= 9) << p.prompt;
    }
  }
}

}  // namespace
}  // namespace plumb
