#include "kernels/swiglu/swiglu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/core/error.h"
#include "kernels/core/testing.h"
#include "kernels/numerics/preset_sites.h"
#include "kernels/numerics/site_dispatch.h"
#include "kernels/swiglu/swiglu_ref.h"

namespace plumb {
namespace {

using test::Random;

constexpr DType kBf16 = DType::bf16;
constexpr DType kF32 = DType::f32;

Random forward(const Random& gate, const Random& up, Sites sites, DType out_type, int threads = 1) {
  Context ctx(threads);
  Random out(gate.mat.rows, gate.mat.cols, out_type, 9, 0, 7);
  swiglu_forward(ctx, {.gate = gate, .up = up, .out = out}, sites);
  return out;
}

struct Gradients {
  Random gate;
  Random up;
};
Gradients backward(const Random& d, const Random& gate, const Random& up, Sites sites, BackwardMode mode, DType type, int threads = 1) {
  Context ctx(threads);
  Gradients g{Random(gate.mat.rows, gate.mat.cols, type, 9, 0, 7), Random(gate.mat.rows, gate.mat.cols, type, 10, 0, 7)};
  swiglu_backward(ctx, {.d_out = d, .gate = gate, .up = up, .d_gate = g.gate, .d_up = g.up}, sites, mode);
  return g;
}

TEST(Swiglu, ForwardMatchesTheReference) {
  for (DType type : {kBf16, kF32}) {
    for (std::int64_t cols : {1, 15, 16, 50, 300}) {
      const Random gate(40, cols, type, 1, 2);
      const Random up(40, cols, type, 2);
      for (Sites sites : {Sites{}, kFusedSites, kHfEagerSites, make_sites({Site::swiglu_silu})}) {
        const Random out = forward(gate, up, sites, type);
        Random want(40, cols, type, 9, 0, 7);
        for (std::int64_t r = 0; r < 40; ++r) {
          for (std::int64_t c = 0; c < cols; ++c) test::set(want, r, c, ref::swiglu(gate.at(r, c), up.at(r, c), sites));
        }
        const bool rounds = type == kBf16 || sites != Sites{};
        EXPECT_LE(test::relative_error(out, want), rounds ? 0x1p-12 : 0x1p-22);
        EXPECT_LE(test::fraction_different(out, want), type == kBf16 ? 1e-3 : 1.0);
      }
    }
  }
}

TEST(Swiglu, BackwardMatchesTheReference) {
  for (DType type : {kBf16, kF32}) {
    const Random d(40, 300, type, 3);
    const Random gate(40, 300, type, 1, 2);
    const Random up(40, 300, type, 2);
    for (BackwardMode mode : {BackwardMode::fused, BackwardMode::mirror}) {
      for (Sites sites : {Sites{}, kFusedSites, kHfEagerSites}) {
        const Gradients g = backward(d, gate, up, sites, mode, type);
        Random want_gate(40, 300, type, 9, 0, 7);
        Random want_up(40, 300, type, 10, 0, 7);
        for (std::int64_t r = 0; r < 40; ++r) {
          for (std::int64_t c = 0; c < 300; ++c) {
            const auto w = ref::swiglu_gradient(d.at(r, c), gate.at(r, c), up.at(r, c), mode == BackwardMode::mirror, sites, type == kBf16);
            test::set(want_gate, r, c, w.gate);
            test::set(want_up, r, c, w.up);
          }
        }
        const bool rounds = type == kBf16 || (mode == BackwardMode::mirror && sites.rounded(Site::swiglu_silu));
        EXPECT_LE(test::relative_error(g.gate, want_gate), rounds ? 0x1p-12 : 0x1p-21);
        EXPECT_LE(test::relative_error(g.up, want_up), rounds ? 0x1p-12 : 0x1p-21);
      }
    }
  }
}

void expect_finite_differences(std::int64_t rows, std::int64_t cols, BackwardMode mode) {
  const Random d(rows, cols, kF32, 3);
  const Random gate(rows, cols, kF32, 1);
  const Random up(rows, cols, kF32, 2);
  const Gradients g = backward(d, gate, up, {}, mode, kF32);
  const auto loss = [&](const Random& x, const Random& y) {
    double sum = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) sum += double(d.at(r, c)) * ref::swiglu(x.at(r, c), y.at(r, c), {});
    }
    return sum;
  };
  for (bool of_gate : {true, false}) {
    const Random direction(rows, cols, kF32, 5);
    Random plus(rows, cols, kF32, of_gate ? 1 : 2);
    Random minus(rows, cols, kF32, of_gate ? 1 : 2);
    double want = 0;
    constexpr float h = 1e-2f;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        test::set(plus, r, c, plus.at(r, c) + h * direction.at(r, c));
        test::set(minus, r, c, minus.at(r, c) - h * direction.at(r, c));
        want += double(direction.at(r, c)) * (of_gate ? g.gate : g.up).at(r, c);
      }
    }
    const double got = of_gate ? loss(plus, up) - loss(minus, up) : loss(gate, plus) - loss(gate, minus);
    EXPECT_NEAR(got / (2 * h), want, 1e-3 * std::abs(want) + 1e-3);
  }
}

TEST(Swiglu, GradientsAgreeWithFiniteDifferences) {
  for (const BackwardMode mode : {BackwardMode::fused, BackwardMode::mirror})
    for (const std::int64_t cols : {1, 7, 16, 50})
      for (const std::int64_t rows : {1, 8}) expect_finite_differences(rows, cols, mode);
}

TEST(Swiglu, ThreadsAndTheRunTimePathChangeNoBit) {
  for (DType type : {kBf16, kF32}) {
    const Random d(70, 999, type, 3);
    const Random gate(70, 999, type, 1, 2);
    const Random up(70, 999, type, 2);
    for (Sites sites : {Sites{}, kFusedSites, kHfEagerSites, kVllmCpuCompiledSites}) {
      const Random out = forward(gate, up, sites, type);
      const Sites at_run_time{sites.mask | kRunTimeSites};
      EXPECT_TRUE(test::same_bits(out, forward(gate, up, at_run_time, type, 3)));
      for (BackwardMode mode : {BackwardMode::fused, BackwardMode::mirror}) {
        const Gradients g = backward(d, gate, up, sites, mode, type);
        const Gradients other = backward(d, gate, up, at_run_time, mode, type, 2);
        EXPECT_TRUE(test::same_bits(g.gate, other.gate));
        EXPECT_TRUE(test::same_bits(g.up, other.up));
      }
    }
  }
}

TEST(Swiglu, GradientsMayOverwriteTheirInputs) {
  Context ctx(1);
  const Random d(5, 50, kBf16, 3);
  Random gate(5, 50, kBf16, 1);
  Random up(5, 50, kBf16, 2);
  const Gradients g = backward(d, gate, up, kHfEagerSites, BackwardMode::mirror, kBf16);
  swiglu_backward(ctx, {.d_out = d, .gate = gate, .up = up, .d_gate = gate, .d_up = up}, kHfEagerSites, BackwardMode::mirror);
  EXPECT_EQ(test::fraction_different(gate, g.gate), 0);
  EXPECT_EQ(test::fraction_different(up, g.up), 0);
}

TEST(Swiglu, ExtremeGatesStayFinite) {
  Context ctx(1);
  float gate[4] = {-200.0f, -89.0f, 89.0f, 1e30f};
  float up[4] = {1, 1, 1, 1};
  float out[4];
  swiglu_forward(ctx, {.gate = make_mat(gate, 1, 4, kF32), .up = make_mat(up, 1, 4, kF32), .out = make_mat(out, 1, 4, kF32)}, {});
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_EQ(out[1], 0.0f);
  EXPECT_EQ(out[2], 89.0f);
  EXPECT_EQ(out[3], 1e30f);
}

// How many outputs the site changes, for N(0,1) inputs.
TEST(SwigluOracle, SiluSiteChanges27Percent) {
  const Random gate(1000, 512, kBf16, 1);
  const Random up(1000, 512, kBf16, 2);
  const double changed = test::fraction_different(forward(gate, up, kHfEagerSites, kBf16, 2), forward(gate, up, kFusedSites, kBf16, 2));
  EXPECT_NEAR(changed, 0.275, 0.0275);
}

// Against two operators that store what they compute: silu alone, then the product.
TEST(SwigluOracle, AFusedKernelThatKeepsEagersSitesChangesNothing) {
  const Random gate(100, 500, kBf16, 1);
  const Random up(100, 500, kBf16, 2);
  const Random one(100, 500, kBf16, 3, 0, 1);
  const Random silu = forward(gate, one, kFusedSites, kBf16);
  Random product(100, 500, kBf16, 9, 0, 7);
  for (std::int64_t r = 0; r < 100; ++r)
    for (std::int64_t c = 0; c < 500; ++c) test::set(product, r, c, silu.at(r, c) * up.at(r, c));
  EXPECT_EQ(test::fraction_different(forward(gate, up, kHfEagerSites, kBf16), product), 0);
}

TEST(Swiglu, RefusesShapesThatDiffer) {
  Context ctx(1);
  const Random a(2, 8, kF32, 1);
  Random b(2, 7, kF32, 2);
  EXPECT_THROW(swiglu_forward(ctx, {.gate = a, .up = a, .out = b}, {}), Error);
}

}  // namespace
}  // namespace plumb
