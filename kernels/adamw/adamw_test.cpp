#include "kernels/adamw/adamw.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "kernels/adamw/adamw_ref.h"
#include "kernels/core/error.h"
#include "kernels/core/testing.h"

namespace plumb {
namespace {

std::vector<float> normals(std::int64_t n, std::uint64_t seed, double scale = 1) {
  std::vector<float> x;
  for (std::int64_t i = 0; i < n; ++i) x.push_back(float(scale * random_normal({.seed = seed}, std::uint64_t(i))));
  return x;
}

/// Steps on n random elements; everything that a step writes.
struct Step {
  Step(std::int64_t n, int threads, int steps)
      : p(normals(n, 1)), m(std::size_t(n), 0.0f), v(std::size_t(n), 0.0f), weight(std::size_t(n)) {
    Context ctx(threads);
    for (int t = 1; t <= steps; ++t) {
      const auto g = normals(n, 100 + std::uint64_t(t), 1e-2);
      AdamW a = arguments(t);
      a.grad = g.data();
      adamw(ctx, a);
    }
  }
  AdamW arguments(int t) {
    return {.master = p.data(),
            .m = m.data(),
            .v = v.data(),
            .weight = weight.data(),
            .n = std::int64_t(p.size()),
            .t = t,
            .lr = 1e-3,
            .beta1 = 0.9,
            .beta2 = 0.999,
            .eps = 1e-8,
            .weight_decay = 0.01,
            .grad_scale = 0.5f,
            .update_squares = &update_squares};
  }
  std::vector<float> p, m, v;
  std::vector<BF16> weight;
  double update_squares = -1;
};

TEST(AdamW, MatchesDoublePrecision) {
  constexpr std::int64_t n = 1003;
  Step run(n, 2, 20);
  const auto start = normals(n, 1);
  for (std::int64_t i = 0; i < n; ++i) {
    ref::AdamWElement s{start[std::size_t(i)], 0, 0};
    for (int t = 1; t <= 20; ++t) {
      const double g = float(1e-2 * random_normal({.seed = 100 + std::uint64_t(t)}, std::uint64_t(i)));
      s = ref::adamw(run.arguments(t), s, g);
    }
    ASSERT_NEAR(run.p[std::size_t(i)], s.p, 20 * 1.5 * 0x1p-23 * std::max(1.0, std::abs(s.p)));
    ASSERT_NEAR(run.m[std::size_t(i)], s.m, 1e-8);
    ASSERT_NEAR(run.v[std::size_t(i)], s.v, 1e-5 * s.v);
    ASSERT_EQ(run.weight[std::size_t(i)].bits, to_bf16(run.p[std::size_t(i)]).bits);
  }
}

TEST(AdamW, ThreadsChangeNoBitAndTheUpdateIsMeasured) {
  for (std::int64_t n : {0, 1, 15, 100, 8192, 40001}) {
    const Step one(n, 1, 3);
    const Step three(n, 3, 3);
    EXPECT_EQ(one.p, three.p);
    EXPECT_EQ(one.m, three.m);
    EXPECT_EQ(one.v, three.v);
    EXPECT_EQ(one.update_squares, three.update_squares);
    const Step before(n, 1, 2);
    double want = 0;
    for (std::size_t i = 0; i < std::size_t(n); ++i) want += std::pow(double(one.p[i]) - double(before.p[i]), 2);
    EXPECT_NEAR(one.update_squares, want, 1e-12 * want);
  }
}

// A step from rounded state is the FP32 step, each result that is stored rounded once; the memory stays FP32.
TEST(AdamW, RoundsWhatItStoresOnce) {
  constexpr std::int64_t n = 1003;
  const auto round_all = [](std::vector<float> x, DType t) {
    for (float& e : x) e = round_to(t, e);
    return x;
  };
  Context ctx(2);
  const auto g = normals(n, 7, 1e-2);
  for (DType master : {DType::f32, DType::bf16})
    for (DType moments : {DType::f32, DType::bf16}) {
      auto p = round_all(normals(n, 1), master);
      auto m = round_all(normals(n, 2, 1e-2), moments);
      auto v = normals(n, 3, 1e-4);
      for (float& x : v) x = round_to(moments, x * x);
      const auto step = [&](std::vector<float>& p1, std::vector<float>& m1, std::vector<float>& v1, DType a, DType b) {
        adamw(ctx, {.master = p1.data(),
                    .grad = g.data(),
                    .m = m1.data(),
                    .v = v1.data(),
                    .n = n,
                    .t = 3,
                    .lr = 1e-3,
                    .weight_decay = 0.1,
                    .master_dtype = a,
                    .moments_dtype = b});
      };
      auto p2 = p, m2 = m, v2 = v;
      step(p2, m2, v2, DType::f32, DType::f32);
      step(p, m, v, master, moments);
      EXPECT_TRUE(p == round_all(p2, master));
      EXPECT_TRUE(m == round_all(m2, moments));
      EXPECT_TRUE(v == round_all(v2, moments));
    }
}

TEST(AdamW, AWeightWithoutMasterNeverMovesByAMillionth) {
  Context ctx(1);
  float p = 1, m = 0, v = 0;
  const float g = 1;
  for (int t = 1; t <= 1000; ++t)
    adamw(ctx, {.master = &p, .grad = &g, .m = &m, .v = &v, .n = 1, .t = t, .lr = 1e-6, .master_dtype = DType::bf16});
  EXPECT_EQ(p, 1.0f);
}

// cases.md 29: ten thousand unit steps of 1e-6 move an FP32 master weight, and would never move a BF16 one.
TEST(AdamW, SmallStepsReachTheMasterWeight) {
  Context ctx(1);
  float p = 1;
  float m = 0;
  float v = 0;
  const float g = 1;
  BF16 weight{};
  for (int t = 1; t <= 10000; ++t) {
    adamw(ctx, {.master = &p, .grad = &g, .m = &m, .v = &v, .weight = &weight, .n = 1, .t = t, .lr = 1e-6});
    EXPECT_TRUE(t != 1000 || to_float(weight) == 1.0f);
  }
  EXPECT_NEAR(p, 0.98987, 5e-6);
}

TEST(AdamW, ZeroLearningRateLeavesTheWeightAlone) {
  Context ctx(1);
  float p[3] = {1, -2, 0.5f};
  const float g[3] = {1, 1e-3f, -7};
  float m[3] = {};
  float v[3] = {};
  float weight[3] = {};
  adamw(ctx, {.master = p, .grad = g, .m = m, .v = v, .weight = weight, .weight_dtype = DType::f32, .n = 3, .lr = 0, .weight_decay = 0.1});
  EXPECT_EQ(p[0], 1.0f);
  EXPECT_EQ(weight[1], -2.0f);
  EXPECT_NE(m[2], 0.0f);
}

TEST(SumOfSquares, IsExactEnoughAndIndependentOfThreads) {
  for (std::int64_t n : {0, 1, 15, 16, 8191, 8193, 100003}) {
    const auto x = normals(n, 4);
    double want = 0;
    for (float y : x) want += double(y) * y;
    Context one(1);
    Context three(3);
    const double got = sum_of_squares(one, x.data(), n);
    EXPECT_NEAR(got, want, 1e-13 * want);
    EXPECT_EQ(got, sum_of_squares(three, x.data(), n));
  }
}

TEST(SumOfSquares, PassesNanAndInfinity) {
  Context ctx(1);
  auto x = normals(100, 4);
  x[70] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sum_of_squares(ctx, x.data(), 100), std::numeric_limits<double>::infinity());
  x[71] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(sum_of_squares(ctx, x.data(), 100)));
}

TEST(AdamW, RefusesStepZero) {
  Context ctx(1);
  EXPECT_THROW(adamw(ctx, {.t = 0}), Error);
}

}  // namespace
}  // namespace plumb
