// Gradients summed in parts, and an optimizer without FP32 state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "engine/checkpoint/checkpoint.h"
#include "engine/engine_testing.h"
#include "engine/trainer/optimizer.h"
#include "kernels/core/error.h"
#include "tests/support/temp_folder.h"

namespace plumb {
namespace {

using namespace testing_engine;  // NOLINT(google-build-using-namespace)
using testing::HasSubstr;

OptimizerConfig in_parts(GradientDType dtype, int sequences) {
  OptimizerConfig o = fast_optimizer();
  o.accumulation = {.dtype = dtype, .sequences = sequences};
  return o;
}

TokenObjective shifted(const TokenObjective& objective, std::size_t by) {
  return [objective, by](std::size_t first, std::size_t n, auto lp, auto h, auto argmax, auto d_lp, auto d_h) {
    objective(first + by, n, lp, h, argmax, d_lp, d_h);
  };
}

std::vector<float> gradients(Context& ctx, const ModelConfig& c, std::string_view name, const OptimizerConfig& optimizer,
                             const ExecutionConfig& execution = {}, std::size_t first = 0, std::size_t last = 8, std::size_t cut = 0) {
  auto t = make_trainer(ctx, c, preset(name), execution, optimizer);
  const Sequences data = mixed_sequences(c);
  const auto views = data.views();
  const auto objective = weighted_objective(views);
  const auto accumulate = [&](std::size_t from, std::size_t to) {
    t->accumulate(ctx, std::span(views).subspan(from, to - from), 0.9f, shifted(objective, from));
  };
  accumulate(first, first + cut);
  accumulate(first + cut, last);
  const float* g = t->gradients(ctx);
  return {g, g + t->parameters().flat_size()};
}

// What autograd does with parameters of that dtype: the gradient of each part by itself, then .grad += it, rounded.
TEST(Accumulation, IsTheRoundedSumOfTheGradientsOfItsParts) {
  Context ctx(2);
  int model = 0;
  for (const char* name : {"fused", "hf_eager", "hf_autocast_fp32params"}) {
    const Family family = kFamilies[model++ % 3];
    const ModelConfig c = small_config(family, family != Family::llama);
    for (GradientDType dtype : {GradientDType::fp32, GradientDType::bf16, GradientDType::fp16}) {
      std::vector<float> want;
      for (std::size_t first = 0; first < 8; first += 3) {
        const auto part = gradients(ctx, c, name, fast_optimizer(), {}, first, std::min<std::size_t>(8, first + 3));
        if (want.empty()) want.assign(part.size(), -0.0f);  // -0 + x is x, with its sign
        for (std::size_t i = 0; i < part.size(); ++i) want[i] = round_to(dtype_of(dtype), want[i] + part[i]);
      }
      EXPECT_TRUE(bytes_of_floats(gradients(ctx, c, name, in_parts(dtype, 3))) == bytes_of_floats(want)) << name << " " << int(dtype);
    }
  }
}

TEST(Accumulation, DependsOnTheSequencesOfAPartAndOnNothingElse) {
  Context one(1);
  Context three(3);
  const ModelConfig c = small_config(Family::qwen3);
  const auto want = gradients(three, c, "hf_eager", in_parts(GradientDType::bf16, 3));
  const auto same = [&](const std::vector<float>& x) { return bytes_of_floats(x) == bytes_of_floats(want); };
  EXPECT_TRUE(same(gradients(one, c, "hf_eager", in_parts(GradientDType::bf16, 3), {.micro_batch_tokens = 40})));
  EXPECT_TRUE(same(gradients(one, c, "hf_eager", in_parts(GradientDType::bf16, 3), {.recompute = true, .micro_batch_tokens = 61})));
  for (std::size_t cut : {1, 3, 4, 7}) EXPECT_TRUE(same(gradients(three, c, "hf_eager", in_parts(GradientDType::bf16, 3), {}, 0, 8, cut)));
  EXPECT_FALSE(same(gradients(three, c, "hf_eager", in_parts(GradientDType::bf16, 2))));
  EXPECT_FALSE(same(gradients(three, c, "hf_eager", in_parts(GradientDType::fp32, 3))));
  EXPECT_FALSE(same(gradients(three, c, "hf_eager", fast_optimizer())));
}

TEST(Accumulation, OnePartIsTheDefault) {
  Context ctx(2);
  const ModelConfig c = small_config(Family::qwen2);
  for (const char* name : {"fused", "hf_eager"}) {
    const std::string want = bytes_of_floats(gradients(ctx, c, name, fast_optimizer()));
    EXPECT_TRUE(bytes_of_floats(gradients(ctx, c, name, in_parts(GradientDType::fp32, 8))) == want);
    EXPECT_TRUE(bytes_of_floats(gradients(ctx, c, name, in_parts(GradientDType::fp32, 100))) == want);
  }
}

/// Four steps by one setting; the state, which must be BF16 where it is said to be.
std::string four_steps(const OptimizerConfig& o, int threads, const ExecutionConfig& execution, bool resumed) {
  Context ctx(threads);
  const ModelConfig c = small_config(Family::qwen3);
  const Sequences data = mixed_sequences(c);
  const auto views = data.views();
  auto t = make_trainer(ctx, c, preset("hf_eager"), execution, o);
  const test::TempFolder folder;
  for (int i = 0; i < 4; ++i) {
    t->accumulate(ctx, views, 1.0f, weighted_objective(views));
    EXPECT_FALSE(t->step(ctx).skipped);
    if (!resumed || i != 1) continue;
    CheckpointStore store(folder, {}, {});
    store.save(2, [&](CheckpointWriter& w) { w.save("trainer", t->state()); });
    t = std::make_unique<Trainer>(c, preset("hf_eager"), execution, o, 40);
    CheckpointReader(*store.newest().path).load("trainer", t->state());
    t->refresh_weights(ctx);
  }
  const TrainerState& s = t->state();
  const auto expect_bf16 = [&](const Buffer& b, StateDType dtype) {
    const auto* x = static_cast<const float*>(b.data());
    bool all = true;
    for (std::int64_t i = 0; i < t->parameters().flat_size(); ++i) all &= x[i] == round_bf16(x[i]);
    EXPECT_EQ(all, dtype == StateDType::bf16);
  };
  expect_bf16(s.master, o.precision.weights);
  expect_bf16(s.m, o.precision.moments);
  expect_bf16(s.v, o.precision.moments);
  return state_bytes(*t);
}

TEST(Precision, StateIsWhatItIsSaidToBeOnEveryPath) {
  for (StateDType weights : {StateDType::fp32, StateDType::bf16})
    for (StateDType moments : {StateDType::fp32, StateDType::bf16}) {
      OptimizerConfig o = in_parts(GradientDType::bf16, 3);
      o.precision = {.weights = weights, .moments = moments};
      const std::string want = four_steps(o, 2, {}, false);
      EXPECT_TRUE(four_steps(o, 1, {.micro_batch_tokens = 40}, false) == want);
      EXPECT_TRUE(four_steps(o, 3, {}, true) == want);
    }
}

TEST(Precision, WithoutMastersTheStartIsRounded) {
  Context ctx(2);
  OptimizerConfig o = fast_optimizer();
  o.precision.weights = StateDType::bf16;
  auto t = make_trainer(ctx, small_config(Family::llama), preset("fp32"), {}, o);
  const auto* master = static_cast<const float*>(t->state().master.data());
  const auto* weights = static_cast<const float*>(t->weights().flat());
  for (std::int64_t i = 0; i < t->parameters().flat_size(); ++i) {
    ASSERT_EQ(master[i], round_bf16(master[i]));
    ASSERT_EQ(weights[i], master[i]);
  }
  EXPECT_THROW(t->reset_optimizer(fast_optimizer()), UsageError);
}

TEST(Precision, MemoryIsWhatWasSaid) {
  const ModelConfig c = small_config(Family::qwen3);
  const OptimizerConfig o = in_parts(GradientDType::bf16, 2);
  const Trainer t(c, preset("fused"), {}, o, 40);
  EXPECT_EQ(t.memory_bytes(), Trainer::memory_bytes(c, preset("fused"), {}, o, 40));
  EXPECT_GT(t.memory_bytes(), Trainer::memory_bytes(c, preset("fused"), {}, fast_optimizer(), 40));
}

TEST(Accumulation, ImpossibleSettingsAreRefused) {
  const auto error_of = [](const OptimizerConfig& o) -> std::string {
    try {
      check_optimizer(o);
    } catch (const UsageError& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of(in_parts(GradientDType::bf16, 0)), HasSubstr("accumulation.dtype bf16 needs accumulation.sequences"));
  EXPECT_THAT(error_of(in_parts(GradientDType::fp32, -1)), HasSubstr("accumulation.sequences is -1"));
  EXPECT_EQ(error_of(in_parts(GradientDType::fp16, 1)), "no error");
}

}  // namespace
}  // namespace plumb
