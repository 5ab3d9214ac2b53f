#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>

#include "engine/data/jsonl.h"
#include "engine/data/order.h"
#include "kernels/core/error.h"
#include "model/files/files.h"
#include "tests/support/temp_folder.h"

namespace plumb {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Jsonl : public testing::Test {
 protected:
  std::filesystem::path written(std::string_view text) const {
    write_file(file_, text);
    return file_;
  }
  SftData sft(std::string_view text, const JsonlOptions& options) const { return read_sft_jsonl(written(text), options); }
  std::string sft_error(std::string_view text, const JsonlOptions& options) const {
    try {
      sft(text, options);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
  std::string rollout_error(std::string_view text) const {
    try {
      read_rollouts_jsonl(written(text), 27, 4);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }

  const test::TempFolder folder_;
  const std::filesystem::path file_ = folder_ / "lines.jsonl";
  // One token a letter, a = 0.
  JsonlOptions options_ = {.encode =
                               [](std::string_view text) {
                                 std::vector<std::int32_t> ids;
                                 for (const char c : text) ids.push_back(c - 'a');
                                 return ids;
                               },
                           .eos_id = 26,
                           .vocab_size = 27};
};

TEST_F(Jsonl, ReadsThreeKindsOfExamples) {
  const SftData data =
      sft("{\"prompt\":\"ab\",\"response\":\"c\",\"more\":1}\n\n"
          "{\"text\":\"abc\"}\r\n"
          "{\"ids\":[3,4,5],\"prompt_len\":2}",
          options_);
  ASSERT_EQ(data.examples.size(), 3u);
  EXPECT_THAT(data.examples[0].tokens, ElementsAre(0, 1, 2, 26));  // EOS is trained
  EXPECT_EQ(data.examples[0].prompt_len, 2);
  EXPECT_THAT(data.examples[1].tokens, ElementsAre(0, 1, 2));
  EXPECT_EQ(data.examples[1].prompt_len, 1);
  EXPECT_EQ(data.examples[1].line, 3);
  EXPECT_THAT(data.examples[2].tokens, ElementsAre(3, 4, 5));
  EXPECT_EQ(data.examples[2].prompt_len, 2);
}

TEST_F(Jsonl, Case41EmptyAndMissingAreErrorsWithTheLineOrAreCounted) {
  const std::string good = "{\"prompt\":\"a\",\"response\":\"b\"}\n";
  EXPECT_THAT(sft_error(good + "{\"prompt\":\"\",\"response\":\"b\"}\n", options_), HasSubstr(".jsonl:2: \"prompt\" is empty"));
  EXPECT_THAT(sft_error(good + "{\"prompt\":\"  \",\"response\":\"b\"}\n", options_), HasSubstr(".jsonl:2: \"prompt\" is empty"));
  EXPECT_THAT(sft_error(good + good + "{\"prompt\":\"a\"}", options_), HasSubstr(".jsonl:3: key \"response\" is missing"));
  EXPECT_THAT(sft_error("{\"promt\":\"a\"}", options_), HasSubstr(".jsonl:1: keys are missing"));
  EXPECT_THAT(sft_error("{\"ids\":[],\"prompt_len\":1}", options_), HasSubstr(".jsonl:1: \"ids\" is empty"));
  EXPECT_THAT(sft_error("{\"text\":\"a\"}", options_), HasSubstr(".jsonl:1: there is nothing to train on"));
  EXPECT_THAT(sft_error("{\"ids\":[1,2],\"prompt_len\":2}", options_), HasSubstr(".jsonl:1: there is nothing to train on"));
  JsonlOptions skip = options_;
  skip.skip_empty = true;
  const SftData data = sft(good + "{\"prompt\":\" \",\"response\":\"b\"}\n{\"text\":\"\"}\n{\"text\":\"a\"}\n" + good, skip);
  EXPECT_EQ(data.examples.size(), 2u);
  EXPECT_EQ(data.skipped_empty, 3);
  EXPECT_THAT(sft_error(good + "{\"prompt\":\"a\"}", skip), HasSubstr(":2: key \"response\" is missing"));
}

TEST_F(Jsonl, MalformedLinesAreRefusedWithTheirLine) {
  EXPECT_THAT(sft_error("{\"text\":\"ab\"}\n{\"text\":", options_), HasSubstr(".jsonl:2"));
  EXPECT_THAT(sft_error("[1]", options_), HasSubstr(":1: each line must be a JSON object"));
  EXPECT_THAT(sft_error("{\"text\":3}", options_), HasSubstr(":1: \"text\" must be a string"));
  EXPECT_THAT(sft_error("{\"ids\":[1,27],\"prompt_len\":1}", options_), HasSubstr("token id 27 is not in the vocabulary of 27"));
  EXPECT_THAT(sft_error("{\"ids\":[1,-1],\"prompt_len\":1}", options_), HasSubstr("token id -1"));
  EXPECT_THAT(sft_error("{\"ids\":[1,1.5],\"prompt_len\":1}", options_), HasSubstr("must be a list of token ids"));
  EXPECT_THAT(sft_error("{\"ids\":[1,2],\"prompt_len\":3}", options_), HasSubstr("\"prompt_len\" is 3; it must be 1 to 2"));
  EXPECT_THAT(sft_error("\n \n", options_), HasSubstr("no examples"));
  EXPECT_THAT(sft_error("{\"text\":\"a\"}", {.vocab_size = 3}), HasSubstr("there is no tokenizer"));
}

TEST_F(Jsonl, Case40TooLongExamplesByTheirPolicyCountedInTokens) {
  const std::string text = "{\"text\":\"abc\"}\n{\"prompt\":\"abcd\",\"response\":\"e\"}\n";
  JsonlOptions o = options_;
  o.max_tokens = 5;
  EXPECT_THAT(sft_error(text, o), HasSubstr(".jsonl:2: 6 tokens; at most 5 fit"));
  o.too_long = TooLong::drop;
  EXPECT_EQ(sft(text, o).examples.size(), 1u);
  EXPECT_EQ(sft(text, o).dropped, 1);
  o.too_long = TooLong::left;
  EXPECT_THAT(sft(text, o).examples[1].tokens, ElementsAre(1, 2, 3, 4, 26));
  EXPECT_EQ(sft(text, o).examples[1].prompt_len, 3);
  o.too_long = TooLong::right;
  EXPECT_THAT(sft(text, o).examples[1].tokens, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(sft(text, o).truncated, 1);
  o.max_tokens = 4;  // the prompt alone
  EXPECT_EQ(sft(text, o).examples.size(), 1u);
  EXPECT_EQ(sft(text, o).dropped, 1);
}

TEST_F(Jsonl, ReadsRecordedRollouts) {
  const auto rollouts = read_rollouts_jsonl(
      written("{\"group\":4,\"prompt_ids\":[1,2],\"response_ids\":[3,26],\"logprobs\":[-0.5,-1],\"reward\":1,\"finish\":\"stop\"}\n"
              "{\"group\":4,\"prompt_ids\":[1],\"response_ids\":[3,4],\"logprobs\":[0,-1],\"advantages\":[0.5,-2],\"finish\":\"length\"}\n"
              "{\"group\":5,\"prompt_ids\":[1],\"response_ids\":[3,4],\"logprobs\":[0,-1],\"advantages\":2}\n"),
      27, 4);
  ASSERT_EQ(rollouts.size(), 3u);
  EXPECT_THAT(rollouts[0].prompt, ElementsAre(1, 2));
  EXPECT_THAT(rollouts[0].response, ElementsAre(3, 26));
  EXPECT_THAT(rollouts[0].logprobs, ElementsAre(-0.5f, -1.0f));
  EXPECT_EQ(rollouts[0].reward, 1.0);
  EXPECT_THAT(rollouts[0].advantages, IsEmpty());
  EXPECT_TRUE(rollouts[0].finished);
  EXPECT_EQ(rollouts[1].reward, std::nullopt);
  EXPECT_THAT(rollouts[1].advantages, ElementsAre(0.5f, -2.0f));
  EXPECT_FALSE(rollouts[1].finished);
  EXPECT_THAT(rollouts[2].advantages, ElementsAre(2.0f, 2.0f));
  EXPECT_EQ(rollouts[2].group, 5);
}

TEST_F(Jsonl, BadRolloutsAreRefusedWithTheirLine) {
  const std::string head = "{\"group\":0,\"prompt_ids\":[1],\"response_ids\":[3,4],";
  EXPECT_THAT(rollout_error(head + "\"logprobs\":[0],\"reward\":1}"), HasSubstr(":1: 1 \"logprobs\" for 2 response tokens"));
  EXPECT_THAT(rollout_error(head + "\"logprobs\":[0,null],\"reward\":1}"), HasSubstr("\"logprobs\" must be a finite number"));
  EXPECT_THAT(rollout_error(head + "\"logprobs\":[0,0]}"), HasSubstr("give either \"reward\" or \"advantages\""));
  EXPECT_THAT(rollout_error(head + "\"logprobs\":[0,0],\"reward\":1,\"advantages\":1}"), HasSubstr("give either"));
  EXPECT_THAT(rollout_error(head + "\"logprobs\":[0,0],\"advantages\":[1]}"), HasSubstr("1 \"advantages\" for 2 response tokens"));
  EXPECT_THAT(rollout_error("{\"group\":0,\"prompt_ids\":[],\"response_ids\":[3],\"logprobs\":[0],\"reward\":1}"),
              HasSubstr("\"prompt_ids\" is empty"));
  EXPECT_THAT(rollout_error("\n"), HasSubstr("no rollouts"));
  EXPECT_THAT(rollout_error("{\"group\":0,\"prompt_ids\":[1,2,3],\"response_ids\":[3,4],\"logprobs\":[0,0],\"reward\":1}"),
              HasSubstr(":1: 5 tokens; at most 4 fit"));
}

TEST_F(Jsonl, RolloutsOfARealServer) {
  const char* shared = std::getenv("PLUMB_SHARED");
  if (shared == nullptr) GTEST_SKIP() << "PLUMB_SHARED is not set: the recorded rollouts are third-party data";
  const auto rollouts = read_rollouts_jsonl(std::filesystem::path(shared) / "conformance/vllm/smollm2_eager.jsonl", 49152, 2048);
  EXPECT_EQ(rollouts.size(), 64u);
  EXPECT_EQ(std::count_if(rollouts.begin(), rollouts.end(), [](const RecordedRollout& r) { return r.group == 0; }), 4);
}

TEST(ExampleOrder, EachEpochIsANewPermutationAndAPureFunction) {
  constexpr std::uint32_t kCount = 50;
  ExampleOrder order(7, kCount, true);
  std::vector<std::uint32_t> first;
  std::vector<std::uint32_t> second;
  for (std::uint32_t i = 0; i < kCount; ++i) first.push_back(order.at(i));
  for (std::uint32_t i = 0; i < kCount; ++i) second.push_back(order.at(kCount + i));
  EXPECT_NE(first, second);
  EXPECT_EQ(order.at(0), first[0]);
  EXPECT_EQ(ExampleOrder(7, kCount, true).at(kCount + 3), second[3]);  // as after a resume
  EXPECT_NE(permutation(8, 0, kCount), first);
  EXPECT_EQ(permutation(7, 1, kCount), second);
  for (auto* v : {&first, &second}) {
    std::sort(v->begin(), v->end());
    std::vector<std::uint32_t> all(kCount);
    std::iota(all.begin(), all.end(), 0u);
    EXPECT_EQ(*v, all);
  }
}

TEST(ExampleOrder, FileOrderWithoutShuffle) {
  ExampleOrder order(7, 3, false);
  for (std::uint64_t i = 0; i < 7; ++i) EXPECT_EQ(order.at(i), i % 3);
  EXPECT_THROW(ExampleOrder(7, 0, true), Error);
}

TEST(ExampleOrder, EveryPlaceIsEquallyLikely) {
  // 3! permutations over 6,000 seeds: each within 5 standard deviations of 1,000.
  int counts[3][3] = {};
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    const auto p = permutation(seed, 0, 3);
    ++counts[p[0]][p[1]];
  }
  for (int a = 0; a < 3; ++a)
    for (int b = 0; b < 3; ++b) EXPECT_NEAR(counts[a][b], a == b ? 0 : 1000, a == b ? 0 : 5 * 29);
}

}  // namespace
}  // namespace plumb
