// A whole GRPO update computed by independent code in FP32 (conformance/rl/train_grpo): three epochs of two mini-batches from
// recorded rollouts, through the ordinary trainer and objective. Every logged figure and the final weights must agree.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "engine/trainer/trainer.h"
#include "model/safetensors/safetensors.h"
#include "rl/algorithm/advantages.h"
#include "rl/loop/policy_update.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;

/// (rows, width), row-major
struct Table {
  std::vector<float> values;
  std::size_t width = 0;
  explicit Table(const StoredTensor& t) : values(read_f32(t)), width(std::size_t(t.shape[1])) {}
  std::span<const float> row(std::size_t r, std::size_t n) const { return std::span(values).subspan(r * width, n); }
};

struct Golden {
  explicit Golden(const fs::path& folder)
      : log(read_json(folder / "log.json")),
        file(folder / "golden.safetensors"),
        ids(read_i64(file.get("input_ids"))),
        old_logprob(file.get("old_log_prob")),
        ref_logprob(file.get("ref_log_prob")),
        advantages(file.get("advantages")),
        response_mask(file.get("response_mask")),
        prompt_len(log.at("prompt_len")) {
    const std::size_t width = std::size_t(prompt_len) + response_mask.width;
    for (std::size_t r = 0; r < ids.size() / width; ++r) {
      std::size_t n = 0;
      for (const float m : response_mask.row(r, response_mask.width)) n += m != 0;
      lengths.push_back(n);
      tokens.emplace_back(ids.begin() + std::ptrdiff_t(r * width), ids.begin() + std::ptrdiff_t(r * width + std::size_t(prompt_len) + n));
      masks.emplace_back(n, 1);
    }
  }
  TrainSequence sequence(std::size_t r) const { return {.tokens = tokens[r], .prompt_len = prompt_len}; }
  UpdateSequence update(std::size_t r) const {
    return {.tokens = sequence(r),
            .old_logprob = old_logprob.row(r, lengths[r]),
            .ref_logprob = ref_logprob.row(r, lengths[r]),
            .advantage = advantages.row(r, lengths[r]),
            .mask = masks[r]};
  }

  nlohmann::json log;
  SafetensorsFile file;
  std::vector<std::int64_t> ids;
  Table old_logprob, ref_logprob, advantages, response_mask;
  std::int64_t prompt_len;
  std::vector<std::size_t> lengths;
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<std::vector<std::uint8_t>> masks;
};

class TrainGrpoGolden : public testing::Test {
 protected:
  void SetUp() override {
    const char* shared = std::getenv("PLUMB_SHARED");
    if (!shared) GTEST_SKIP() << "PLUMB_SHARED is not set: the third-party golden values are not there";
    base_ = fs::path(shared) / "data/models/tiny-qwen3-tied";
    golden_ = std::make_unique<Golden>(fs::path(shared) / "conformance/rl/train_grpo");
    config_ = read_hf_config(base_);
    trainer_ = std::make_unique<Trainer>(config_, preset("fp32"), ExecutionConfig{.micro_batch_tokens = 64},
                                         OptimizerConfig{.lr = 1e-4, .weight_decay = .01, .grad_clip = 1}, 17);
    trainer_->state().master = load_hf_parameters(base_, trainer_->parameters(), config_);
    trainer_->refresh_weights(ctx_);
  }

  void expect_scores(const Weights& weights, const Table& expected) {
    for (std::size_t r = 0; r < golden_->tokens.size(); ++r) {
      const TrainSequence sequence = golden_->sequence(r);
      const TokenScores scores = trainer_->score(ctx_, weights, std::span(&sequence, 1), 1.0f);
      for (std::size_t t = 0; t < scores.logprob.size(); ++t) EXPECT_NEAR(scores.logprob[t], expected.row(r, t + 1)[t], 2e-5);
    }
  }

  static std::vector<float> values_of(const Buffer& flat, const Parameter& p) {
    std::vector<float> out(std::size_t(p.size()));
    flat.read(out.data(), std::size_t(p.offset) * sizeof(float), out.size() * sizeof(float));
    return out;
  }

  Context ctx_{2};
  fs::path base_;
  ModelConfig config_;
  std::unique_ptr<Golden> golden_;
  std::unique_ptr<Trainer> trainer_;
};

TEST_F(TrainGrpoGolden, LogProbsBeforeTheUpdate) {
  expect_scores(trainer_->weights(), golden_->old_logprob);
  Weights reference(config_, DType::f32);
  Buffer master(std::size_t(trainer_->parameters().flat_size()) * sizeof(float));
  for (const Parameter& p : trainer_->parameters().all()) {
    const auto values = read_f32(golden_->file.get("ref." + p.name));
    master.write(values.data(), std::size_t(p.offset) * sizeof(float), values.size() * sizeof(float));
  }
  set_weights(ctx_, reference, master);
  expect_scores(reference, golden_->ref_logprob);
}

TEST_F(TrainGrpoGolden, Advantages) {
  const auto a = group_advantages(golden_->log.at("rewards").get<std::vector<double>>(),
                                  golden_->log.at("group_index").get<std::vector<std::uint32_t>>(), {}, AdvantageScale::group, 1e-6);
  for (std::size_t r = 0; r < a.size(); ++r) {
    for (const float expected : golden_->advantages.row(r, golden_->lengths[r])) EXPECT_NEAR(a[r], expected, 1e-6);
  }
}

TEST_F(TrainGrpoGolden, EveryLoggedFigureAndTheFinalWeights) {
  const UpdateSettings settings{.objective = {.clip = {.low = .2, .high = .28, .dual = 3}, .kl = KlEstimator::k3, .kl_coef = .02}};
  for (const auto& line : golden_->log.at("log")) {
    std::vector<UpdateSequence> mini_batch;
    for (const std::size_t r : line.at("mb").get<std::vector<std::size_t>>()) mini_batch.push_back(golden_->update(r));
    const UpdateResult result = policy_update(ctx_, *trainer_, mini_batch, settings);
    const double n = double(result.sums.tokens);
    const auto expect = [&](double actual, const char* key, double relative, double absolute) {
      const double expected = line.at(key);
      EXPECT_NEAR(actual, expected, absolute + relative * std::abs(expected)) << key << " in " << line.dump();
    };
    expect(result.sums.loss, "loss", 1e-4, 2e-6);
    expect(result.sums.policy_loss, "pg_loss", 1e-4, 2e-6);
    expect(result.sums.kl / n, "kl", 1e-4, 2e-6);
    expect(result.step.grad_norm, "grad_norm", 1e-4, 0);
    expect(double(result.sums.clipped_low + result.sums.clipped_high) / n, "actor/pg_clipfrac", 0, 1e-6);
    expect(double(result.sums.clipped_dual) / n, "actor/pg_clipfrac_lower", 0, 1e-6);
    expect(result.sums.log_ratio / n, "actor/ppo_kl", 1e-4, 2e-6);
  }
  // Per tensor, the difference against the whole change: single elements whose gradients are all rounding noise may move by as
  // much as Adam's normalisation makes of noise, at most lr a step.
  const Buffer start = load_hf_parameters(base_, trainer_->parameters(), config_);
  for (const Parameter& p : trainer_->parameters().all()) {
    const auto expected = read_f32(golden_->file.get("final." + p.name));
    const auto actual = values_of(trainer_->state().master, p);
    const auto before = values_of(start, p);
    double difference = 0, change = 0, worst = 0;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const double d = double(actual[i]) - expected[i];
      difference += d * d;
      change += (double(expected[i]) - before[i]) * (double(expected[i]) - before[i]);
      worst = std::max(worst, std::abs(d));
    }
    EXPECT_LT(std::sqrt(difference), 1e-3 * std::sqrt(change)) << p.name;
    EXPECT_LT(worst, .05 * 6 * 1e-4) << p.name;
  }
}

}  // namespace
}  // namespace plumb
