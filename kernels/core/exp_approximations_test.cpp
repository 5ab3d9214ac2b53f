#include "kernels/core/exp_approximations.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace plumb {
namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN();

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

/// Calls f(x) for every `step`-th float of both signs with a magnitude up to `high`.
void for_floats(float high, std::uint32_t step, const std::function<void(float)>& f) {
  for (std::uint32_t u = 0; u <= bits(high); u += step) {
    f(std::bit_cast<float>(u));
    f(-std::bit_cast<float>(u));
  }
}

double worst_error(float high, float (*approximation)(float)) {
  double worst = 0;
  for_floats(high, 2311, [&](float x) {
    if (std::abs(x) < 1e-12f) return;
    const double exact = std::exp(double(x));
    worst = std::max(worst, std::abs(double(approximation(x)) - exact) / exact);
  });
  return worst;
}

TEST(ExpApproximations, ErrorsAreBounded) {
  const double u20 = worst_error(86.98f, [](float x) { return exp_u20(x); });
  const double fast = worst_error(87.33f, [](float x) { return exp_fast(x); });
  EXPECT_LE(u20, 20 * 0x1p-24);
  EXPECT_LE(fast, 2e-4);
  EXPECT_GT(fast, 5e-5);
  RecordProperty("u20", std::to_string(u20));
  RecordProperty("fast", std::to_string(fast));
}

TEST(ExpApproximations, EdgesOfTheRange) {
  const float inf = std::numeric_limits<float>::infinity();
  for (float x : {-inf, -1e30f, -100.0f, -87.34f}) {
    EXPECT_EQ(exp_u20(x), 0.0f) << x;
    EXPECT_EQ(exp_fast(x), 0.0f) << x;
  }
  EXPECT_EQ(exp_u20(0.0f), 1.0f);
  EXPECT_NEAR(exp_fast(0.0f), 1.0f, 2e-4);
  EXPECT_EQ(exp_u20(-87.0f), 0.0f);
  EXPECT_GT(exp_u20(-86.9f), 0.0f);
  EXPECT_GT(exp_fast(-87.3f), 0.0f);
  EXPECT_NEAR(exp_u20(88.7f) / std::exp(88.7), 1.0, 1e-5);
  EXPECT_NEAR(exp_fast(88.7f) / std::exp(88.7), 1.0, 2e-4);
  EXPECT_TRUE(std::isnan(exp_u20(kNan)));
  EXPECT_TRUE(std::isnan(exp_fast(kNan)));
}

TEST(ExpApproximations, ScalarsAndLanesAgree) {
  float in[16];
  float u20[16];
  float fast[16];
  int filled = 0;
  for_floats(200.0f, 20011, [&](float x) {
    in[filled++] = x;
    if (filled < 16) return;
    filled = 0;
    store16(u20, exp_u20(load16(in)));
    store16(fast, exp_fast(load16(in)));
    for (int i = 0; i < 16; ++i) {
      ASSERT_EQ(bits(u20[i]), bits(exp_u20(in[i]))) << in[i];
      ASSERT_EQ(bits(fast[i]), bits(exp_fast(in[i]))) << in[i];
    }
  });
}

// Values of PyTorch's and vLLM's formulas evaluated apart from this code, in double with every FP32 rounding spelled out.
TEST(ExpApproximations, AreTheFormulasBitForBit) {
  constexpr float kLog2E = 0x1.715476p+0f;
  auto u20 = [](float x) {
    const double n = std::floor(double(float(double(x) * kLog2E + 0.5)));
    const float r = float(double(x) - n * 0x1.62E430p-1);
    float p = 0.00828929059f;
    for (const float c : {0.0418978221f, 0.166676521f, 0.499991506f, 0.999999701f, 1.0f}) p = float(double(p) * r + double(c));
    return std::ldexp(p, int(n));
  };
  auto fast = [](float x) {
    const float y = x * kLog2E;
    const float t = y - std::floor(y);
    float p = -0.079204240219773236f;
    for (const float c : {-0.22433836478672356f, 0.30354260500649682f, 0.00010703434948458272f}) p = float(double(p) * t + double(c));
    return std::bit_cast<float>(std::int32_t(float(8388608.0 * double(y - p) + 127 * 8388608.0)));
  };
  for_floats(86.98f, 5003, [&](float x) {
    ASSERT_EQ(bits(exp_u20(x)), bits(u20(x))) << x;
    ASSERT_EQ(bits(exp_fast(x)), bits(fast(x))) << x;
  });
}

}  // namespace
}  // namespace plumb
