// The GRPO parts of third-party reference values: core_algos.json (no clip is ever active) and policy_wide.json (every one is).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "rl/algorithm/advantages.h"
#include "rl/algorithm/aggregation.h"
#include "rl/algorithm/mismatch.h"
#include "rl/algorithm/objective.h"

namespace plumb {
namespace {

using nlohmann::json;
using Rows = std::vector<std::vector<float>>;

constexpr double kRelative = 1e-5;
constexpr double kAbsolute = 1e-6;

void expect_close(double actual, double expected, const std::string& what) {
  EXPECT_NEAR(actual, expected, kAbsolute + kRelative * std::abs(expected)) << what;
}

class RlGolden : public testing::Test {
 protected:
  static json read(const std::string& name) {
    const char* shared = std::getenv("PLUMB_SHARED");
    if (!shared) return {};
    return json::parse(std::ifstream(std::string(shared) + "/conformance/rl/" + name));
  }
};
#define SKIP_WITHOUT(golden) \
  if ((golden).is_null()) GTEST_SKIP() << "PLUMB_SHARED is not set: the third-party golden values are not there"

std::vector<std::uint8_t> mask_row(const json& row) {
  std::vector<std::uint8_t> out;
  for (const double x : row.get<std::vector<double>>()) out.push_back(x != 0);
  return out;
}

std::vector<std::int64_t> valid_lengths(const json& mask) {
  std::vector<std::int64_t> out;
  for (const auto& row : mask) {
    std::int64_t n = 0;
    for (const std::uint8_t m : mask_row(row)) n += m;
    out.push_back(n);
  }
  return out;
}

TEST_F(RlGolden, GroupAdvantages) {
  const json golden = read("core_algos.json");
  SKIP_WITHOUT(golden);
  int compared = 0;
  for (const json& c : golden.at("adv")) {
    const auto groups = c.at("index").get<std::vector<std::uint32_t>>();
    std::vector<double> rewards;
    for (const auto& row : c.at("token_level_rewards").get<Rows>()) {
      double sum = 0;
      for (const float r : row) sum += r;
      rewards.push_back(sum);
    }
    for (const auto& [name, scale] : {std::pair{"grpo_norm", AdvantageScale::group}, std::pair{"grpo_no_std", AdvantageScale::none}}) {
      const auto expected = c.at(name).at("adv").get<Rows>();
      const auto actual = group_advantages(rewards, groups, {}, scale, 1e-6);
      for (std::size_t s = 0; s < expected.size(); ++s) {
        const auto mask = mask_row(c.at("response_mask")[s]);
        for (std::size_t t = 0; t < mask.size(); ++t) {
          expect_close(mask[t] ? actual[s] : 0.0, expected[s][t], name);
          ++compared;
        }
      }
    }
  }
  EXPECT_GE(compared, 96);
}

/// The rule and constant length behind one of the reference's names.
struct Rule {
  Aggregation rule;
  double factor = 1;
  std::int64_t constant_length = 0;
};

/// `divides_plain_sum`: in that file seq-mean-token-sum-norm is the plain sum divided by the width, not its mean over sequences.
Rule rule_of(const std::string& name, std::int64_t width, std::int64_t sequences, bool divides_plain_sum) {
  if (name == "token-mean") return {Aggregation::token_mean};
  if (name == "seq-mean-token-sum") return {Aggregation::seq_mean_token_sum};
  if (name == "seq-mean-token-mean") return {Aggregation::seq_mean_token_mean};
  EXPECT_EQ(name, "seq-mean-token-sum-norm");
  return {Aggregation::constant, divides_plain_sum ? double(sequences) : 1.0, width};
}

void check_policy_result(const json& c, const json& r, bool divides_plain_sum) {
  const std::string advantages_key = r.contains("advantages") ? "advantages_" + r.at("advantages").get<std::string>() : "advantages";
  const auto logprob = c.at("log_prob").get<Rows>(), old = c.at("old_log_prob").get<Rows>();
  const auto advantages = c.at(advantages_key).get<Rows>(), expected = r.at("grad_log_prob").get<Rows>();
  const auto lengths = valid_lengths(c.at("response_mask"));
  const std::size_t width = logprob.front().size();
  const Rule rule = rule_of(r.at("agg"), std::int64_t(width), std::int64_t(logprob.size()), divides_plain_sum);
  const auto weights = aggregation_weights(rule.rule, lengths, rule.constant_length);
  const ObjectiveSettings settings{.clip = {.low = r.at("clip_low"), .high = r.at("clip_high"), .dual = r.at("clip_c")}};

  ObjectiveSums sums;
  const std::vector<float> entropy(width, 0.0f);
  for (std::size_t s = 0; s < logprob.size(); ++s) {
    const auto mask = mask_row(c.at("response_mask")[s]);
    std::vector<float> d_logprob(width), d_entropy(width);
    sums += policy_objective(settings,
                             {.logprob = logprob[s],
                              .entropy = entropy,
                              .old_logprob = old[s],
                              .advantage = advantages[s],
                              .mask = mask,
                              .weight = weights[s] * rule.factor},
                             d_logprob, d_entropy);
    for (std::size_t t = 0; t < width; ++t) expect_close(d_logprob[t], expected[s][t], r.dump());
  }
  expect_close(sums.policy_loss, r.at("loss"), "loss");
  const double n = double(sums.tokens);
  const json& metrics = r.at("metrics");
  expect_close(double(sums.clipped_low + sums.clipped_high) / n, metrics.at("actor/pg_clipfrac"), "clip fraction");
  expect_close(double(sums.clipped_dual) / n, metrics.at("actor/pg_clipfrac_lower"), "dual clip fraction");
  expect_close(sums.log_ratio / n, metrics.at("actor/ppo_kl"), "ppo_kl");
}

void check_policy(const json& golden, bool divides_plain_sum, int at_least) {
  int compared = 0;
  for (const json& c : golden.at("policy")) {
    for (const json& r : c.at("results")) {
      if (r.at("loss_fn") != "vanilla" || r.at("is_weights").get<bool>()) continue;
      check_policy_result(c, r, divides_plain_sum);
      ++compared;
    }
  }
  EXPECT_GE(compared, at_least);
}

TEST_F(RlGolden, PolicyLossesWithoutActiveClip) {
  const json golden = read("core_algos.json");
  SKIP_WITHOUT(golden);
  check_policy(golden, true, 8);
}

TEST_F(RlGolden, PolicyLossesWithActiveClips) {
  const json golden = read("policy_wide.json");
  SKIP_WITHOUT(golden);
  check_policy(golden, false, 72);
}

TEST_F(RlGolden, KlEstimators) {
  const json golden = read("core_algos.json");
  SKIP_WITHOUT(golden);
  int compared = 0;
  for (const json& c : golden.at("kl")) {
    const auto logprob = c.at("logprob").get<Rows>(), ref = c.at("ref_logprob").get<Rows>();
    for (const auto& [name, estimator] : {std::pair{"k1", KlEstimator::k1}, std::pair{"k2", KlEstimator::k2},
                                          std::pair{"k3", KlEstimator::k3}, std::pair{"low_var_kl", KlEstimator::k3}}) {
      const json& entry = c.at(name);
      const auto value = entry.at("value").get<Rows>();
      for (std::size_t s = 0; s < value.size(); ++s) {
        for (std::size_t t = 0; t < value[s].size(); ++t) {
          const KlTerm term = kl_estimate(estimator, logprob[s][t], ref[s][t]);
          expect_close(term.value, value[s][t], name);
          if (entry.contains("grad")) expect_close(term.d_logp, entry.at("grad").get<Rows>()[s][t], name);
          ++compared;
        }
      }
    }
  }
  EXPECT_GE(compared, 64);
}

TEST_F(RlGolden, MismatchMetrics) {
  const json golden = read("policy_wide.json");
  SKIP_WITHOUT(golden);
  for (const json& c : golden.at("correction")) {
    const auto trainer = c.at("old_log_prob").get<Rows>(), rollout = c.at("rollout_log_prob").get<Rows>();
    const auto lengths = valid_lengths(c.at("response_mask"));
    Mismatch mismatch;
    for (std::size_t s = 0; s < trainer.size(); ++s) {
      const std::size_t n = std::size_t(lengths[s]);
      mismatch.add({.trainer = std::span(trainer[s]).first(n), .rollout = std::span(rollout[s]).first(n)});
    }
    std::map<std::string, double> m;
    for (const auto& [name, value] : mismatch.metrics()) m[name] = value;
    const json& expected = c.at("mismatch_metrics");
    for (const auto& [ours, theirs] :
         {std::pair{"mismatch/kl", "kl"}, std::pair{"mismatch/k3", "k3_kl"}, std::pair{"mismatch/ppl_train", "training_ppl"},
          std::pair{"mismatch/ppl_rollout", "rollout_ppl"}, std::pair{"mismatch/log_ppl_diff", "log_ppl_diff"},
          std::pair{"mismatch/chi2_token", "chi2_token"}, std::pair{"mismatch/chi2_seq", "chi2_seq"}}) {
      expect_close(m.at(ours), expected.at(theirs), theirs);
    }
  }
}

}  // namespace
}  // namespace plumb
