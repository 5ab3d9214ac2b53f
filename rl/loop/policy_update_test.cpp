#include "rl/loop/policy_update.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/core/rng.h"

namespace plumb {
namespace {

ModelConfig small_model() {
  return {.vocab_size = 19,
          .hidden_size = 24,
          .intermediate_size = 40,
          .layers = 2,
          .heads = 2,
          .kv_heads = 1,
          .head_dim = 12,
          .max_positions = 32,
          .qk_norm = true,
          .init_range = .3};
}

/// A few sequences of unequal length with random advantages, old and reference log-probs.
struct Data {
  explicit Data(std::vector<std::int64_t> response_lengths) {
    for (std::size_t s = 0; s < response_lengths.size(); ++s) {
      const std::int64_t n = response_lengths[s];
      std::vector<std::int32_t> ids;
      for (std::int64_t i = 0; i < 3 + n; ++i)
        ids.push_back(std::int32_t(random_below({.seed = 7, .draw = std::uint32_t(s)}, std::uint64_t(i), 19)));
      tokens.push_back(std::move(ids));
      old.push_back(random_row(s, n, 1, -5));
      ref.push_back(random_row(s, n, 2, -5));
      advantage.emplace_back(std::size_t(n), 2 * random_uniform({.seed = 9}, s) - 1);
      mask.emplace_back(std::size_t(n), 1);
    }
  }
  static std::vector<float> random_row(std::size_t s, std::int64_t n, std::uint32_t what, float scale) {
    std::vector<float> out;
    for (std::int64_t i = 0; i < n; ++i)
      out.push_back(scale * random_uniform({.seed = 8, .step = what, .draw = std::uint32_t(s)}, std::uint64_t(i)));
    return out;
  }
  std::vector<UpdateSequence> sequences(bool with_old = true) const {
    std::vector<UpdateSequence> out;
    for (std::size_t s = 0; s < tokens.size(); ++s) {
      out.push_back({.tokens = {.tokens = tokens[s], .prompt_len = 3},
                     .old_logprob = with_old ? std::span<const float>(old[s]) : std::span<const float>(),
                     .ref_logprob = ref[s],
                     .advantage = advantage[s],
                     .mask = mask[s]});
    }
    return out;
  }
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<std::vector<float>> old, ref, advantage;
  std::vector<std::vector<std::uint8_t>> mask;
};

class PolicyUpdate : public testing::Test {
 protected:
  std::unique_ptr<Trainer> trainer(const char* numerics, int micro_batch_tokens = 512) {
    auto t = std::make_unique<Trainer>(small_model(), preset(numerics), ExecutionConfig{.micro_batch_tokens = micro_batch_tokens},
                                       OptimizerConfig{.lr = 1e-2, .weight_decay = .1}, 24);
    t->state().master = random_parameters(t->parameters(), t->model_config(), 4);
    t->refresh_weights(ctx_);
    return t;
  }
  static std::vector<float> floats(const Buffer& b) {
    std::vector<float> out(b.size() / sizeof(float));
    b.read(out.data(), 0, b.size());
    return out;
  }
  Context ctx_{2};
};

constexpr UpdateSettings kEverything{.objective = {.kl = KlEstimator::k3, .kl_coef = .1, .entropy_coef = .02}, .temperature = .8f};

TEST_F(PolicyUpdate, TheSplitIntoMicroBatchesChangesNoBit) {
  const Data data({1, 9, 4, 17, 2, 2, 11});
  for (const Aggregation rule :
       {Aggregation::token_mean, Aggregation::seq_mean_token_sum, Aggregation::seq_mean_token_mean, Aggregation::constant}) {
    UpdateSettings settings = kEverything;
    settings.aggregation = rule;
    settings.constant_length = 20;
    std::vector<float> weights;
    double loss = 0;
    for (const int micro_batch_tokens : {512, 60, 24}) {
      const auto t = trainer("fused", micro_batch_tokens);
      const UpdateResult r = policy_update(ctx_, *t, data.sequences(), settings);
      if (weights.empty()) {
        weights = floats(t->state().master);
        loss = r.sums.loss;
      }
      EXPECT_EQ(r.sums.loss, loss);
      EXPECT_EQ(floats(t->state().master), weights);
    }
  }
}

TEST_F(PolicyUpdate, NothingToLearnLeavesEverythingUnmoved) {
  Data data({3, 8});
  for (auto& m : data.mask) m.assign(m.size(), 0);
  const auto t = trainer("fused");
  const auto before = floats(t->state().master);
  TokenScores scores;
  const UpdateResult r = policy_update(ctx_, *t, data.sequences(), kEverything, &scores);
  EXPECT_TRUE(r.nothing_to_learn);
  EXPECT_EQ(r.sums.loss, 0.0);
  EXPECT_EQ(floats(t->state().master), before);
  EXPECT_EQ(t->state().optimizer_steps, 0);
  for (const float m : floats(t->state().m)) EXPECT_EQ(m, 0.0f);
  EXPECT_EQ(scores.logprob.size(), 11u);
}

TEST_F(PolicyUpdate, MaskedAnswersLeaveTheDenominator) {
  Data both({3, 8});
  both.mask[1].assign(8, 0);
  const Data alone({3});
  const auto a = trainer("fused"), b = trainer("fused");
  const UpdateResult with_masked = policy_update(ctx_, *a, both.sequences(), kEverything);
  const UpdateResult without = policy_update(ctx_, *b, alone.sequences(), kEverything);
  EXPECT_EQ(with_masked.sums.tokens, 3);
  EXPECT_EQ(with_masked.sums.loss, without.sums.loss);
  EXPECT_EQ(floats(a->state().master), floats(b->state().master));
}

TEST_F(PolicyUpdate, WithoutOldLogProbsTheRatioIsExactlyOne) {
  Data data({5, 6, 2});
  const auto a = trainer("fused"), b = trainer("fused");
  TokenScores scores;
  const UpdateResult fused = policy_update(ctx_, *a, data.sequences(false), kEverything, &scores);
  EXPECT_EQ(fused.sums.log_ratio, 0.0);
  std::size_t at = 0;
  for (auto& row : data.old) {
    for (float& x : row) x = scores.logprob[at++];
  }
  const UpdateResult recomputed = policy_update(ctx_, *b, data.sequences(), kEverything);
  EXPECT_EQ(recomputed.sums.loss, fused.sums.loss);
  EXPECT_EQ(floats(a->state().master), floats(b->state().master));
}

/// |g| against the change of the loss along g/|g|.
void expect_gradient(Context& ctx, Trainer& t, const std::vector<UpdateSequence>& sequences, const UpdateSettings& settings) {
  policy_gradients(ctx, t, sequences, settings);
  const std::size_t n = std::size_t(t.parameters().flat_size());
  const float* from = t.gradients(ctx);
  const std::vector<float> gradient(from, from + n);
  t.clear_gradients();
  double norm = 0;
  for (const float g : gradient) norm += double(g) * g;
  norm = std::sqrt(norm);
  ASSERT_GT(norm, 0);
  std::vector<float> start(n);
  t.state().master.read(start.data(), 0, n * sizeof(float));
  const auto loss_at = [&](double h) {
    std::vector<float> moved(n);
    for (std::size_t i = 0; i < n; ++i) moved[i] = float(start[i] + h * gradient[i] / norm);
    t.state().master.write(moved.data(), 0, n * sizeof(float));
    t.refresh_weights(ctx);
    const double loss = policy_gradients(ctx, t, sequences, settings).loss;
    t.clear_gradients();
    return loss;
  };
  const double h = 2e-3;
  EXPECT_NEAR((loss_at(h) - loss_at(-h)) / (2 * h), norm, 5e-3 * norm);
}

TEST_F(PolicyUpdate, GradientOfKlWithoutAdvantagesIsTheFiniteDifference) {
  Data data({4, 7, 1});
  for (auto& row : data.advantage) row.assign(row.size(), 0.0f);
  for (const KlEstimator kl : {KlEstimator::k1, KlEstimator::k2, KlEstimator::k3}) {
    const auto t = trainer("fp32");
    expect_gradient(ctx_, *t, data.sequences(), {.objective = {.kl = kl, .kl_coef = .3}, .temperature = .9f});
  }
}

TEST_F(PolicyUpdate, GradientOfTheWholeObjectiveIsTheFiniteDifference) {
  const Data data({4, 7, 1, 12});
  UpdateSettings settings = kEverything;
  settings.objective.clip = {.low = .9, .high = 50, .dual = 0};  // wide: kinks would spoil the difference
  const auto t = trainer("fp32");
  expect_gradient(ctx_, *t, data.sequences(), settings);
}

}  // namespace
}  // namespace plumb
