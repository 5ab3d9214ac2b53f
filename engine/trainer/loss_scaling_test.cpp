#include "engine/trainer/loss_scaling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "engine/checkpoint/checkpoint.h"
#include "engine/engine_testing.h"
#include "engine/trainer/optimizer.h"
#include "kernels/core/error.h"
#include "tests/support/temp_folder.h"

namespace plumb {
namespace {

using namespace testing_engine;  // NOLINT(google-build-using-namespace)
using testing::HasSubstr;

Numerics preset_in(std::string_view name, DType compute) {
  Numerics n = preset(name);
  n.compute = compute;
  return n;
}

OptimizerConfig scaled(const LossScalingConfig& scaling) {
  OptimizerConfig o = fast_optimizer();
  o.loss_scaling = scaling;
  return o;
}

// The trace of torch.amp.GradScaler(init_scale=8, growth_interval=3): grows after three good steps in a row, halves after a bad one.
TEST(LossScaling, ADynamicScaleGrowsAndFallsAsGradScalerDoes) {
  const LossScalingConfig c{.mode = LossScaling::dynamic, .scale = 8, .growth_interval = 3};
  LossScale s = initial_loss_scale(c, DType::f16);
  std::vector<double> scales;
  for (bool overflow : {false, false, true, false, false, false, false, true, true, false}) {
    update_loss_scale(c, DType::f16, overflow, s);
    scales.push_back(s.value);
  }
  EXPECT_EQ(scales, (std::vector<double>{8, 8, 4, 4, 4, 8, 8, 4, 2, 2}));
  EXPECT_EQ(s.good_steps, 1);
}

TEST(LossScaling, AScaleStaysAPositiveFp32Number) {
  const LossScalingConfig c{.mode = LossScaling::dynamic, .growth_interval = 1};
  LossScale s = initial_loss_scale(c, DType::f16);
  for (int i = 0; i < 300; ++i) update_loss_scale(c, DType::f16, false, s);
  EXPECT_EQ(s.value, 0x1p126);
  for (int i = 0; i < 600; ++i) update_loss_scale(c, DType::f16, true, s);
  EXPECT_EQ(s.value, 0x1p-126);
}

TEST(LossScaling, WhatIsOnByDefault) {
  EXPECT_TRUE(initial_loss_scale({}, DType::f16).active);
  EXPECT_EQ(initial_loss_scale({}, DType::f16).value, 65536);
  for (DType t : {DType::bf16, DType::f32, e8_dtype(5)}) EXPECT_FALSE(initial_loss_scale({}, t).active);
  EXPECT_FALSE(initial_loss_scale({.mode = LossScaling::off}, DType::f16).active);
  LossScale fixed = initial_loss_scale({.mode = LossScaling::fixed, .scale = 3}, DType::bf16);
  update_loss_scale({.mode = LossScaling::fixed, .scale = 3}, DType::bf16, true, fixed);
  EXPECT_EQ(fixed.value, 3);
}

// FP32 and BF16 lose nothing to a power of two, so a scaled run of them is the unscaled one, bit for bit.
TEST(LossScaling, APowerOfTwoChangesNoBitWhereNothingUnderflows) {
  Context ctx(2);
  const ModelConfig c = small_config(Family::qwen3);
  const Sequences data = mixed_sequences(c);
  const auto views = data.views();
  for (const char* name : {"fp32", "fused", "hf_eager"}) {
    const auto run = [&](const LossScalingConfig& scaling) {
      auto t = make_trainer(ctx, c, preset(name), {}, scaled(scaling));
      std::string out;
      for (int i = 0; i < 2; ++i) {
        t->accumulate(ctx, views, 1.0f, weighted_objective(views));
        const StepResult r = t->step(ctx);
        EXPECT_EQ(r.loss_scale.has_value(), scaling.mode != LossScaling::off);
        out += state_bytes(*t) + std::to_string(r.grad_norm) + std::to_string(r.clip_factor);
      }
      return out;
    };
    const std::string want = run({.mode = LossScaling::off});
    EXPECT_TRUE(run({.mode = LossScaling::fixed, .scale = 1024}) == want) << name;
    EXPECT_TRUE(run({.mode = LossScaling::dynamic, .scale = 256, .growth_interval = 1}) == want) << name;
  }
}

/// Relative distance of FP16 gradients, with an upstream gradient of this size, from those in FP32.
double gradient_error(Context& ctx, const LossScalingConfig& scaling, float upstream) {
  const ModelConfig c = small_config(Family::qwen3);
  const Sequences data = mixed_sequences(c);
  const auto views = data.views();
  const auto gradients = [&](DType compute, const LossScalingConfig& s) {
    auto t = make_trainer(ctx, c, preset_in("fused", compute), {}, scaled(s));
    const auto objective = weighted_objective(views);
    t->accumulate(ctx, views, 1.0f, [&](std::size_t first, std::size_t n, auto lp, auto h, auto argmax, auto d_lp, auto d_h) {
      objective(first, n, lp, h, argmax, d_lp, d_h);
      for (float& x : d_lp) x *= upstream;
      for (float& x : d_h) x *= upstream;
    });
    const float* g = t->gradients(ctx);
    return std::vector<float>(g, g + t->parameters().flat_size());
  };
  const auto exact = gradients(DType::f32, {.mode = LossScaling::off});
  const auto half = gradients(DType::f16, scaling);
  double distance = 0, norm = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    distance += std::pow(double(half[i]) - double(exact[i]), 2);
    norm += std::pow(double(exact[i]), 2);
  }
  return std::sqrt(distance / norm);
}

// What scaling is for: gradients of a mean over many tokens lie below FP16's smallest number and are lost without it.
TEST(LossScaling, SmallGradientsSurviveInFp16) {
  Context ctx(2);
  EXPECT_LT(gradient_error(ctx, {.mode = LossScaling::off}, 1.0f), 0.02);
  EXPECT_GT(gradient_error(ctx, {.mode = LossScaling::off}, 1e-6f), 0.2);
  EXPECT_LT(gradient_error(ctx, {.mode = LossScaling::fixed, .scale = 65536}, 1e-6f), 0.05);
  EXPECT_LT(gradient_error(ctx, {.mode = LossScaling::fixed, .scale = 0x1p20}, 1e-6f), 0.02);
  EXPECT_LT(gradient_error(ctx, {.mode = LossScaling::fixed, .scale = 1e6}, 1e-6f), 0.02);
}

// A first scale far too large: steps are skipped, change nothing, and do not count as failures; then training goes on, and a
// gradient that is not finite at any scale still ends the run.
TEST(LossScaling, OverflowSkipsUntilTheScaleFitsAndARealNanStillStops) {
  Context ctx(2);
  const ModelConfig c = small_config(Family::qwen3);
  const Sequences data = mixed_sequences(c);
  const auto views = data.views();
  OptimizerConfig o = scaled({.mode = LossScaling::dynamic, .scale = 0x1p40});
  o.max_nonfinite_steps = 2;
  auto t = make_trainer(ctx, c, preset_in("hf_eager", DType::f16), {}, o);
  const std::string before = state_bytes(*t);
  int skipped = 0;
  double scale = 0x1p40;
  for (;; ++skipped) {
    t->accumulate(ctx, views, 1.0f, weighted_objective(views));
    const StepResult r = t->step(ctx);
    EXPECT_EQ(r.loss_scale, scale);
    if (!r.skipped) break;
    scale /= 2;
    EXPECT_TRUE(state_bytes(*t) == before);
    EXPECT_EQ(t->state().loss_scale.value, scale);
    ASSERT_LT(skipped, 60);
  }
  EXPECT_GT(skipped, 5);
  EXPECT_EQ(t->state().optimizer_steps, 1);
  EXPECT_EQ(t->state().nonfinite_in_a_row, 0);
  const auto poisoned = [&](std::size_t, std::size_t, auto, auto, auto, auto d_lp, auto) {
    if (!d_lp.empty()) d_lp[0] = std::numeric_limits<float>::quiet_NaN();
  };
  int steps = 0;
  try {
    for (; steps < 100; ++steps) {
      t->accumulate(ctx, views, 1.0f, poisoned);
      t->step(ctx);
    }
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("not finite in 2 steps in a row"));
  }
  EXPECT_EQ(t->state().loss_scale.value, 0.25);  // 1, then the two that counted
  EXPECT_GT(steps, 10);
}

TEST(LossScaling, NoExecutionSettingChangesABitAndAResumedRunIsTheStraightOne) {
  const ModelConfig c = small_config(Family::qwen2);
  const Sequences data = mixed_sequences(c);
  const auto views = data.views();
  const Numerics n = preset_in("hf_eager", DType::f16);
  const OptimizerConfig o = scaled({.mode = LossScaling::dynamic, .scale = 0x1p22, .growth_interval = 2});
  const auto train = [&](Context& ctx, Trainer& t, int steps) {
    for (int i = 0; i < steps; ++i) {
      t.accumulate(ctx, views, 1.0f, weighted_objective(views));
      t.step(ctx);
    }
  };
  const auto everything = [](Trainer& t) {
    const TrainerState& s = t.state();
    return state_bytes(t) + std::to_string(s.loss_scale.value) + " " + std::to_string(s.loss_scale.good_steps);
  };
  Context ctx(2);
  auto straight = make_trainer(ctx, c, n, {}, o);
  train(ctx, *straight, 8);
  Context one(1);
  auto other = make_trainer(one, c, n, {.recompute = true, .micro_batch_tokens = 40}, o);
  train(one, *other, 8);
  EXPECT_TRUE(everything(*other) == everything(*straight));

  const test::TempFolder folder;
  auto first = make_trainer(ctx, c, n, {}, o);
  train(ctx, *first, 3);
  CheckpointStore store(folder, {}, {});
  store.save(3, [&](CheckpointWriter& w) { w.save("trainer", first->state()); });
  Trainer second(c, n, {}, o, 40);
  CheckpointReader(*store.newest().path).load("trainer", second.state());
  second.refresh_weights(ctx);
  EXPECT_TRUE(everything(second) == everything(*first));
  train(ctx, second, 5);
  EXPECT_TRUE(everything(second) == everything(*straight));
  EXPECT_NE(straight->state().loss_scale.value, 0x1p22);
}

TEST(LossScaling, ResetBeginsAtTheFirstScale) {
  Context ctx(1);
  auto t = make_trainer(ctx, small_config(Family::llama), preset_in("fused", DType::f16));
  t->state().loss_scale = {.active = true, .value = 4, .good_steps = 7};
  t->reset_optimizer(fast_optimizer());
  EXPECT_EQ(t->state().loss_scale.value, 65536);
  EXPECT_EQ(t->state().loss_scale.good_steps, 0);
}

TEST(LossScaling, ImpossibleValuesAreRefused) {
  const std::pair<LossScalingConfig, const char*> cases[] = {
      {{.scale = 0}, "loss_scaling.scale is 0"},
      {{.scale = -1}, "loss_scaling.scale is -1"},
      {{.scale = 1e39}, "loss_scaling.scale is 1e+39"},
      {{.scale = 1e-42}, "loss_scaling.scale"},
      {{.growth_factor = 1}, "loss_scaling.growth_factor is 1; it must be above 1"},
      {{.backoff_factor = 1}, "loss_scaling.backoff_factor is 1"},
      {{.backoff_factor = 0}, "loss_scaling.backoff_factor is 0"},
      {{.growth_interval = 0}, "loss_scaling.growth_interval is 0; it must be at least 1"}};
  for (const auto& [scaling, says] : cases) {
    try {
      check_optimizer(scaled(scaling));
      FAIL() << says;
    } catch (const UsageError& e) {
      EXPECT_THAT(e.what(), HasSubstr(says));
    }
  }
}

}  // namespace
}  // namespace plumb
