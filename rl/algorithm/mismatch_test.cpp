#include "rl/algorithm/mismatch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "kernels/core/rng.h"

namespace plumb {
namespace {

std::map<std::string, double> as_map(const Mismatch& m) {
  std::map<std::string, double> out;
  for (const auto& [name, value] : m.metrics()) out[name] = value;
  return out;
}

TEST(Mismatch, ReferenceNumbers) {
  const std::vector<float> t0{-1, -2, -.5f}, g0{-1.1f, -1, -.5f}, t1{-1, -3}, g1{-1, -5};
  Mismatch mismatch;
  mismatch.add({.trainer = t0, .rollout = g0});
  mismatch.add({.trainer = t1, .rollout = g1});
  auto m = as_map(mismatch);
  EXPECT_NEAR(m["mismatch/kl"], -.22, 1e-7);
  EXPECT_NEAR(m["mismatch/k3"], .95242129, 1e-7);
  EXPECT_NEAR(m["mismatch/chi2_token"], 10.59097761, 1e-6);
  EXPECT_NEAR(m["mismatch/chi2_seq"], 26.38172446, 1e-6);
  EXPECT_NEAR(m["mismatch/abs_logp_diff_mean"], .62, 1e-7);
  EXPECT_EQ(m["mismatch/abs_logp_diff_max"], 2);
  EXPECT_EQ(m["mismatch/abs_logp_diff_p99"], 2);
  EXPECT_NEAR(m["mismatch/prob_diff_mean"], .06212033, 1e-7);
  EXPECT_NEAR(m["mismatch/token_mult_prob_error"], 2.64250177, 1e-7);
  EXPECT_NEAR(m["mismatch/log_ppl_diff"], -.35, 1e-7);
  EXPECT_NEAR(m["mismatch/ratio_min"], .3678794, 1e-7);
  EXPECT_NEAR(m["mismatch/ratio_max"], 7.3890561, 1e-7);
  EXPECT_EQ(m["mismatch/bitwise_equal_frac"], 2.0 / 5);
  EXPECT_FALSE(m.contains("mismatch/argmax_flip_frac"));
  // The effective sample size after truncating the weights at 2 is given as .81433592; ours is before any truncation.
  const double w[] = {std::exp(double(t0[0]) - g0[0]), std::exp(-1.0), 1, 1, std::exp(2.0)};
  double sum = 0, squares = 0;
  for (const double x : w) {
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(m["mismatch/ess"], sum * sum / (5 * squares), 1e-12);
}

/// n random log-probs in [-8, 0).
std::vector<float> random_logprobs(std::uint32_t sample, std::size_t n) {
  std::vector<float> out(n);
  for (std::size_t i = 0; i < n; ++i) out[i] = -8 * random_uniform({.seed = 3, .sample = sample}, i);
  return out;
}

TEST(Mismatch, IdentityExactlyWhenNothingDiffers) {
  Mismatch equal;
  Mismatch one_bit;
  for (std::uint32_t s = 0; s < 13; ++s) {
    const auto t = random_logprobs(s, 5 + s);
    const std::vector<std::int32_t> argmax(t.size(), 4);
    equal.add({.trainer = t, .rollout = t, .trainer_argmax = argmax, .rollout_argmax = argmax});
    auto g = t;
    auto other = argmax;
    if (s == 7) {
      g[3] = std::nextafter(g[3], 0.0f);
      other[2] = 5;
    }
    one_bit.add({.trainer = t, .rollout = g, .trainer_argmax = argmax, .rollout_argmax = other});
  }
  const std::map<std::string, double> identity{{"mismatch/kl", 0},
                                               {"mismatch/k3", 0},
                                               {"mismatch/abs_logp_diff_mean", 0},
                                               {"mismatch/abs_logp_diff_max", 0},
                                               {"mismatch/abs_logp_diff_p99", 0},
                                               {"mismatch/prob_diff_mean", 0},
                                               {"mismatch/token_mult_prob_error", 1},
                                               {"mismatch/chi2_token", 0},
                                               {"mismatch/chi2_seq", 0},
                                               {"mismatch/ess", 1},
                                               {"mismatch/ess_seq", 1},
                                               {"mismatch/log_ppl_diff", 0},
                                               {"mismatch/ratio_min", 1},
                                               {"mismatch/ratio_max", 1},
                                               {"mismatch/argmax_flip_frac", 0},
                                               {"mismatch/bitwise_equal_frac", 1}};
  auto same = as_map(equal);
  for (const auto& [name, value] : identity) EXPECT_EQ(same.at(name), value) << name;
  EXPECT_EQ(same.at("mismatch/ppl_train"), same.at("mismatch/ppl_rollout"));
  auto differs = as_map(one_bit);
  for (const char* name :
       {"mismatch/kl", "mismatch/k3", "mismatch/abs_logp_diff_mean", "mismatch/abs_logp_diff_max", "mismatch/prob_diff_mean",
        "mismatch/log_ppl_diff", "mismatch/argmax_flip_frac", "mismatch/bitwise_equal_frac"}) {
    EXPECT_NE(differs.at(name), identity.at(name)) << name;
  }
  EXPECT_LT(differs.at("mismatch/ratio_min"), 1.0);
}

TEST(Mismatch, ImprobableTokensStayFinite) {
  const std::vector<float> t{-2e4f, -60}, g{-2e4f, -60};
  Mismatch mismatch;
  mismatch.add({.trainer = t, .rollout = g});
  auto m = as_map(mismatch);
  EXPECT_EQ(m["mismatch/ratio_max"], 1);
  EXPECT_EQ(m["mismatch/ess"], 1);
}

TEST(Mismatch, SmallDifferencesKeepTheirDigits) {
  const std::vector<float> t{-1.0f}, g{std::nextafter(-1.0f, 0.0f)};
  Mismatch mismatch;
  mismatch.add({.trainer = t, .rollout = g});
  const double d = double(t[0]) - double(g[0]);
  EXPECT_NEAR(as_map(mismatch)["mismatch/k3"], d * d / 2, d * d * 1e-6);
}

TEST(Mismatch, NothingToMeasureGivesNothing) { EXPECT_TRUE(Mismatch().metrics().empty()); }

}  // namespace
}  // namespace plumb
