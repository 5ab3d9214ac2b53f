// Sampler and trainer agree to the last bit when their numerics are equal, before and after updates; and measurably do not
// when two real stacks are paired.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/e2e/process.h"

namespace plumb::e2e {
namespace {

std::vector<nlohmann::json> steps_of(const TempFolder& tmp, const std::vector<std::string>& settings) {
  write_file(tmp / "run.yaml", tiny_grpo_config(6));
  std::vector<std::string> arguments = {"train", tmp / "run.yaml", "--out", tmp / "run", "--quiet"};
  for (const auto& s : settings) arguments.insert(arguments.end(), {"--set", s});
  const Finished f = plumb(arguments);
  EXPECT_EQ(f.code, 0) << f.err;
  return mismatch_rows(tmp / "run");
}

class SlowParity : public testing::TestWithParam<std::tuple<const char*, const char*, const char*>> {};

TEST_P(SlowParity, EveryMismatchMetricIsAtItsIdentityValue) {
  const auto [preset, temperature, old] = GetParam();
  TempFolder tmp;
  const auto rows = steps_of(tmp, {std::string("numerics.rollout=") + preset, std::string("sampling.temperature=") + temperature,
                                   std::string("grpo.old_logprobs=") + old});
  ASSERT_EQ(rows.size(), 6u);
  for (const auto& row : rows) expect_no_mismatch(row);
}

INSTANTIATE_TEST_SUITE_P(Presets, SlowParity,
                         testing::Combine(testing::Values("fused", "hf_eager", "vllm_cpu_compiled", "fp32"), testing::Values("1.0", "0.7"),
                                          testing::Values("recompute", "rollout")));

TEST(SlowMismatch, TwoRealStacksDifferByTheKnownSize) {
  TempFolder tmp;
  const auto rows = steps_of(tmp, {"numerics.rollout=vllm_cpu_compiled", "numerics.update=hf_eager"});
  ASSERT_EQ(rows.size(), 6u);
  double mean = 0;
  for (const auto& row : rows) {
    EXPECT_LT(row["mismatch/bitwise_equal_frac"].get<double>(), 0.9);
    mean += row["mismatch/abs_logp_diff_mean"].get<double>() / double(rows.size());
  }
  // 0.009-0.012 was measured between the real stacks on random models of this spread: between a third and three times that
  EXPECT_GT(mean, 3e-3);
  EXPECT_LT(mean, 3.6e-2);
}

}  // namespace
}  // namespace plumb::e2e
