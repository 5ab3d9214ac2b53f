#include "engine/trainer/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "engine/checkpoint/checkpoint.h"
#include "engine/engine_testing.h"
#include "kernels/core/error.h"
#include "kernels/logprob/logprob.h"
#include "tests/support/temp_folder.h"

namespace plumb {
namespace {

using namespace testing_engine;  // NOLINT(google-build-using-namespace)
using testing::HasSubstr;

std::string gradient_bytes(Context& ctx, Trainer& trainer) {
  return bytes_of_floats(trainer.gradients(ctx), trainer.parameters().flat_size());
}

struct NamedExecution {
  const char* what;
  int threads;
  ExecutionConfig execution;
};

const NamedExecution kExecutions[] = {
    {"one micro-batch", 1, {}},
    {"micro-batches of 40 rows", 1, {.micro_batch_tokens = 40}},
    {"micro-batches of 61 rows, 2 threads", 2, {.micro_batch_tokens = 61}},
    {"3 threads, logits by 3 rows", 3, {.logits_rows = 3}},
    {"separate matmuls", 2, {.merged_matmuls = false}},
    {"recompute", 1, {.recompute = true, .micro_batch_tokens = 50, .logits_rows = 1}},
};

/// Gradients, then the state after two steps, by one setting.
std::string run_two_steps(const ModelConfig& c, const Numerics& numerics, const NamedExecution& setting, Isa isa) {
  Context ctx(setting.threads, isa);
  auto trainer = make_trainer(ctx, c, numerics, setting.execution);
  const Sequences data = mixed_sequences(c);
  const auto views = data.views();
  std::string out;
  for (int step = 0; step < 2; ++step) {
    trainer->accumulate(ctx, views, 0.7f, weighted_objective(views));
    out += gradient_bytes(ctx, *trainer);
    EXPECT_FALSE(trainer->step(ctx).skipped);
    out += state_bytes(*trainer);
  }
  return out;
}

class TrainerLaw : public testing::TestWithParam<std::string_view> {};

TEST_P(TrainerLaw, NoExecutionSettingChangesABit) {
  const Numerics numerics = preset(GetParam());
  for (const Family family : kFamilies) {
    const ModelConfig c = small_config(family, family != Family::llama);
    const std::string want = run_two_steps(c, numerics, kExecutions[0], Isa::avx2);
    for (const Isa isa : machine_isas()) {
      for (const NamedExecution& s : kExecutions)
        EXPECT_TRUE(run_two_steps(c, numerics, s, isa) == want) << name_of(family) << ", " << s.what << ", " << name_of(isa);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, TrainerLaw, testing::ValuesIn(usable_presets()), [](const auto& p) { return std::string(p.param); });

TEST(Trainer, AccumulatingInSeveralCallsIsOneChain) {
  Context ctx(2);
  const ModelConfig c = small_config(Family::qwen3);
  const Sequences data = mixed_sequences(c);
  const auto views = data.views();
  auto whole = make_trainer(ctx, c, preset("hf_eager"));
  whole->accumulate(ctx, views, 1.0f, weighted_objective(views));
  auto split = make_trainer(ctx, c, preset("hf_eager"));
  const auto objective = weighted_objective(views);
  const std::size_t half = 3;
  split->accumulate(ctx, std::span(views).first(half), 1.0f, objective);
  split->accumulate(ctx, std::span(views).subspan(half), 1.0f,
                    [&](std::size_t first, std::size_t count, auto lp, auto h, auto argmax, auto d_lp, auto d_h) {
                      objective(first + half, count, lp, h, argmax, d_lp, d_h);
                    });
  EXPECT_EQ(gradient_bytes(ctx, *split), gradient_bytes(ctx, *whole));
  EXPECT_THROW(split->accumulate(ctx, views, 1.0f, objective), Error);  // they were finished
  split->clear_gradients();
  split->accumulate(ctx, views, 1.0f, objective);
  EXPECT_EQ(gradient_bytes(ctx, *split), gradient_bytes(ctx, *whole));
}

// Case 7: a packed sequence's log-probs are those of its own run.
TEST(Trainer, PackedEqualsUnpacked) {
  Context ctx(2);
  for (const Family family : kFamilies) {
    const ModelConfig c = small_config(family);
    auto trainer = make_trainer(ctx, c, preset("fused"));
    const Sequences data = mixed_sequences(c);
    const auto views = data.views();
    const TokenScores together = trainer->score(ctx, trainer->weights(), views, 1.0f);
    TokenScores alone;
    for (const TrainSequence& s : views) {
      const TokenScores one = trainer->score(ctx, trainer->weights(), std::span(&s, 1), 1.0f);
      EXPECT_EQ(std::int64_t(one.logprob.size()), s.response_len());
      alone.logprob.insert(alone.logprob.end(), one.logprob.begin(), one.logprob.end());
      alone.entropy.insert(alone.entropy.end(), one.entropy.begin(), one.entropy.end());
      alone.argmax.insert(alone.argmax.end(), one.argmax.begin(), one.argmax.end());
    }
    EXPECT_EQ(together.logprob, alone.logprob);
    EXPECT_EQ(together.entropy, alone.entropy);
    EXPECT_EQ(together.argmax, alone.argmax);
    for (const float x : together.logprob) EXPECT_TRUE(x < 0 && std::isfinite(x));
  }
}

/// All rows of one packed batch through model and head, no gathering: what Trainer's shortcut must equal.
class WholeRows {
 public:
  WholeRows(Context& ctx, Trainer& trainer, const Sequences& data)
      : ctx_(ctx),
        weights_(trainer.weights()),
        model_(trainer.model_config(), trainer.numerics(), {}, 256, 64, true),
        flat_(std::size_t(trainer.parameters().flat_size()) * sizeof(float)),
        tied_(tied_head_gradient_bytes(trainer.model_config())),
        gradients_(make_gradients(trainer.parameters(), trainer.model_config(), flat_, tied_)) {
    for (std::size_t i = 0; i < data.tokens.size(); ++i) add(data.tokens[i], data.prompt_lens[i]);
  }

  /// Log-probs of the response tokens; then the gradients of weighted_objective by the given upstream gradients.
  std::vector<float> run(float temperature, const std::vector<float>& d_logprob, const std::vector<float>& d_entropy) {
    const auto n = std::int64_t(tokens_.size());
    const Batch batch = {n, tokens_.data(), positions_.data(), sequences_.data(), std::int64_t(sequences_.size())};
    const ConstMat hidden = model_.forward(ctx_, weights_, batch, nullptr, true);
    std::vector<float> logprob(tokens_.size());
    logprob_forward(ctx_,
                    {.hidden = hidden,
                     .weight = weights_.lm_head(),
                     .packed = weights_.packed(Role::lm_head),
                     .matmul_order = model_.numerics().reductions.matmul,
                     .targets = targets_.data(),
                     .temperature = temperature,
                     .logprob = logprob.data()},
                    model_.head_sites());
    std::vector<float> out;
    std::vector<float> row_d_logprob(tokens_.size());
    std::vector<float> row_d_entropy(tokens_.size());
    for (std::size_t r = 0; r < tokens_.size(); ++r) {
      if (!response_[r]) continue;
      row_d_logprob[r] = d_logprob[out.size()];
      row_d_entropy[r] = d_entropy[out.size()];
      out.push_back(logprob[r]);
    }
    Buffer d(std::size_t(hidden.rows * hidden.cols) * bytes_of(hidden.dtype));
    const Mat d_hidden = make_mat(d.data(), hidden.rows, hidden.cols, hidden.dtype);
    logprob_backward(ctx_,
                     {.hidden = hidden,
                      .weight = weights_.lm_head(),
                      .packed = weights_.packed(Role::lm_head),
                      .matmul_order = model_.numerics().reductions.matmul,
                      .targets = targets_.data(),
                      .temperature = temperature,
                      .d_logprob = row_d_logprob.data(),
                      .d_entropy = row_d_entropy.data(),
                      .d_hidden = d_hidden,
                      .d_weight = gradients_.lm_head},
                     model_.head_sites());
    model_.backward(ctx_, weights_, batch, d_hidden, gradients_);
    finish_gradients(ctx_, weights_.parameters(), model_.config(), model_.numerics(), gradients_);
    return out;
  }
  std::string gradient_bytes() const { return bytes_of_buffer(flat_); }

 private:
  void add(const Ids& ids, std::int64_t prompt_len) {
    const auto length = std::int64_t(ids.size());
    sequences_.push_back({.first_row = std::int64_t(tokens_.size()), .rows = length});
    for (std::int64_t p = 0; p < packed_rows(length); ++p) {
      const bool real = p < length;
      tokens_.push_back(real ? ids[std::size_t(p)] : -1);
      positions_.push_back(real ? std::int32_t(p) : 0);
      targets_.push_back(p + 1 < length ? ids[std::size_t(p + 1)] : -1);
      response_.push_back(p + 1 >= prompt_len && p + 1 < length);
    }
  }

  Context& ctx_;
  const Weights& weights_;
  Qwen model_;
  Buffer flat_;
  Buffer tied_;
  Gradients gradients_;
  Ids tokens_;
  Ids positions_;
  Ids targets_;
  std::vector<SequenceRows> sequences_;
  std::vector<char> response_;
};

TEST(Trainer, TheHeadOnGatheredRowsEqualsTheHeadOnAllRows) {
  Context ctx(2);
  for (const char* name : {"fused", "hf_eager", "fp32"})
    for (const bool tied : {true, false}) {
      const ModelConfig c = small_config(Family::qwen3, tied);
      auto trainer = make_trainer(ctx, c, preset(name));
      const Sequences data = mixed_sequences(c);
      const auto views = data.views();
      std::size_t responses = 0;
      for (const TrainSequence& s : views) responses += std::size_t(s.response_len());
      std::vector<float> d_logprob(responses);
      std::vector<float> d_entropy(responses);
      weighted_objective(views)(0, views.size(), {}, {}, {}, d_logprob, d_entropy);
      WholeRows whole(ctx, *trainer, data);
      EXPECT_EQ(trainer->score(ctx, trainer->weights(), views, 0.7f).logprob, whole.run(0.7f, d_logprob, d_entropy));
      trainer->accumulate(ctx, views, 0.7f, weighted_objective(views));
      EXPECT_EQ(gradient_bytes(ctx, *trainer), whole.gradient_bytes()) << name << (tied ? " tied" : " untied");
    }
}

TEST(Trainer, GradientsEqualDirectionalDifferences) {
  Context ctx(1);
  const ModelConfig c = small_config(Family::qwen3);
  auto trainer = make_trainer(ctx, c, preset("fp32"));
  const Sequences data = mixed_sequences(c);
  const auto views = data.views();
  const auto loss = [&] {
    const TokenScores s = trainer->score(ctx, trainer->weights(), views, 0.7f);
    std::vector<float> w(s.logprob.size());
    std::vector<float> dh(s.logprob.size());
    weighted_objective(views)(0, views.size(), {}, {}, {}, w, dh);
    double sum = 0;
    for (std::size_t i = 0; i < w.size(); ++i) sum += double(w[i]) * s.logprob[i] + double(dh[i]) * s.entropy[i];
    return sum;
  };
  trainer->accumulate(ctx, views, 0.7f, weighted_objective(views));
  const float* gradient = trainer->gradients(ctx);
  const auto n = std::size_t(trainer->parameters().flat_size());
  std::vector<float> direction(n);
  double want = 0;
  double norm = 0;
  for (std::size_t i = 0; i < n; ++i) {
    direction[i] = gradient[i];
    want += double(gradient[i]) * direction[i];
    norm += double(direction[i]) * direction[i];
  }
  const double h = 1e-3 / std::sqrt(norm);
  std::vector<float> start(n);
  trainer->state().master.read(start.data(), 0, n * sizeof(float));
  const auto at = [&](double t) {
    std::vector<float> x = start;
    for (std::size_t i = 0; i < n; ++i) x[i] += float(t * direction[i]);
    trainer->state().master.write(x.data(), 0, n * sizeof(float));
    trainer->refresh_weights(ctx);
    return loss();
  };
  const double difference = (at(h) - at(-h)) / (2 * h);
  EXPECT_NEAR(difference / want, 1.0, 2e-3);
}

// Case 24.
TEST(Trainer, ANonFiniteGradientChangesNothingAndStopsTheRunInTheEnd) {
  Context ctx(2);
  const ModelConfig c = small_config(Family::llama);
  OptimizerConfig optimizer = fast_optimizer();
  optimizer.max_nonfinite_steps = 3;
  auto trainer = make_trainer(ctx, c, preset("fused"), {}, optimizer);
  const Sequences data = mixed_sequences(c);
  const auto views = data.views();
  const auto train = [&](bool poisoned) {
    const auto good = weighted_objective(views);
    trainer->accumulate(ctx, views, 1.0f, [&](std::size_t first, std::size_t count, auto lp, auto h, auto argmax, auto d_lp, auto d_h) {
      good(first, count, lp, h, argmax, d_lp, d_h);
      if (poisoned) d_lp[2] = std::numeric_limits<float>::quiet_NaN();
    });
    return trainer->step(ctx);
  };
  EXPECT_FALSE(train(false).skipped);
  const std::string before = state_bytes(*trainer);
  const StepResult skipped = train(true);
  EXPECT_TRUE(skipped.skipped);
  EXPECT_NE(trainer->parameters().find(skipped.nonfinite), nullptr) << skipped.nonfinite;
  EXPECT_TRUE(state_bytes(*trainer) == before);
  EXPECT_EQ(trainer->state().optimizer_steps, 1);
  EXPECT_EQ(trainer->state().schedule_steps, 2);
  EXPECT_TRUE(train(true).skipped);
  EXPECT_FALSE(train(false).skipped);  // the count is of steps in a row, and nothing of the NaN is left
  EXPECT_EQ(trainer->state().nonfinite_in_a_row, 0);
  train(true);
  train(true);
  const std::string last = state_bytes(*trainer);
  try {
    train(true);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("not finite in 3 steps in a row"));
  }
  EXPECT_TRUE(state_bytes(*trainer) == last);
}

TEST(Trainer, FrozenParametersStay) {
  Context ctx(2);
  for (const bool tied : {true, false}) {
    const ModelConfig c = small_config(Family::qwen2, tied);
    OptimizerConfig optimizer = fast_optimizer();
    optimizer.frozen = {"model.embed_tokens.*", "model.layers.0.*"};
    auto trainer = make_trainer(ctx, c, preset("fused"), {}, optimizer);
    const Buffer start = lively_parameters(c, 5);
    const auto* before = static_cast<const float*>(start.data());
    const Sequences data = mixed_sequences(c);
    const auto views = data.views();
    trainer->accumulate(ctx, views, 1.0f, weighted_objective(views));
    const float* gradient = trainer->gradients(ctx);
    for (const Parameter& p : trainer->parameters().all()) {
      const bool frozen = p.layer == 0 || p.role == Role::embedding;
      const bool any = std::any_of(gradient + p.offset, gradient + p.offset + p.size(), [](float g) { return g != 0; });
      EXPECT_EQ(any, !frozen) << p.name;
    }
    trainer->step(ctx);
    const auto* after = static_cast<const float*>(trainer->state().master.data());
    for (const Parameter& p : trainer->parameters().all()) {
      const bool frozen = p.layer == 0 || p.role == Role::embedding;
      EXPECT_EQ(std::memcmp(before + p.offset, after + p.offset, std::size_t(p.size()) * sizeof(float)) == 0, frozen) << p.name;
    }
  }
}

TEST(Trainer, StepReportsNormClipRateAndUpdate) {
  Context ctx(2);
  const ModelConfig c = small_config(Family::qwen3);
  OptimizerConfig optimizer = fast_optimizer();
  optimizer.grad_clip = 0.5;
  optimizer.schedule = {.kind = LrSchedule::linear, .warmup_steps = 2, .total_steps = 10};
  auto trainer = make_trainer(ctx, c, preset("fused"), {}, optimizer);
  const Sequences data = mixed_sequences(c);
  const auto views = data.views();
  trainer->accumulate(ctx, views, 1.0f, weighted_objective(views));
  const float* gradient = trainer->gradients(ctx);
  double squares = 0;
  for (std::int64_t i = 0; i < trainer->parameters().flat_size(); ++i) squares += double(gradient[i]) * gradient[i];
  const Buffer start = lively_parameters(c, 5);
  const StepResult result = trainer->step(ctx);
  EXPECT_NEAR(result.grad_norm, std::sqrt(squares), 1e-12 * std::sqrt(squares));
  EXPECT_NEAR(result.clip_factor, 0.5 / std::sqrt(squares), 1e-5);
  EXPECT_DOUBLE_EQ(result.lr, 0.5e-2);
  double update = 0;
  double weights = 0;
  const auto* before = static_cast<const float*>(start.data());
  const auto* after = static_cast<const float*>(trainer->state().master.data());
  for (std::int64_t i = 0; i < trainer->parameters().flat_size(); ++i) {
    update += std::pow(double(after[i]) - before[i], 2);
    weights += std::pow(double(before[i]), 2);
  }
  EXPECT_NEAR(result.update_ratio, std::sqrt(update / weights), 1e-6 * result.update_ratio);
  for (std::int64_t i = 0; i < trainer->parameters().flat_size(); ++i) ASSERT_EQ(trainer->gradients(ctx)[i], 0);
}

TEST(Trainer, ResetStartsTheOptimizerAnew) {
  Context ctx(1);
  const ModelConfig c = small_config(Family::qwen3);
  const Sequences data = mixed_sequences(c);
  const auto views = data.views();
  auto warm = make_trainer(ctx, c, preset("fused"));
  warm->accumulate(ctx, views, 1.0f, weighted_objective(views));
  warm->step(ctx);
  OptimizerConfig next = fast_optimizer();
  next.frozen = {"model.norm.weight"};
  warm->reset_optimizer(next);
  auto fresh = make_trainer(ctx, c, preset("fused"), {}, next);
  fresh->state().master.write(warm->state().master.data(), 0, warm->state().master.size());
  fresh->refresh_weights(ctx);
  for (Trainer* t : {warm.get(), fresh.get()}) {
    t->accumulate(ctx, views, 1.0f, weighted_objective(views));
    t->step(ctx);
  }
  EXPECT_TRUE(state_bytes(*warm) == state_bytes(*fresh));
  EXPECT_EQ(warm->state().schedule_steps, 1);
}

TEST(Trainer, AResumedRunEqualsTheStraightOne) {
  Context ctx(2);
  const ModelConfig c = small_config(Family::qwen3);
  OptimizerConfig optimizer = fast_optimizer();
  optimizer.schedule = {.kind = LrSchedule::cosine, .warmup_steps = 2, .total_steps = 8};
  const Sequences data = mixed_sequences(c);
  const auto views = data.views();
  const auto train = [&](Trainer& t, int steps) {
    std::vector<double> rates;
    for (int i = 0; i < steps; ++i) {
      t.accumulate(ctx, views, 1.0f, weighted_objective(views));
      rates.push_back(t.step(ctx).lr);
    }
    return rates;
  };
  auto straight = make_trainer(ctx, c, preset("fused"), {}, optimizer);
  const std::vector<double> rates = train(*straight, 6);

  const test::TempFolder folder;
  auto first = make_trainer(ctx, c, preset("fused"), {}, optimizer);
  train(*first, 3);
  CheckpointStore store(folder, {}, {});
  store.save(3, [&](CheckpointWriter& w) { w.save("trainer", first->state()); });
  Trainer second(c, preset("fused"), {.micro_batch_tokens = 40}, optimizer, 40);
  CheckpointReader(*store.newest().path).load("trainer", second.state());
  second.refresh_weights(ctx);
  EXPECT_TRUE(state_bytes(second) == state_bytes(*first));
  const std::vector<double> later = train(second, 3);
  EXPECT_TRUE(state_bytes(second) == state_bytes(*straight));
  EXPECT_EQ(later, std::vector<double>(rates.begin() + 3, rates.end()));
  EXPECT_EQ(second.state().optimizer_steps, 6);
}

TEST(Trainer, ScoreHandsOutLogits) {
  Context ctx(2);
  const ModelConfig c = small_config(Family::qwen3);
  for (const char* name : {"fp32", "hf_eager"}) {
    auto trainer = make_trainer(ctx, c, preset(name), {.micro_batch_tokens = 50});
    const Sequences data = mixed_sequences(c);
    const auto views = data.views();
    const TokenScores plain = trainer->score(ctx, trainer->weights(), views, 0.7f);
    const auto n = std::int64_t(plain.logprob.size());
    const DType dtype = preset(name).compute;
    Buffer memory(std::size_t(n * c.vocab_size) * bytes_of(dtype));
    const Mat logits = make_mat(memory.data(), n, c.vocab_size, dtype);
    EXPECT_EQ(trainer->score(ctx, trainer->weights(), views, 0.7f, logits).logprob, plain.logprob);
    std::vector<float> z(std::size_t(c.vocab_size));
    std::int64_t row = 0;
    const Sites sites = preset(name).sites(c.layers - 1, c.layers, Place::final_norm);
    for (const TrainSequence& s : views)
      for (std::int64_t p = s.prompt_len; p < std::int64_t(s.tokens.size()); ++p, ++row) {
        const RowLogprob stats = row_log_softmax(logits.row_bytes(row), dtype, c.vocab_size, 0.7f, sites, z.data());
        ASSERT_EQ(logprob_of(stats, z[std::size_t(s.tokens[std::size_t(p)])]), plain.logprob[std::size_t(row)]);
      }
  }
}

TEST(Trainer, MemoryIsWhatWasSaid) {
  for (const Family family : kFamilies)
    for (const bool recompute : {false, true}) {
      const ModelConfig c = small_config(family, family == Family::llama);
      const ExecutionConfig e = {.recompute = recompute, .micro_batch_tokens = 300};
      for (const char* name : {"fused", "hf_eager", "fp32"})
        EXPECT_EQ(Trainer(c, preset(name), e, {}, 40).memory_bytes(), Trainer::memory_bytes(c, preset(name), e, {}, 40));
    }
}

TEST(Trainer, BadInputIsRefused) {
  Context ctx(1);
  const ModelConfig c = small_config(Family::llama);
  EXPECT_THROW(Trainer(c, preset("fused"), {.micro_batch_tokens = 39}, {}, 40), UsageError);
  EXPECT_THROW(Trainer(c, preset("fused"), {}, {.frozen = {"model.embed.*"}}, 40), UsageError);
  EXPECT_THROW(Trainer(c, preset("fused"), {}, {.frozen = {"*"}}, 40), UsageError);
  EXPECT_THROW(Trainer(c, preset("fused"), {}, {.lr = -1}, 40), UsageError);
  EXPECT_THROW(Trainer(c, preset("fused"), {}, {.schedule = {.kind = LrSchedule::cosine}}, 40), UsageError);
  auto trainer = make_trainer(ctx, c, preset("fused"));
  const Ids good = {1, 2, 3};
  const Ids bad = {1, 61, 3};
  const Ids too_long(41, 1);
  const auto score = [&](const Ids& ids, std::int64_t prompt_len, float temperature = 1) {
    const TrainSequence s = {.tokens = ids, .prompt_len = prompt_len};
    return trainer->score(ctx, trainer->weights(), std::span(&s, 1), temperature);
  };
  EXPECT_NO_THROW(score(good, 1));
  EXPECT_THROW(score(good, 0), Error);
  EXPECT_THROW(score(good, 4), Error);
  EXPECT_THROW(score(bad, 1), Error);
  EXPECT_THROW(score({}, 1), Error);
  EXPECT_THROW(score(too_long, 1), Error);
  EXPECT_THROW(score(good, 1, 0), UsageError);
}

}  // namespace
}  // namespace plumb
