// FP16 and e8mN as compute dtypes: a format held in FP32 memory must round wherever BF16 does. The proof is e8m7, whose values are
// BF16's: it takes the run-time path of every op, and must give the bits of the BF16 path.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/engine_testing.h"
#include "engine/sampler/sampler.h"
#include "kernels/core/error.h"

namespace plumb {
namespace {

using namespace testing_engine;  // NOLINT(google-build-using-namespace)

Numerics with_compute(std::string_view name, DType compute) {
  Numerics n = preset(name);
  n.compute = compute;
  return n;
}

std::vector<float> as_floats(const Weights& w) {
  std::vector<float> out;
  const std::int64_t n = w.parameters().flat_size();
  for (std::int64_t i = 0; i < n; ++i)
    out.push_back(w.dtype() == DType::bf16 ? to_float(static_cast<const BF16*>(w.flat())[i]) : static_cast<const float*>(w.flat())[i]);
  return out;
}

/// Log-probs, entropies, gradients and weights of two steps, all as FP32.
std::string two_steps(Context& ctx, const ModelConfig& c, const Numerics& n, const ExecutionConfig& execution = {}) {
  OptimizerConfig optimizer = fast_optimizer();
  optimizer.loss_scaling.mode = LossScaling::off;  // these gradients are of order 1
  auto trainer = make_trainer(ctx, c, n, execution, optimizer);
  const Sequences data = mixed_sequences(c);
  const auto views = data.views();
  std::string out;
  for (int step = 0; step < 2; ++step) {
    const TokenScores scores = trainer->score(ctx, trainer->weights(), views, 0.7f);
    out += bytes_of_floats(scores.logprob) + bytes_of_floats(scores.entropy);
    trainer->accumulate(ctx, views, 0.7f, weighted_objective(views));
    out += bytes_of_floats(trainer->gradients(ctx), trainer->parameters().flat_size());
    EXPECT_FALSE(trainer->step(ctx).skipped);
    out += bytes_of_floats(as_floats(trainer->weights()));
  }
  return out;
}

TEST(Formats, SevenMantissaBitsInFp32MemoryGiveTheBitsOfBf16InEveryPreset) {
  Context ctx(2);
  int model = 0;
  for (std::string_view name : usable_presets()) {
    if (preset(name).compute != DType::bf16) continue;
    const Family family = kFamilies[model++ % 3];
    const ModelConfig c = small_config(family, family != Family::llama);
    EXPECT_TRUE(two_steps(ctx, c, with_compute(name, e8_dtype(7))) == two_steps(ctx, c, preset(name))) << name << ", " << name_of(family);
  }
}

TEST(Formats, TwentyThreeMantissaBitsAreFp32) {
  Context ctx(2);
  const ModelConfig c = small_config(Family::qwen3);
  EXPECT_TRUE(two_steps(ctx, c, with_compute("fused", e8_dtype(23))) == two_steps(ctx, c, with_compute("fused", DType::f32)));
}

TEST(Formats, NoExecutionSettingChangesABit) {
  const ModelConfig c = small_config(Family::qwen3);
  for (const DType t : {DType::f16, e8_dtype(4), e8_dtype(12)}) {
    for (const char* name : {"fused", "hf_eager"}) {
      Context one(1);
      Context two(2);
      const std::string want = two_steps(one, c, with_compute(name, t));
      const ExecutionConfig settings[] = {{.micro_batch_tokens = 40}, {.merged_matmuls = false, .logits_rows = 3}, {.recompute = true}};
      for (const ExecutionConfig& e : settings) EXPECT_TRUE(two_steps(two, c, with_compute(name, t), e) == want) << name << name_of(t);
    }
  }
}

/// Every stored value of the compute copy is one of the format.
TEST(Formats, WeightsAreRoundedFromTheMasters) {
  Context ctx(2);
  const ModelConfig c = small_config(Family::llama, false);
  for (const DType t : {DType::f16, e8_dtype(3), e8_dtype(15)}) {
    auto trainer = make_trainer(ctx, c, with_compute("fused", t));
    const auto* master = static_cast<const float*>(trainer->state().master.data());
    const std::vector<float> weights = as_floats(trainer->weights());
    for (std::size_t i = 0; i < weights.size(); ++i) ASSERT_EQ(weights[i], round_to(t, master[i]));
  }
}

class FormatParity : public testing::TestWithParam<DType> {};

TEST_P(FormatParity, SamplerEqualsTrainer) {
  for (const char* name : {"fused", "hf_eager", "vllm_cpu_compiled"}) {
    const ModelConfig c = small_config(Family::qwen3);
    Context ctx(2);
    auto trainer = make_trainer(ctx, c, with_compute(name, GetParam()));
    for (const float temperature : {1.0f, 0.7f}) {
      std::vector<GenerationRequest> requests;
      for (std::uint32_t i = 0; i < 4; ++i)
        requests.push_back({.prompt = random_ids(c, 3 + 4 * i, 50 + i),
                            .key = {.seed = 3, .purpose = Purpose::sampling, .step = 4, .draw = i},
                            .samples = 2,
                            .max_new_tokens = 12,
                            .params = {.temperature = temperature}});
      Sampler sampler(c, trainer->numerics(), {}, {.max_sequences = 3, .prefill_tokens = 5, .max_positions = 40, .eos_ids = {7}});
      const auto generated = sampler.generate(ctx, trainer->weights(), requests);
      Sequences all;
      std::vector<float> recorded;
      for (std::size_t i = 0; i < requests.size(); ++i)
        for (const GeneratedSample& s : generated[i]) {
          all.tokens.push_back(requests[i].prompt);
          all.tokens.back().insert(all.tokens.back().end(), s.tokens.begin(), s.tokens.end());
          all.prompt_lens.push_back(std::int64_t(requests[i].prompt.size()));
          recorded.insert(recorded.end(), s.logprobs.begin(), s.logprobs.end());
        }
      const auto views = all.views();
      EXPECT_TRUE(bytes_of_floats(trainer->score(ctx, trainer->weights(), views, temperature).logprob) == bytes_of_floats(recorded))
          << name << " at " << temperature;
      ASSERT_GT(recorded.size(), 30u);
      for (float x : recorded) ASSERT_TRUE(std::isfinite(x));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, FormatParity, testing::Values(DType::f16, e8_dtype(4), e8_dtype(10), e8_dtype(16)),
                         [](const auto& p) { return std::string(name_of(p.param)); });

// The dose: each mantissa bit more halves the distance to FP32, roughly.
TEST(Formats, TheDistanceToFp32FallsWithEveryMantissaBit) {
  Context ctx(2);
  const ModelConfig c = small_config(Family::qwen3);
  const Sequences data = mixed_sequences(c);
  const auto views = data.views();
  const auto logprobs = [&](DType t) {
    auto trainer = make_trainer(ctx, c, with_compute("fused", t));
    return trainer->score(ctx, trainer->weights(), views, 1.0f).logprob;
  };
  const std::vector<float> exact = logprobs(DType::f32);
  const auto distance = [&](DType t) {
    const std::vector<float> x = logprobs(t);
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += std::abs(double(x[i]) - double(exact[i]));
    return sum / double(x.size());
  };
  double last = distance(e8_dtype(4));
  for (int m = 7; m <= 19; m += 3) {
    const double next = distance(e8_dtype(m));
    EXPECT_LT(next, 0.5 * last) << m;
    EXPECT_GT(next, 0.02 * last) << m;
    last = next;
  }
  // FP16 has ten mantissa bits, and this model's values are in its range.
  EXPECT_NEAR(distance(DType::f16) / distance(e8_dtype(10)), 1.0, 0.5);
}

}  // namespace
}  // namespace plumb
