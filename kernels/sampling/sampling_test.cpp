#include "kernels/sampling/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/core/error.h"
#include "kernels/core/rng.h"
#include "kernels/sampling/sampling_ref.h"

namespace plumb {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

SampledToken sample(const std::vector<float>& logits, const SamplingParams& params, float u, Sites sites = {}) {
  std::vector<float> work(2 * logits.size());
  return sample_token(logits.data(), DType::f32, std::int64_t(logits.size()), params, u, sites, work.data());
}

std::vector<float> random_logits(std::int64_t n, std::uint64_t seed, double scale) {
  std::vector<float> out;
  for (std::int64_t v = 0; v < n; ++v) out.push_back(float(scale * random_normal({.seed = seed}, std::uint64_t(v))));
  return out;
}

// Every u lands on the token whose stretch of the cumulative distribution holds it.
TEST(Sampling, InvertsTheCumulativeDistribution) {
  for (std::int64_t vocab : {1, 7, 100, 1024, 5000}) {
    const std::vector<float> logits = random_logits(vocab, 1, 3.0);
    for (const SamplingParams& params : {SamplingParams{}, SamplingParams{.temperature = 0.7f}, SamplingParams{.top_k = 5},
                                         SamplingParams{.top_p = 0.8f}, SamplingParams{.temperature = 1.3f, .top_k = 50, .top_p = 0.95f}}) {
      const std::vector<double> p = sampling_ref::distribution(logits, params);
      for (int i = 0; i < 400; ++i) {
        const float u = random_uniform({.seed = 2}, std::uint64_t(i));
        const SampledToken got = sample(logits, params, u);
        double below = 0;
        for (std::int32_t v = 0; v < got.token; ++v) below += p[std::size_t(v)];
        // 16-lane FP32 sums of at most 64 + 4 terms: a few 1e-7 relative.
        ASSERT_GT(p[std::size_t(got.token)], 0) << "V " << vocab << " u " << u;
        ASSERT_GE(double(u), below - 5e-6) << "V " << vocab;
        ASSERT_LE(double(u), below + p[std::size_t(got.token)] + 5e-6) << "V " << vocab;
        ASSERT_NEAR(double(got.logprob_kept), std::log(p[std::size_t(got.token)]), 5e-6);
      }
    }
  }
}

TEST(Sampling, GreedyTakesTheLowestIndexOfTheMaximum) {
  const SampledToken got = sample({1, 3, 2, 3}, {.temperature = 0}, 0.9f);
  EXPECT_EQ(got.token, 1);
  EXPECT_EQ(got.argmax, 1);
  EXPECT_NEAR(got.logprob, 3 - std::log(std::exp(1) + 2 * std::exp(3) + std::exp(2)), 1e-6);
  EXPECT_EQ(got.logprob, got.logprob_kept);
}

TEST(Sampling, TiesAreKeptInIndexOrder) {
  for (float u : {0.0f, 0.3f, 0.6f, 0.99f}) {
    EXPECT_LE(sample({1, 1, 1, 1}, {.top_k = 2}, u).token, 1);
    EXPECT_LE(sample({1, 1, 1, 1}, {.top_p = 0.5f}, u).token, 1);
    EXPECT_LE(sample({0, 5, 5, 5}, {.top_k = 2}, u).token, 2);
  }
}

// cases.md 17: sampler and trainer agree bit for bit at T = 0.7.
TEST(Sampling, TheRawLogprobIsTheTrainers) {
  EXPECT_NEAR(sample({2, 1, 0}, {}, 0).logprob, -.4076060, 2e-7);
  EXPECT_NEAR(sample({2, 1, 0}, {.temperature = 0.7f}, 0).logprob, -.2601184, 2e-7);
  Context ctx(1);
  const std::int64_t vocab = 333;
  const std::vector<float> weight = random_logits(vocab, 3, 2.0);
  std::vector<BF16> weight16;
  for (float w : weight) weight16.push_back(to_bf16(w));
  const BF16 one = to_bf16(1.0f);
  for (std::uint32_t mask : {0u, 1u << int(Site::lm_head_logits), 1u << int(Site::lm_head_logits) | 1u << int(Site::logits_temperature)}) {
    const Sites sites{mask};
    for (const SamplingParams& params :
         {SamplingParams{.temperature = 0.7f}, SamplingParams{}, SamplingParams{.temperature = 0.7f, .top_k = 20, .top_p = 0.9f}}) {
      std::vector<float> f(static_cast<std::size_t>(vocab));
      std::vector<BF16> b(static_cast<std::size_t>(vocab));
      const bool bf16 = sites.rounded(Site::lm_head_logits);
      void* row = bf16 ? static_cast<void*>(b.data()) : f.data();
      const DType dtype = bf16 ? DType::bf16 : DType::f32;
      const ConstMat hidden = make_const_mat(&one, 1, 1, DType::bf16);
      const ConstMat head = make_const_mat(weight16.data(), vocab, 1, DType::bf16);
      float logprob = 0;
      std::int32_t argmax = 0;
      std::int32_t target = 0;
      logprob_forward(ctx,
                      {.hidden = hidden, .weight = head, .targets = &target, .logprob = &logprob, .logits = make_mat(row, 1, vocab, dtype)},
                      sites);
      std::vector<float> work(2 * std::size_t(vocab));
      for (float u : {0.01f, 0.5f, 0.97f}) {
        const SampledToken got = sample_token(row, dtype, vocab, params, u, sites, work.data());
        target = got.token;
        logprob_forward(ctx,
                        {.hidden = hidden,
                         .weight = head,
                         .targets = &target,
                         .temperature = params.temperature,
                         .logprob = &logprob,
                         .argmax = &argmax},
                        sites);
        EXPECT_EQ(got.logprob, logprob);
        EXPECT_EQ(got.argmax, argmax);
      }
    }
  }
}

// cases.md 18: the raw log-prob is recorded, the renormalised one beside it.
TEST(Sampling, TopPKeepsTheCrossingToken) {
  const std::vector<float> logits = {std::log(.5f), std::log(.3f), std::log(.15f), std::log(.05f)};
  const SampledToken got = sample(logits, {.top_p = 0.9f}, 0.6f);
  EXPECT_EQ(got.token, 1);
  EXPECT_NEAR(got.logprob, -1.2039728, 3e-7);
  EXPECT_NEAR(got.logprob_kept, -1.1526795, 3e-7);
  EXPECT_EQ(sample(logits, {.top_p = 0.9f}, 0.999999f).token, 2);
}

// cases.md 19, 20
TEST(Sampling, ExtremeLogits) {
  for (float u : {0.0f, 0.5f, 0.99999994f}) {
    const SampledToken a = sample({60, 0, 0}, {}, u);
    EXPECT_TRUE(std::isfinite(a.logprob));
    const SampledToken b = sample({-1e4f, 1e4f}, {}, u);
    EXPECT_EQ(b.token, 1);
    EXPECT_EQ(b.logprob, 0.0f);
    const SampledToken c = sample({-kInf, 0, -kInf, 0, -kInf}, {}, u);
    EXPECT_TRUE(c.token == 1 || c.token == 3);
    EXPECT_NEAR(c.logprob, -.69314718, 1e-7);
    EXPECT_EQ(sample({-kInf, 0, -kInf, 0, -kInf}, {.top_k = 4}, u).token, c.token);
    EXPECT_EQ(sample({-kInf, 0, -kInf, 0, -kInf}, {.top_p = 0.99f}, u).token, c.token);
  }
}

TEST(Sampling, ANanShowsAndDoesNotCrash) {
  std::vector<float> logits = random_logits(100, 4, 1.0);
  logits[50] = std::numeric_limits<float>::quiet_NaN();
  for (const SamplingParams& params :
       {SamplingParams{}, SamplingParams{.temperature = 0}, SamplingParams{.top_k = 3}, SamplingParams{.top_p = 0.5f}}) {
    const SampledToken got = sample(logits, params, 0.5f);
    EXPECT_EQ(got.token, got.argmax);
    EXPECT_TRUE(std::isnan(got.logprob));
  }
}

// cases.md 21: samples differ among each other and are equal when asked for again.
TEST(Sampling, DrawsAreAFunctionOfTheirKey) {
  int all_equal = 0;
  for (std::uint32_t prompt = 0; prompt < 20; ++prompt) {
    const std::vector<float> logits = random_logits(50, 100 + prompt, 1.0);
    auto draw = [&](std::uint32_t s) {
      return sample(logits, {}, random_uniform({.seed = 5, .purpose = Purpose::sampling, .draw = prompt, .sample = s}, 3)).token;
    };
    std::vector<std::int32_t> tokens;
    for (std::uint32_t s = 0; s < 4; ++s) {
      tokens.push_back(draw(s));
      EXPECT_EQ(draw(s), tokens.back());
    }
    all_equal += std::count(tokens.begin(), tokens.end(), tokens[0]) == 4 ? 1 : 0;
  }
  EXPECT_LT(all_equal, 3);
}

TEST(Sampling, RefusesWhatCannotBe) {
  EXPECT_THROW(sample({}, {}, 0.5f), Error);
  EXPECT_THROW(sample({1, 2}, {.temperature = -1}, 0.5f), Error);
  EXPECT_THROW(sample({1, 2}, {.top_p = 0}, 0.5f), Error);
  EXPECT_THROW(sample({1, 2}, {.top_k = -1}, 0.5f), Error);
  EXPECT_THROW(sample({1, 2}, {}, 1.0f), Error);
}

}  // namespace
}  // namespace plumb
