#include "kernels/rope/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/core/error.h"
#include "kernels/core/testing.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/numerics/preset_sites.h"
#include "kernels/numerics/site_dispatch.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/rope/rope_ref.h"

namespace plumb {
namespace {

using test::fraction_different;
using test::Random;
using test::relative_error;
using test::same_bits;

constexpr DType kBf16 = DType::bf16;
constexpr DType kF32 = DType::f32;
constexpr BackwardMode kModes[] = {BackwardMode::fused, BackwardMode::mirror};

const std::vector<Sites>& site_sets() {
  static const std::vector<Sites> sets = {
      {},
      kFusedSites,
      kHfEagerSites,
      kVllmCpuCompiledSites,
      make_sites({Site::rope_rotated, Site::rope_out}),
      make_sites({Site::qk_norm_out, Site::rope_products, Site::rope_cos_sin_table, Site::rope_out}),
  };
  return sets;
}

struct Case {
  int head_dim = 64;
  int heads = 3;
  std::int64_t rows = 20;
  double theta = 1e4;
  int positions = 300;
  bool norm = true;
  DType type = kBf16;
};

/// Inputs, a forward and a backward pass, and everything that they wrote.
struct Pass {
  explicit Pass(const Case& x)
      : c(x),
        table(x.head_dim, x.theta, x.positions),
        in(x.rows, x.heads * x.head_dim, x.type, 1),
        weight(1, x.head_dim, x.type, 2, 0.2, 1),
        out(x.rows, x.heads * x.head_dim, x.type, 3, 0, 7),
        d_out(x.rows, x.heads * x.head_dim, x.type, 4),
        d_in(x.rows, x.heads * x.head_dim, x.type, 5, 0, 7),
        rstd(std::size_t(x.rows * x.heads), 0.0f),
        d_weight(std::size_t(x.head_dim), 0.5f) {
    for (std::int64_t r = 0; r < x.rows; ++r)
      positions.push_back(std::int32_t(random_below({.seed = 6}, std::uint64_t(r), std::uint64_t(x.positions))));
  }
  RopeForward forward_arguments() {
    RopeForward a{.in = in, .heads = c.heads, .table = &table, .positions = positions.data(), .out = out};
    if (c.norm) a.norm_weight = weight;
    if (c.norm) a.rstd = rstd.data();
    return a;
  }
  RopeBackward backward_arguments() {
    RopeBackward a{.d_out = d_out, .in = in, .heads = c.heads, .table = &table, .positions = positions.data(), .d_in = d_in};
    if (!c.norm) return a;
    a.norm_weight = weight;
    a.rstd = rstd.data();
    a.d_norm_weight = d_weight.data();
    return a;
  }
  Pass& forward(Sites sites, int threads = 1) {
    Context ctx(threads);
    rope_forward(ctx, forward_arguments(), sites);
    return *this;
  }
  Pass& backward(Sites sites, BackwardMode rope, BackwardMode qk_norm, int threads = 1) {
    Context ctx(threads);
    rope_backward(ctx, backward_arguments(), sites, rope, qk_norm);
    return *this;
  }
  Case c;
  RopeTable table;
  Random in, weight, out, d_out, d_in;
  std::vector<float> rstd, d_weight;
  std::vector<std::int32_t> positions;
};

// cases.md 30 and 42.
TEST(RopeTable, InverseFrequenciesAreWithinOneUlpOfTheClosedForm) {
  EXPECT_FLOAT_EQ(RopeTable::inverse_frequency(128, 1e6, 1), 0.80584219f);
  for (int d : {16, 24, 64, 80, 128}) {
    for (double theta : {1e4, 5e5, 1e6}) {
      EXPECT_EQ(RopeTable::inverse_frequency(d, theta, 0), 1.0f);
      for (int j = 1; j < d / 2; ++j) {
        const double want = std::pow(theta, -2.0 * j / d);
        // The FP32 exponent alone is half an ulp of itself: ln(theta) times that in the power, then two roundings.
        ASSERT_NEAR(RopeTable::inverse_frequency(d, theta, j) / want, 1.0, 0x1p-24 * (2 + 2.0 * j / d * std::log(theta)));
      }
    }
  }
}

TEST(RopeTable, HoldsCorrectlyRoundedCosAndSinAndTheirBf16Copies) {
  const RopeTable table(24, 1e4, 500);
  for (int p = 0; p < 500; p += 7) {
    for (int j = 0; j < 12; ++j) {
      for (bool rounded : {false, true}) {
        const ref::Angle want = ref::rope_angle(24, 1e4, j, p, rounded);
        ASSERT_EQ(table.cos(p, rounded)[j], want.cos);
        ASSERT_EQ(table.sin(p, rounded)[j], want.sin);
      }
    }
  }
}

TEST(RopeTable, AGivenTableAndOneOfFewPositionsHoldTheSameRows) {
  const RopeTable whole(24, 1e4, 500);
  const std::vector<std::int32_t> positions = {499, 0, 7};
  const RopeTable few = RopeTable::of_positions(24, 1e4, positions);
  std::vector<float> cos;
  std::vector<float> sin;
  for (const std::int32_t p : positions) {
    cos.insert(cos.end(), whole.cos(p, false), whole.cos(p, false) + 12);
    sin.insert(sin.end(), whole.sin(p, false), whole.sin(p, false) + 12);
  }
  const RopeTable given(24, cos, sin);
  EXPECT_EQ(few.positions(), 3);
  EXPECT_EQ(given.positions(), 3);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    for (int j = 0; j < 12; ++j) {
      for (bool rounded : {false, true}) {
        for (const RopeTable* table : {&few, &given}) {
          ASSERT_EQ(table->cos(std::int64_t(i), rounded)[j], whole.cos(positions[i], rounded)[j]);
          ASSERT_EQ(table->sin(std::int64_t(i), rounded)[j], whole.sin(positions[i], rounded)[j]);
        }
      }
    }
  }
  EXPECT_THROW(RopeTable(24, cos, std::span(sin).first(12)), Error);
  EXPECT_THROW(RopeTable(24, std::span(cos).first(13), std::span(sin).first(13)), Error);
  EXPECT_THROW(RopeTable::of_positions(24, 1e4, {}), Error);
}

TEST(Rope, ForwardMatchesTheReference) {
  for (int head_dim : {2, 16, 24, 48, 64, 128}) {
    for (bool norm : {false, true}) {
      for (DType type : {kBf16, kF32}) {
        for (Sites sites : site_sets()) {
          if (type == kF32 && sites != Sites{}) continue;
          const Case c{.head_dim = head_dim, .norm = norm, .type = type};
          Pass got(c);
          Pass want(c);
          got.forward(sites);
          ref::rope_forward(want.forward_arguments(), c.theta, sites);
          if (!norm) {
            ASSERT_TRUE(same_bits(got.out, want.out)) << head_dim;
            continue;
          }
          ASSERT_LE(relative_error(got.out, want.out), type == kBf16 ? 0x1p-11 : 0x1p-21) << head_dim;
          for (std::size_t i = 0; i < got.rstd.size(); ++i) ASSERT_NEAR(got.rstd[i], want.rstd[i], 0x1p-21 * want.rstd[i]);
        }
      }
    }
  }
}

TEST(Rope, BackwardMatchesTheReference) {
  for (int head_dim : {16, 24, 64, 128}) {
    for (bool norm : {false, true}) {
      for (DType type : {kBf16, kF32}) {
        for (Sites sites : site_sets()) {
          if (type == kF32 && sites != Sites{}) continue;
          for (BackwardMode rope : kModes) {
            for (BackwardMode qk_norm : kModes) {
              const Case c{.head_dim = head_dim, .norm = norm, .type = type};
              Pass got(c);
              Pass want(c);
              got.forward(sites).backward(sites, rope, qk_norm);
              want.forward(sites);
              ref::rope_backward(want.backward_arguments(), c.theta, sites, rope, qk_norm);
              ASSERT_LE(relative_error(got.d_in, want.d_in), type == kBf16 ? 0x1p-11 : 0x1p-20) << head_dim << " " << norm;
              for (std::size_t i = 0; i < got.d_weight.size(); ++i) ASSERT_NEAR(got.d_weight[i], want.d_weight[i], 5e-3);
            }
          }
        }
      }
    }
  }
}

void expect_finite_differences(const Case& c, BackwardMode mode) {
  Pass run(c);
  run.forward({}).backward({}, mode, mode);
  const auto loss = [&](float step, bool of_weight, const Random& direction) {
    Pass f(c);
    Random& x = of_weight ? f.weight : f.in;
    for (std::int64_t r = 0; r < x.mat.rows; ++r) {
      for (std::int64_t i = 0; i < x.mat.cols; ++i) test::set(x, r, i, x.at(r, i) + step * direction.at(r, i));
    }
    f.forward({});
    double sum = 0;
    for (std::int64_t r = 0; r < c.rows; ++r) {
      for (std::int64_t i = 0; i < f.out.mat.cols; ++i) sum += double(f.out.at(r, i)) * run.d_out.at(r, i);
    }
    return sum;
  };
  for (bool of_weight : {false, true}) {
    if (of_weight && !c.norm) continue;
    const Random direction(c.rows, c.heads * c.head_dim, kF32, 20);
    double want = 0;
    for (std::int64_t r = 0; r < (of_weight ? 1 : c.rows); ++r) {
      for (std::int64_t i = 0; i < (of_weight ? c.head_dim : c.heads * c.head_dim); ++i) {
        want += double(direction.at(r, i)) * (of_weight ? run.d_weight[std::size_t(i)] - 0.5f : run.d_in.at(r, i));
      }
    }
    constexpr float h = 1e-2f;
    const double got = (loss(h, of_weight, direction) - loss(-h, of_weight, direction)) / (2 * h);
    EXPECT_NEAR(got, want, 2e-3 * std::abs(want) + 2e-3) << of_weight;
  }
}

TEST(Rope, GradientsAgreeWithFiniteDifferences) {
  for (const BackwardMode mode : kModes) {
    for (const int head_dim : {2, 6, 24}) {
      for (const std::int64_t rows : {1, 6}) {
        for (const bool norm : {false, true}) {
          SCOPED_TRACE(std::to_string(rows) + " rows, head_dim " + std::to_string(head_dim) + (norm ? ", QK norm" : ""));
          expect_finite_differences({.head_dim = head_dim, .heads = head_dim == 6 ? 1 : 3, .rows = rows, .norm = norm, .type = kF32}, mode);
        }
      }
    }
  }
}

TEST(Rope, ThreadsTheRunTimePathAndAliasingChangeNoBit) {
  for (int head_dim : {24, 64}) {
    for (bool norm : {false, true}) {
      for (Sites sites : site_sets()) {
        const Case c{.head_dim = head_dim, .heads = 5, .rows = 110, .norm = norm};
        const Sites at_run_time{sites.mask | kRunTimeSites};
        Pass one(c);
        Pass other(c);
        one.forward(sites);
        other.forward(at_run_time, 3);
        EXPECT_TRUE(same_bits(one.out, other.out));
        EXPECT_EQ(one.rstd, other.rstd);
        for (BackwardMode rope : kModes) {
          for (BackwardMode qk_norm : kModes) {
            Pass b(c);
            b.forward(sites);
            one.d_weight = b.d_weight;
            one.backward(sites, rope, qk_norm);
            RopeBackward a = b.backward_arguments();
            a.d_in = b.d_out;
            Context ctx(3);
            rope_backward(ctx, a, at_run_time, rope, qk_norm);
            EXPECT_EQ(fraction_different(one.d_in, b.d_out), 0);
            EXPECT_EQ(one.d_weight, b.d_weight);
          }
        }
        Pass in_place(c);
        RopeForward a = in_place.forward_arguments();
        a.out = in_place.in;
        Context ctx(1);
        rope_forward(ctx, a, sites);
        EXPECT_EQ(fraction_different(one.out, in_place.in), 0);
      }
    }
  }
}

TEST(Rope, TheHeadsOfAWiderMatrixAreTheSame) {
  const Case c{.head_dim = 24, .heads = 2};
  Pass run(c);
  run.forward(kFusedSites);
  Random wide(c.rows, 200, kBf16, 8);
  Random wide_out(c.rows, 200, kBf16, 9);
  for (std::int64_t r = 0; r < c.rows; ++r) {
    for (std::int64_t i = 0; i < 48; ++i) test::set(wide, r, 50 + i, run.in.at(r, i));
  }
  RopeForward a = run.forward_arguments();
  a.in = wide.mat.slice_cols(50, 48);
  a.out = wide_out.mat.slice_cols(7, 48);
  Context ctx(2);
  rope_forward(ctx, a, kFusedSites);
  EXPECT_EQ(fraction_different(a.out, run.out), 0);
  EXPECT_EQ(wide_out.at(0, 55), Random(c.rows, 200, kBf16, 9).at(0, 55));
}

TEST(Rope, TheWeightGradientIsOneChainHoweverRowsAreSplit) {
  const Case c{.rows = 21};
  Pass whole(c);
  whole.forward(kHfEagerSites).backward(kHfEagerSites, BackwardMode::mirror, BackwardMode::mirror);
  Pass split(c);
  split.forward(kHfEagerSites);
  Context ctx(2);
  for (std::int64_t first : {0, 8}) {
    const std::int64_t count = first == 0 ? 8 : 13;
    RopeBackward a = split.backward_arguments();
    a.d_out = split.d_out.mat.slice_rows(first, count);
    a.in = split.in.mat.slice_rows(first, count);
    a.d_in = split.d_in.mat.slice_rows(first, count);
    a.rstd += first * c.heads;
    a.positions += first;
    rope_backward(ctx, a, kHfEagerSites, BackwardMode::mirror, BackwardMode::mirror);
  }
  EXPECT_EQ(whole.d_weight, split.d_weight);
}

TEST(Rope, RefusesPositionsOutsideTheTable) {
  Pass run(Case{});
  run.positions[3] = 300;
  EXPECT_THROW(run.forward({}), Error);
  EXPECT_THROW(RopeTable(7, 1e4, 10), Error);
}

Sites with(Sites s, std::initializer_list<Site> on) {
  for (Site x : on) s.set(x, true);
  return s;
}
Sites without(Sites s, std::initializer_list<Site> off) {
  for (Site x : off) s.set(x, false);
  return s;
}

/// Percentage of outputs that differ between two choices of sites.
double changed(int head_dim, double theta, int positions, bool norm, Sites a, Sites b) {
  const Case c{.head_dim = head_dim, .heads = 4, .rows = 40000 / head_dim, .theta = theta, .positions = positions, .norm = norm};
  Pass x(c);
  Pass y(c);
  return 100 * fraction_different(x.forward(a, 2).out, y.forward(b, 2).out);
}

TEST(RopeOracle, SitesChangeAsManyOutputsAsKnown) {
  const auto near = [](double got, double percent) { EXPECT_NEAR(got, percent, 0.1 * percent); };
  const Sites f = make_sites({Site::rope_out});
  const Sites table = make_sites({Site::rope_out, Site::rope_cos_sin_table});
  const Sites products = with(table, {Site::rope_products});
  near(changed(128, 1e6, 4096, false, table, products), 24.6);
  near(changed(128, 1e6, 40, false, table, products), 13.5);
  near(changed(64, 1e4, 2048, false, table, products), 31.6);
  near(changed(64, 1e4, 40, false, table, products), 20.7);
  near(changed(128, 1e6, 4096, false, f, table), 22.1);
  near(changed(64, 1e4, 2048, false, f, table), 27.6);
  near(changed(128, 1e6, 4096, true, f, with(f, {Site::qk_norm_out})), 30.3);
  near(changed(128, 1e6, 4096, true, kHfEagerSites, without(kHfEagerSites, {Site::qk_norm_xhat})), 26.2);
  near(changed(128, 1e6, 4096, true, f, with(f, {Site::rope_rotated})), 15.8);
  near(changed(128, 1e6, 4096, true, kHfEagerSites, f), 43.6);
  EXPECT_EQ(changed(128, 1e6, 4096, true, kHfEagerSites, without(kHfEagerSites, {Site::rope_rotated})), 0);
}

// Norm and rotation in one kernel round where two kernels would: the norm of every head, stored, then the rotation.
TEST(RopeOracle, AFusedKernelThatKeepsEagersSitesChangesNothing) {
  const Case c{.head_dim = 64, .heads = 3, .rows = 200};
  Pass fused(c);
  fused.forward(kHfEagerSites, 2);
  Context ctx(2);
  Case no_norm = c;
  no_norm.norm = false;
  Pass apart(no_norm);
  Sites norm = make_sites({Site::norm_out});
  norm.set(Site::norm_xhat, kHfEagerSites.rounded(Site::qk_norm_xhat));
  for (int h = 0; h < c.heads; ++h) {
    const Mat head = apart.in.mat.slice_cols(h * c.head_dim, c.head_dim);
    Random normed(c.rows, c.head_dim, kBf16, 7);
    rmsnorm_forward(ctx, {.stream_in = head, .weight = fused.weight, .out = normed}, norm);
    convert(ctx, normed, head);
  }
  apart.forward(kHfEagerSites);
  EXPECT_EQ(fraction_different(fused.out, apart.out), 0);
}

}  // namespace
}  // namespace plumb
