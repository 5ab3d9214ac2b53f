#include "engine/sampler/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>

#include "engine/engine_testing.h"
#include "kernels/core/error.h"

namespace plumb {
namespace {

using namespace testing_engine;  // NOLINT(google-build-using-namespace)
using testing::HasSubstr;

using Generated = std::vector<std::vector<GeneratedSample>>;

constexpr std::int32_t kEos = 7;

SamplerOptions options_of(int max_sequences, std::int64_t prefill_tokens, std::int64_t kv_positions) {
  return {.max_sequences = max_sequences,
          .prefill_tokens = prefill_tokens,
          .kv_positions = kv_positions,
          .max_positions = 40,
          .eos_ids = {kEos}};
}

/// Prompts of 1 to 17 tokens, 1 to 5 samples, different limits.
std::vector<GenerationRequest> mixed_requests(const ModelConfig& c, float temperature, std::uint64_t seed = 3) {
  std::vector<GenerationRequest> out;
  for (const std::int64_t length : {5, 1, 12, 17, 2, 8, 9}) {
    const auto i = std::uint32_t(out.size());
    out.push_back({.prompt = random_ids(c, length, 50 + i),
                   .key = {.seed = seed, .purpose = Purpose::sampling, .step = 4, .draw = i},
                   .samples = 1 + int(i * 2) % 5,
                   .max_new_tokens = i == 4 ? 1 : 20 - int(i),
                   .params = {.temperature = temperature}});
  }
  return out;
}

bool same(const GeneratedSample& a, const GeneratedSample& b) {
  return a.tokens == b.tokens && bytes_of_floats(a.logprobs) == bytes_of_floats(b.logprobs) &&
         bytes_of_floats(a.logprobs_kept) == bytes_of_floats(b.logprobs_kept) && a.argmax == b.argmax && a.finish == b.finish;
}

bool same(const Generated& a, const Generated& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), [](const auto& s, const auto& t) { return same(s, t); });
  });
}

Generated generate(Context& ctx, const Trainer& trainer, const Weights& weights, const SamplerOptions& options,
                   const std::vector<GenerationRequest>& requests) {
  return Sampler(trainer.model_config(), trainer.numerics(), {}, options).generate(ctx, weights, requests);
}

/// The trainer's scores of what was sampled, compared bit for bit with what the sampler recorded.
void expect_parity(Context& ctx, Trainer& trainer, const std::vector<GenerationRequest>& requests, const Generated& generated,
                   float temperature) {
  std::vector<Ids> tokens;
  std::vector<TrainSequence> views;
  std::vector<float> logprobs;
  std::vector<std::int32_t> argmax;
  for (std::size_t i = 0; i < requests.size(); ++i)
    for (const GeneratedSample& s : generated[i]) {
      tokens.push_back(requests[i].prompt);
      tokens.back().insert(tokens.back().end(), s.tokens.begin(), s.tokens.end());
      logprobs.insert(logprobs.end(), s.logprobs.begin(), s.logprobs.end());
      argmax.insert(argmax.end(), s.argmax.begin(), s.argmax.end());
    }
  std::size_t next = 0;
  for (std::size_t i = 0; i < requests.size(); ++i)
    for (std::size_t s = 0; s < generated[i].size(); ++s)
      views.push_back({.tokens = tokens[next++], .prompt_len = std::int64_t(requests[i].prompt.size())});
  const TokenScores scores = trainer.score(ctx, trainer.weights(), views, temperature);
  ASSERT_GT(scores.logprob.size(), 100u);
  EXPECT_TRUE(bytes_of_floats(scores.logprob) == bytes_of_floats(logprobs));
  EXPECT_TRUE(scores.argmax == argmax);
}

struct Setting {
  const char* what;
  int threads;
  SamplerOptions options;
};

const Setting kSettings[] = {
    {"all at once", 1, options_of(64, 2048, 2000)},          {"one at a time", 1, options_of(1, 2048, 2000)},
    {"3 at a time, chunks of 5", 2, options_of(3, 5, 2000)}, {"chunks of 1, 3 threads", 3, options_of(64, 1, 2000)},
    {"a cache that holds two", 2, options_of(64, 64, 70)},   {"a cache that holds one", 1, options_of(4, 7, 36)},
};

/// A preset as a sampler can compute it.
Numerics sampled_numerics(std::string_view name) {
  Numerics n = preset(name);
  n.reductions = without_sequence_end(n.reductions);
  return n;
}

class Parity : public testing::TestWithParam<std::tuple<Family, std::string_view>> {};

// The claim: what the sampler records equals what the trainer computes, bit for bit, whatever the batch, the order of
// admission, the chunks, the threads and the instruction set; at T = 1 and T = .7 (case 17); after updates too (case 22).
TEST_P(Parity, SamplerEqualsTrainer) {
  const auto [family, numerics] = GetParam();
  const ModelConfig c = small_config(family, family != Family::llama);
  for (const Isa isa : machine_isas()) {
    Context ctx(2, isa);
    auto trainer = make_trainer(ctx, c, sampled_numerics(numerics));
    for (const float temperature : {1.0f, 0.7f}) {
      const auto requests = mixed_requests(c, temperature);
      const Generated want = generate(ctx, *trainer, trainer->weights(), kSettings[0].options, requests);
      expect_parity(ctx, *trainer, requests, want, temperature);
      for (const Setting& s : kSettings) {
        Context other(s.threads, isa);
        EXPECT_TRUE(same(generate(other, *trainer, trainer->weights(), s.options, requests), want)) << s.what;
      }
      Sampler separate(c, preset(numerics), {.merged_matmuls = false}, kSettings[2].options);
      EXPECT_TRUE(same(separate.generate(ctx, trainer->weights(), requests), want));
      const Sequences data = mixed_sequences(c);
      const auto views = data.views();
      trainer->accumulate(ctx, views, temperature, weighted_objective(views));
      ASSERT_FALSE(trainer->step(ctx).skipped);
      const Generated after = generate(ctx, *trainer, trainer->weights(), kSettings[2].options, requests);
      expect_parity(ctx, *trainer, requests, after, temperature);
      EXPECT_FALSE(same(after, want));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Parity, testing::Combine(testing::ValuesIn(kFamilies), testing::ValuesIn(usable_presets())),
                         [](const auto& p) {
                           return std::string(name_of(std::get<0>(p.param))) + "_" + std::string(std::get<1>(p.param));
                         });

class ParityShapes : public testing::TestWithParam<std::string_view> {};

// Positions beyond the attention's first tile of keys, and prompts that end inside one.
TEST_P(ParityShapes, SamplerEqualsTrainerAcrossTilesOfKeys) {
  ModelConfig c = small_config(Family::qwen3);
  c.layers = 1;
  c.max_positions = 1200;
  Context ctx(2);
  auto trainer = make_trainer(ctx, c, sampled_numerics(GetParam()), {}, fast_optimizer(), 1200);
  std::vector<GenerationRequest> requests;
  for (const std::int64_t length : {505, 1023, 700})
    requests.push_back({.prompt = random_ids(c, length, 1),
                        .key = {.seed = 2, .purpose = Purpose::sampling, .draw = std::uint32_t(length)},
                        .samples = 3,
                        .max_new_tokens = 20});
  SamplerOptions options = options_of(4, 300, 0);
  options.max_positions = 1200;
  options.eos_ids = {};
  expect_parity(ctx, *trainer, requests, generate(ctx, *trainer, trainer->weights(), options, requests), 1.0f);
}

// One kv head, a vocabulary of seven, widths that are no multiple of anything; and prompts of one token.
TEST_P(ParityShapes, SamplerEqualsTrainerInOddShapes) {
  for (const Family family : kFamilies) {
    const ModelConfig c = testing_model::odd_config(family);
    Context ctx(2);
    auto trainer = make_trainer(ctx, c, sampled_numerics(GetParam()));
    const auto requests = mixed_requests(c, 0.7f);
    SamplerOptions options = options_of(3, 5, 2000);
    options.eos_ids = {};
    const Generated one = generate(ctx, *trainer, trainer->weights(), options, requests);
    expect_parity(ctx, *trainer, requests, one, 0.7f);
    options.max_sequences = 1;
    Context three(3);
    EXPECT_TRUE(same(generate(three, *trainer, trainer->weights(), options, requests), one));
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, ParityShapes, testing::ValuesIn(usable_presets()), [](const auto& p) { return std::string(p.param); });

class SamplerTest : public testing::Test {
 protected:
  Generated run(const std::vector<GenerationRequest>& requests) {
    return generate(ctx_, *trainer_, trainer_->weights(), kSettings[0].options, requests);
  }
  ModelConfig config_ = small_config(Family::qwen3);
  Context ctx_{2};
  std::unique_ptr<Trainer> trainer_ = make_trainer(ctx_, config_, preset("fused"));
};

TEST_F(SamplerTest, ResultsDoNotDependOnTheOrderOfRequestsOrOnTheGroup) {
  const auto requests = mixed_requests(config_, 1.0f);
  const Generated want = run(requests);
  auto reversed = requests;
  std::reverse(reversed.begin(), reversed.end());
  Generated got = run(reversed);
  std::reverse(got.begin(), got.end());
  EXPECT_TRUE(same(got, want));

  std::vector<GenerationRequest> one_by_one;  // each sample a request of its own
  for (const GenerationRequest& r : requests)
    for (int s = 0; s < r.samples; ++s) {
      one_by_one.push_back(r);
      one_by_one.back().samples = 1;
      one_by_one.back().first_sample = s;
    }
  const Generated single = run(one_by_one);
  std::size_t next = 0;
  for (const auto& group : want)
    for (const GeneratedSample& s : group) EXPECT_TRUE(same(single[next++][0], s));
}

TEST_F(SamplerTest, Case21SamplesDifferAndSeedsRepeat) {
  std::vector<GenerationRequest> requests;
  for (std::uint32_t i = 0; i < 20; ++i)
    requests.push_back({.prompt = random_ids(config_, 6, i),
                        .key = {.seed = 1, .purpose = Purpose::sampling, .draw = i},
                        .samples = 4,
                        .max_new_tokens = 8});
  const Generated first = run(requests);
  EXPECT_TRUE(same(run(requests), first));
  int all_equal = 0;
  for (const auto& group : first)
    all_equal += std::all_of(group.begin(), group.end(), [&](const GeneratedSample& s) { return s.tokens == group[0].tokens; });
  EXPECT_LT(all_equal, 2);
  requests[3].prompt = requests[2].prompt;  // the same prompt drawn twice gives two different groups
  const Generated twice = run(requests);
  EXPECT_FALSE(same(twice[2][0], twice[3][0]) && same(twice[2][1], twice[3][1]));
  for (GenerationRequest& r : requests) r.key.seed = 2;
  EXPECT_FALSE(same(run(requests), twice));
}

TEST_F(SamplerTest, Case22NothingOfAnEarlierGenerationIsLeft) {
  const auto requests = mixed_requests(config_, 1.0f);
  Sampler sampler(config_, preset("fused"), {}, kSettings[4].options);
  sampler.generate(ctx_, trainer_->weights(), requests);
  const Sequences data = mixed_sequences(config_);
  const auto views = data.views();
  trainer_->accumulate(ctx_, views, 1.0f, weighted_objective(views));
  trainer_->step(ctx_);
  EXPECT_TRUE(same(sampler.generate(ctx_, trainer_->weights(), requests), run(requests)));
}

TEST_F(SamplerTest, Case43MixedLengthsGiveEachPromptsOwnGreedyAnswer) {
  const auto requests = mixed_requests(config_, 0.0f);
  const Generated together = run(requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Generated alone = run({requests[i]});
    EXPECT_TRUE(same(alone[0][0], together[i][0]));
    EXPECT_EQ(together[i][0].tokens, together[i][0].argmax);
    for (const GeneratedSample& s : together[i]) EXPECT_EQ(s.tokens, together[i][0].tokens);
  }
}

TEST_F(SamplerTest, AnswersEndAtEosStopOrLength) {
  const auto requests = mixed_requests(config_, 1.0f);
  std::set<FinishReason> seen;
  std::size_t tokens = 0;
  for (const auto& group : run(requests))
    for (const GeneratedSample& s : group) {
      seen.insert(s.finish);
      tokens += s.tokens.size();
      EXPECT_EQ(std::count(s.tokens.begin(), s.tokens.end(), kEos), s.finish == FinishReason::eos ? 1 : 0);
      EXPECT_EQ(s.tokens.back() == kEos, s.finish == FinishReason::eos);
      EXPECT_EQ(s.logprobs.size(), s.tokens.size());
      EXPECT_EQ(s.logprobs_kept, s.logprobs);  // nothing is cut at top_k 0 and top_p 1
    }
  EXPECT_EQ(seen, (std::set{FinishReason::eos, FinishReason::length}));

  SamplerOptions stopping = kSettings[0].options;
  stopping.make_stop_matcher = [] {
    return [last = -1](std::int32_t token) mutable {
      const bool stop = last >= 30 && token >= 30;  // two large ids in a row
      last = token;
      return stop;
    };
  };
  std::size_t stopped = 0;
  std::size_t fewer = 0;
  const Generated cut = generate(ctx_, *trainer_, trainer_->weights(), stopping, requests);
  const Generated whole = run(requests);
  for (std::size_t i = 0; i < cut.size(); ++i)
    for (std::size_t s = 0; s < cut[i].size(); ++s) {
      const GeneratedSample& a = cut[i][s];
      fewer += a.tokens.size();
      EXPECT_TRUE(std::equal(a.tokens.begin(), a.tokens.end(), whole[i][s].tokens.begin()));
      if (a.finish != FinishReason::stop) continue;
      ++stopped;
      EXPECT_TRUE(a.tokens.size() >= 2 && a.tokens.end()[-1] >= 30 && a.tokens.end()[-2] >= 30);
    }
  EXPECT_GT(stopped, 0u);
  EXPECT_LT(fewer, tokens);
}

TEST_F(SamplerTest, TopKAndTopPRecordBothLogprobs) {
  auto requests = mixed_requests(config_, 1.0f);
  for (GenerationRequest& r : requests) {
    r.params.top_k = 5;
    r.params.top_p = 0.9f;
  }
  const Generated got = run(requests);
  expect_parity(ctx_, *trainer_, requests, got, 1.0f);  // the raw log-prob is the trainer's
  bool cut = false;
  for (const auto& group : got)
    for (const GeneratedSample& s : group)
      for (std::size_t t = 0; t < s.tokens.size(); ++t) {
        EXPECT_GE(s.logprobs_kept[t], s.logprobs[t]);
        cut |= s.logprobs_kept[t] > s.logprobs[t];
      }
  EXPECT_TRUE(cut);
}

TEST_F(SamplerTest, WhatNeverFitsIsRefusedWithItsNumbers) {
  const auto message = [&](const GenerationRequest& r, const SamplerOptions& o) -> std::string {
    try {
      generate(ctx_, *trainer_, trainer_->weights(), o, {r});
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  GenerationRequest r{.prompt = random_ids(config_, 12, 1), .max_new_tokens = 10};
  EXPECT_EQ(message(r, options_of(2, 8, 21)), "");  // exactly: the last token needs no place
  EXPECT_THAT(message(r, options_of(2, 8, 20)),
              HasSubstr("prompt 0 has 12 tokens; with max_new_tokens 10 it needs 21 positions of the KV cache, which has 20"));
  r.max_new_tokens = 29;
  EXPECT_THAT(message(r, options_of(2, 8, 100)),
              HasSubstr("prompt 0 has 12 tokens; with max_new_tokens 29 that is more than the 40 positions"));
  r.max_new_tokens = 0;
  EXPECT_THAT(message(r, options_of(2, 8, 100)), HasSubstr("max_new_tokens is 0"));
  r.max_new_tokens = 3;
  r.prompt = {};
  EXPECT_THAT(message(r, options_of(2, 8, 100)), HasSubstr("prompt 0 is empty"));
  r.prompt = {1, 61};
  EXPECT_THAT(message(r, options_of(2, 8, 100)), HasSubstr("token id 61"));
  EXPECT_THROW(Sampler(config_, preset("fused"), {}, options_of(0, 8, 100)), UsageError);
  EXPECT_THROW(generate(ctx_, *trainer_, Weights(config_, DType::f32), options_of(2, 8, 100), {}), Error);
}

TEST_F(SamplerTest, AnInterruptionLeavesTheSamplerUsable) {
  const auto requests = mixed_requests(config_, 1.0f);
  Sampler sampler(config_, preset("fused"), {}, kSettings[2].options);
  std::int64_t calls = 0;
  const Generated partial =
      sampler.generate(ctx_, trainer_->weights(), requests, [&](std::int64_t done, std::int64_t total, std::int64_t tokens) {
        EXPECT_LE(done, total);
        EXPECT_GE(tokens, done);
        return ++calls < 9;
      });
  EXPECT_TRUE(sampler.interrupted());
  EXPECT_EQ(calls, 9);
  EXPECT_EQ(partial.size(), requests.size());
  EXPECT_TRUE(same(sampler.generate(ctx_, trainer_->weights(), requests), run(requests)));
  EXPECT_FALSE(sampler.interrupted());
}

TEST_F(SamplerTest, NoRequestsAndNoSamples) {
  EXPECT_TRUE(run({}).empty());
  auto requests = mixed_requests(config_, 1.0f);
  const Generated want = run(requests);
  requests.insert(requests.begin() + 2, requests[0]);
  requests[2].samples = 0;
  Generated got = run(requests);
  EXPECT_TRUE(got[2].empty());
  got.erase(got.begin() + 2);
  EXPECT_TRUE(same(got, want));
}

TEST_F(SamplerTest, MemoryIsWhatWasSaid) {
  for (const char* name : {"fused", "hf_eager", "fp32"})
    for (const Setting& s : kSettings)
      EXPECT_EQ(Sampler(config_, preset(name), {}, s.options).memory_bytes(), Sampler::memory_bytes(config_, preset(name), {}, s.options));
}

}  // namespace
}  // namespace plumb
