#include "kernels/rmsnorm/rmsnorm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/core/error.h"
#include "kernels/core/testing.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/numerics/preset_sites.h"
#include "kernels/numerics/site_dispatch.h"
#include "kernels/rmsnorm/rmsnorm_ref.h"

namespace plumb {
namespace {

using test::fraction_different;
using test::Random;
using test::relative_error;
using test::same_bits;

constexpr DType kBf16 = DType::bf16;
constexpr DType kF32 = DType::f32;

const std::vector<Sites>& site_sets() {
  static const std::vector<Sites> sets = {
      {},
      kFusedSites,
      kHfEagerSites,
      kVllmCpuCompiledSites,
      make_sites({Site::resid_store, Site::resid_sum_to_var, Site::norm_out}),
      make_sites({Site::resid_store, Site::resid_sum_to_scale, Site::norm_xhat, Site::norm_out}),
  };
  return sets;
}

/// A forward pass and everything it wrote.
struct Forward {
  Forward(std::int64_t rows, std::int64_t cols, DType type)
      : delta(rows, cols, type, 1),
        stream(rows, cols, type, 2),
        weight(1, cols, type, 3, 0.2, 1),
        stream_out(rows, cols, type, 4, 0, 7),
        sum(rows, cols, kF32, 5, 0, 7),
        out(rows, cols, type, 6, 0, 7),
        rstd(std::size_t(rows), 0.0f) {}
  RmsNormForward arguments() {
    return {.delta = delta, .stream_in = stream, .weight = weight, .stream_out = stream_out, .sum = sum, .out = out, .rstd = rstd.data()};
  }
  Forward& run(Sites sites, int threads = 1) {
    Context ctx(threads);
    rmsnorm_forward(ctx, arguments(), sites);
    return *this;
  }
  Random delta, stream, weight, stream_out, sum, out;
  std::vector<float> rstd;
};

struct Backward {
  Backward(std::int64_t rows, std::int64_t cols, DType type, Sites sites)
      : forward(rows, cols, type),
        d_out(rows, cols, type, 11),
        d_stream(rows, cols, type, 12),
        d_sum(rows, cols, type, 13, 0, 7),
        d_weight(std::size_t(cols), 0.5f) {
    forward.run(sites);
  }
  RmsNormBackward arguments() {
    return {.d_out = d_out,
            .d_stream = d_stream,
            .sum = forward.sum,
            .weight = forward.weight,
            .rstd = forward.rstd.data(),
            .d_sum = d_sum,
            .d_weight = d_weight.data()};
  }
  Backward& run(Sites sites, BackwardMode mode, int threads = 1) {
    Context ctx(threads);
    rmsnorm_backward(ctx, arguments(), sites, mode);
    return *this;
  }
  Forward forward;
  Random d_out, d_stream, d_sum;
  std::vector<float> d_weight;
};

TEST(RmsNorm, ForwardMatchesTheReference) {
  for (DType type : {kBf16, kF32}) {
    for (std::int64_t cols : {1, 15, 48, 896}) {
      for (Sites sites : site_sets()) {
        if (type == kF32 && sites != Sites{}) continue;
        Forward got(31, cols, type);
        Forward want(31, cols, type);
        got.run(sites);
        ref::rmsnorm_forward(want.arguments(), sites);
        EXPECT_TRUE(same_bits(got.stream_out, want.stream_out));
        EXPECT_TRUE(same_bits(got.sum, want.sum));
        for (std::size_t r = 0; r < 31; ++r) EXPECT_NEAR(got.rstd[r], want.rstd[r], 0x1p-21 * want.rstd[r]);
        EXPECT_LE(relative_error(got.out, want.out), type == kBf16 ? 0x1p-11 : 0x1p-21);
        EXPECT_LE(fraction_different(got.out, want.out), type == kBf16 ? 2e-3 : 1.0);
      }
    }
  }
}

TEST(RmsNorm, BackwardMatchesTheReference) {
  for (DType type : {kBf16, kF32}) {
    for (std::int64_t cols : {15, 48, 896}) {
      for (Sites sites : site_sets()) {
        if (type == kF32 && sites != Sites{}) continue;
        for (BackwardMode mode : {BackwardMode::fused, BackwardMode::mirror}) {
          Backward got(31, cols, type, sites);
          Backward want(31, cols, type, sites);
          got.run(sites, mode);
          ref::rmsnorm_backward(want.arguments(), sites, mode);
          EXPECT_LE(relative_error(got.d_sum, want.d_sum), type == kBf16 ? 0x1p-11 : 0x1p-20);
          EXPECT_LE(fraction_different(got.d_sum, want.d_sum), type == kBf16 ? 3e-3 : 1.0);
          for (std::size_t c = 0; c < std::size_t(cols); ++c) EXPECT_NEAR(got.d_weight[c], want.d_weight[c], 1e-5);
        }
      }
    }
  }
}

void expect_finite_differences(std::int64_t rows, std::int64_t cols, BackwardMode mode) {
  Backward b(rows, cols, kF32, {});
  b.run({}, mode);
  const auto loss = [&](float step, int which, const Random& direction) {
    Forward f(rows, cols, kF32);
    Random& x = which == 0 ? f.delta : which == 1 ? f.stream : f.weight;
    for (std::int64_t r = 0; r < x.mat.rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) test::set(x, r, c, x.at(r, c) + step * direction.at(r, c));
    }
    f.run({});
    double sum = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c)
        sum += double(f.out.at(r, c)) * b.d_out.at(r, c) + double(f.stream_out.at(r, c)) * b.d_stream.at(r, c);
    }
    return sum;
  };
  for (int which : {0, 1, 2}) {
    const Random direction(rows, cols, kF32, 20);
    double want = 0;
    for (std::int64_t r = 0; r < (which == 2 ? 1 : rows); ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        want += double(direction.at(r, c)) * (which == 2 ? b.d_weight[std::size_t(c)] - 0.5f : b.d_sum.at(r, c));
      }
    }
    constexpr float h = 1e-2f;
    const double got = (loss(h, which, direction) - loss(-h, which, direction)) / (2 * h);
    EXPECT_NEAR(got, want, 2e-3 * std::abs(want) + 2e-3) << which;
  }
}

// One row, one column, widths that are no multiple of the lanes; without roundings both modes are the derivative.
TEST(RmsNorm, GradientsAgreeWithFiniteDifferences) {
  for (const BackwardMode mode : {BackwardMode::fused, BackwardMode::mirror}) {
    for (const std::int64_t cols : {2, 7, 16, 50}) {
      for (const std::int64_t rows : {1, 6}) {
        SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols));
        expect_finite_differences(rows, cols, mode);
      }
    }
  }
}

TEST(RmsNorm, ThreadsAndTheRunTimePathChangeNoBit) {
  for (DType type : {kBf16, kF32}) {
    for (Sites sites : site_sets()) {
      const Sites at_run_time{sites.mask | kRunTimeSites};
      Forward one(70, 500, type);
      Forward other(70, 500, type);
      one.run(sites);
      other.run(at_run_time, 3);
      EXPECT_TRUE(same_bits(one.out, other.out));
      EXPECT_TRUE(same_bits(one.stream_out, other.stream_out));
      EXPECT_EQ(one.rstd, other.rstd);
      for (BackwardMode mode : {BackwardMode::fused, BackwardMode::mirror}) {
        Backward b1(70, 500, type, sites);
        Backward b2(70, 500, type, sites);
        b1.run(sites, mode);
        b2.run(at_run_time, mode, 3);
        EXPECT_TRUE(same_bits(b1.d_sum, b2.d_sum));
        EXPECT_EQ(b1.d_weight, b2.d_weight);
      }
    }
  }
}

TEST(RmsNorm, ARowDoesNotDependOnItsBatch) {
  Forward all(20, 300, kBf16);
  all.run(kFusedSites);
  for (std::int64_t r : {0, 7, 19}) {
    Context ctx(2);
    Random out(1, 300, kBf16, 30);
    rmsnorm_forward(
        ctx, {.delta = all.delta.mat.slice_rows(r, 1), .stream_in = all.stream.mat.slice_rows(r, 1), .weight = all.weight, .out = out},
        kFusedSites);
    EXPECT_EQ(fraction_different(out, all.out.mat.slice_rows(r, 1)), 0);
  }
}

TEST(RmsNorm, TheWeightGradientIsOneChainHoweverRowsAreSplit) {
  for (Sites sites : {kFusedSites, kHfEagerSites}) {
    Backward whole(21, 100, kBf16, sites);
    whole.run(sites, BackwardMode::mirror);
    Backward split(21, 100, kBf16, sites);
    Context ctx(2);
    for (std::int64_t first : {0, 5, 6}) {
      const std::int64_t count = first == 0 ? 5 : first == 5 ? 1 : 15;
      RmsNormBackward a = split.arguments();
      a.d_out = split.d_out.mat.slice_rows(first, count);
      a.d_stream = split.d_stream.mat.slice_rows(first, count);
      a.sum = split.forward.sum.mat.slice_rows(first, count);
      a.rstd += first;
      a.d_sum = split.d_sum.mat.slice_rows(first, count);
      rmsnorm_backward(ctx, a, sites, BackwardMode::mirror);
    }
    EXPECT_EQ(whole.d_weight, split.d_weight);
    EXPECT_TRUE(same_bits(whole.d_sum, split.d_sum));
  }
}

TEST(RmsNorm, StreamAndGradientMayBeUpdatedInPlace) {
  Forward apart(5, 100, kBf16);
  apart.run(kFusedSites);
  Forward in_place(5, 100, kBf16);
  RmsNormForward a = in_place.arguments();
  a.stream_out = in_place.stream;
  Context ctx(1);
  rmsnorm_forward(ctx, a, kFusedSites);
  EXPECT_TRUE(same_bits(apart.out, in_place.out));
  EXPECT_EQ(fraction_different(apart.stream_out, in_place.stream), 0);

  Backward b1(5, 100, kBf16, kHfEagerSites);
  b1.run(kHfEagerSites, BackwardMode::mirror);
  Backward b2(5, 100, kBf16, kHfEagerSites);
  RmsNormBackward c = b2.arguments();
  c.d_sum = b2.d_stream;
  rmsnorm_backward(ctx, c, kHfEagerSites, BackwardMode::mirror);
  EXPECT_EQ(fraction_different(b1.d_sum, b2.d_stream), 0);
}

TEST(RmsNorm, WithoutAnAddTheStreamIsTheSum) {
  Context ctx(1);
  const Random stream(4, 33, kBf16, 1);
  const Random zero(4, 33, kBf16, 2, 0);
  const Random weight(1, 33, kBf16, 3, 0.2, 1);
  Random out(4, 33, kBf16, 4);
  Random want(4, 33, kBf16, 4);
  Random sum(4, 33, kBf16, 5);
  rmsnorm_forward(ctx, {.stream_in = stream, .weight = weight, .sum = sum, .out = out}, kFusedSites);
  rmsnorm_forward(ctx, {.delta = zero, .stream_in = stream, .weight = weight, .out = want}, kFusedSites);
  EXPECT_TRUE(same_bits(out, want));
  EXPECT_EQ(fraction_different(sum, stream), 0);
}

TEST(RmsNorm, RefusesASavedSumThatLosesBits) {
  Forward f(2, 16, kBf16);
  RmsNormForward a = f.arguments();
  Random sum(2, 16, kBf16, 5);
  a.sum = sum;
  Context ctx(1);
  EXPECT_THROW(rmsnorm_forward(ctx, a, kFusedSites), Error);
  EXPECT_NO_THROW(rmsnorm_forward(ctx, a, kHfEagerSites));
  a.weight = a.weight.slice_cols(0, 15);
  EXPECT_THROW(rmsnorm_forward(ctx, a, kHfEagerSites), Error);
}

/// Fraction of outputs that differ between two choices of sites, N(0,1) inputs, weight 1 + 0.2 N.
double changed(std::int64_t cols, Sites a, Sites b) {
  const std::int64_t rows = 1 + (cols > 1024 ? 800000 : 300000) / cols;
  Forward x(rows, cols, kBf16);
  Forward y(rows, cols, kBf16);
  x.run(a, 2);
  y.run(b, 2);
  return fraction_different(x.out, y.out);
}

Sites without(Sites s, std::initializer_list<Site> off) {
  for (Site x : off) s.set(x, false);
  return s;
}

Sites with(Sites s, Site on) {
  s.set(on, true);
  return s;
}

TEST(RmsNormOracle, SitesChangeAsManyOutputsAsKnown) {
  const Sites all = kHfEagerSites;
  const Sites no_xhat = without(all, {Site::norm_xhat});
  const auto near = [](double got, double percent) { EXPECT_NEAR(100 * got, percent, 0.1 * percent); };
  near(changed(128, all, no_xhat), 25.1);
  near(changed(1024, all, no_xhat), 25.7);
  near(changed(4096, all, no_xhat), 25.7);
  near(changed(1024, all, without(all, {Site::resid_sum_to_scale})), 17.8);
  near(changed(1024, no_xhat, without(no_xhat, {Site::resid_sum_to_scale})), 19.7);
  near(changed(128, all, without(all, {Site::resid_sum_to_var})), 3.65);
  near(changed(1024, all, without(all, {Site::resid_sum_to_var})), 1.3);
  near(changed(4096, all, without(all, {Site::resid_sum_to_var})), 0.75);
  near(changed(1024, all, without(all, {Site::norm_xhat, Site::resid_sum_to_var, Site::resid_sum_to_scale})), 34.0);
  // norm.xhat again, where the norm reads the unrounded sum
  for (const auto& [cols, percent] : {std::pair{128, 25.1}, {1024, 25.7}, {4096, 25.7}})
    near(changed(cols, with(kFusedSites, Site::norm_xhat), kFusedSites), percent);
}

// Fusing the add into the norm moves no rounding: add, store, then a norm of what was stored.
TEST(RmsNormOracle, AFusedKernelThatKeepsEagersSitesChangesNothing) {
  for (const std::int64_t cols : {128, 1000}) {
    Forward fused(200, cols, kBf16);
    Forward apart(200, cols, kBf16);
    fused.run(kHfEagerSites, 2);
    Context ctx(2);
    add_in_place(ctx, apart.delta, apart.stream);
    rmsnorm_forward(ctx, {.stream_in = apart.delta, .weight = apart.weight, .out = apart.out}, kHfEagerSites);
    EXPECT_EQ(fraction_different(fused.stream_out, apart.delta), 0);
    EXPECT_EQ(fraction_different(fused.out, apart.out), 0);
  }
}

}  // namespace
}  // namespace plumb
