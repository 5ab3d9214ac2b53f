#include "kernels/core/math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "kernels/core/thread_pool.h"

namespace plumb {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

/// |y - exact| in units of the last place of `exact`.
double ulps(float y, double exact) {
  const double spacing = std::ldexp(1.0, std::max(std::ilogb(exact), -126) - 23);
  return std::abs(double(y) - exact) / spacing;
}

/// Calls f(x) for every `step`-th float from `low` to `high` (of one sign).
template <class F>
void for_floats(float low, float high, std::uint32_t step, F&& f) {
  const std::uint32_t a = std::min(bits(low), bits(high));
  const std::uint32_t b = std::max(bits(low), bits(high));
  for (std::uint32_t u = a; u <= b && u >= a; u += step) f(std::bit_cast<float>(u));
}

TEST(Math, ExpIsWithinOneUlp) {
  double worst = 0;
  const auto check = [&](float x) { worst = std::max(worst, ulps(exp_(x), std::exp(double(x)))); };
  for_floats(1e-10f, 88.7f, 257, check);
  for_floats(-1e-10f, -87.3f, 257, check);
  EXPECT_LE(worst, 1.0);
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST(Math, LogIsWithinOneUlp) {
  double worst = 0;
  const auto check = [&](float x) {
    if (x != 1.0f) worst = std::max(worst, ulps(log_(x), std::log(double(x))));
  };
  for_floats(std::numeric_limits<float>::min(), std::numeric_limits<float>::max(), 1009, check);
  for_floats(0.9f, 1.1f, 7, check);
  EXPECT_LE(worst, 1.0);
  EXPECT_EQ(log_(1.0f), 0.0f);
}

TEST(Math, SpecialValues) {
  EXPECT_EQ(exp_(0.0f), 1.0f);
  EXPECT_EQ(exp_(-0.0f), 1.0f);
  EXPECT_EQ(exp_(-kInf), 0.0f);
  EXPECT_EQ(exp_(-88.0f), 0.0f);
  EXPECT_EQ(exp_(kInf), kInf);
  EXPECT_EQ(exp_(88.73f), kInf);
  EXPECT_TRUE(std::isnan(exp_(kNan)));
  EXPECT_EQ(log_(0.0f), -kInf);
  EXPECT_EQ(log_(-0.0f), -kInf);
  EXPECT_EQ(log_(1e-40f), -kInf);
  EXPECT_EQ(log_(kInf), kInf);
  EXPECT_TRUE(std::isnan(log_(-1.0f)));
  EXPECT_TRUE(std::isnan(log_(-kInf)));
  EXPECT_TRUE(std::isnan(log_(kNan)));
  EXPECT_EQ(rsqrt_(4.0f), 0.5f);
  EXPECT_EQ(sin_cos_(0.0f).sin, 0.0f);
  EXPECT_EQ(sin_cos_(0.0f).cos, 1.0f);
}

TEST(Math, ScalarsAndLanesGiveTheSameBitsWithAndWithoutFlushing) {
  for (const bool flush : {false, true}) {
    std::unique_ptr<FtzScope> scope;
    if (flush) scope = std::make_unique<FtzScope>();
    for (std::uint64_t block = 0; block < 0x100000000u; block += 16 * 40009) {
      float x[16];
      for (std::uint32_t i = 0; i < 16; ++i) x[i] = std::bit_cast<float>(std::uint32_t(block + i * 40009));
      float e[16];
      float l[16];
      float r[16];
      store16(e, exp_(load16(x)));
      store16(l, log_(load16(x)));
      store16(r, rsqrt_(load16(x)));
      for (int i = 0; i < 16; ++i) {
        if (x[i] != x[i]) continue;
        ASSERT_EQ(bits(e[i]), bits(exp_(x[i]))) << x[i];
        if (x[i] >= 0) {
          ASSERT_EQ(bits(l[i]), bits(log_(x[i]))) << x[i];
        }
        if (x[i] > 0) {
          ASSERT_EQ(bits(r[i]), bits(rsqrt_(x[i]))) << x[i];
        }
      }
    }
  }
}

TEST(Math, SinCosAreCorrectlyRounded) {
  std::int64_t wrong = 0;
  std::int64_t total = 0;
  const auto check = [&](float x) {
    const SinCos y = sin_cos_(x);
    wrong += y.sin != float(std::sin(double(x)));
    wrong += y.cos != float(std::cos(double(x)));
    total += 2;
    ASSERT_NEAR(double(y.sin), std::sin(double(x)), 0x1p-24);
    ASSERT_NEAR(double(y.cos), std::cos(double(x)), 0x1p-24);
  };
  for_floats(1e-6f, 65536.0f, 1511, check);
  for_floats(-1e-6f, -65536.0f, 2003, check);
  for (int p = 0; p < 40960; p += 3) check(float(p));
  EXPECT_LE(double(wrong), 1e-6 * double(total));
}

TEST(Math, DoubleFunctionsAreAccurate) {
  for (double x = -650; x < 650; x += 0.377) ASSERT_NEAR(exp_double(x) / std::exp(x), 1.0, 0x1p-50) << x;
  for (double x = 1e-300; x < 1e300; x *= 1.7) ASSERT_NEAR(log_double(x), std::log(x), 0x1p-52 * std::max(1.0, std::abs(std::log(x)))) << x;
  for (double x = -65536; x < 65536; x += 7.9123) {
    ASSERT_NEAR(sin_cos_double(x).sin, std::sin(x), 0x1p-52) << x;
    ASSERT_NEAR(sin_cos_double(x).cos, std::cos(x), 0x1p-52) << x;
  }
}

}  // namespace
}  // namespace plumb
