// Where a backward rounds when a stack is compiled as one graph, and where its tensors are FP32: each as a property of one op.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/core/testing.h"
#include "kernels/numerics/numerics.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/rope/rope.h"

namespace plumb {
namespace {

using test::fraction_different;
using test::Random;

TEST(OneGraph, AnF32GradientOfTheStreamIsRoundedWhereTheStreamIs) {
  constexpr std::int64_t kRows = 12;
  constexpr std::int64_t kCols = 70;
  Context ctx(2);
  const Random d_out(kRows, kCols, DType::bf16, 1);
  const Random d_stream(kRows, kCols, DType::bf16, 2);
  const Random sum(kRows, kCols, DType::bf16, 3);
  const Random w(1, kCols, DType::bf16, 4, 0.2, 1);
  const std::vector<float> rstd(kRows, 1.03f);
  const auto run = [&](DType type, BackwardMode mode, bool stored_rounded) {
    Sites sites = preset("hf_eager").base;
    sites.set(Site::resid_store, stored_rounded);
    Random d_sum(kRows, kCols, type, 5, 0);
    rmsnorm_backward(ctx, {.d_out = d_out, .d_stream = d_stream, .sum = sum, .weight = w, .rstd = rstd.data(), .d_sum = d_sum}, sites,
                     mode);
    return d_sum;
  };
  for (BackwardMode mode : {BackwardMode::fused, BackwardMode::mirror}) {
    const Random rounded = run(DType::bf16, mode, true);
    EXPECT_EQ(fraction_different(run(DType::f32, mode, true), rounded), 0);
    EXPECT_GT(fraction_different(run(DType::f32, mode, false), rounded), 0.5);
  }
}

TEST(OneGraph, WhatGoesFromTheRotationIntoTheNormMayStayF32) {
  constexpr int kDim = 64;
  constexpr std::int64_t kRows = 40;
  Context ctx(2);
  const RopeTable table(kDim, 1e4, int(kRows));
  std::vector<std::int32_t> positions;
  for (std::int32_t p = 0; p < kRows; ++p) positions.push_back(p);
  const Random in(kRows, kDim, DType::bf16, 1);
  const Random d_out(kRows, kDim, DType::bf16, 2);
  const Random w(1, kDim, DType::bf16, 3, 0.2, 1);
  const std::vector<float> rstd(kRows, 1.03f);
  const auto run = [&](BackwardMode mode, bool f32) {
    Random d_in(kRows, kDim, DType::bf16, 5, 0);
    rope_backward(ctx,
                  {.d_out = d_out,
                   .in = in,
                   .heads = 1,
                   .norm_weight = w,
                   .rstd = rstd.data(),
                   .table = &table,
                   .positions = positions.data(),
                   .d_in = d_in,
                   .f32_into_norm = f32},
                  preset("hf_compiled").base, mode, BackwardMode::fused);
    return d_in;
  };
  const double changed = fraction_different(run(BackwardMode::fused, true), run(BackwardMode::fused, false));
  EXPECT_GT(changed, 0.1);
  EXPECT_LT(changed, 0.5);
  EXPECT_EQ(fraction_different(run(BackwardMode::mirror, true), run(BackwardMode::mirror, false)), 0);
}

/// Attention of one sequence under hf_eager's rules, forward and backward.
struct Attention {
  Attention(int head_dim, bool one_graph, DType d_k_type)
      : q(kRows, kHeads * head_dim, DType::bf16, 1),
        k(kRows, head_dim, DType::bf16, 2),
        v(kRows, head_dim, DType::bf16, 3),
        d_out(kRows, kHeads * head_dim, DType::bf16, 4),
        out(kRows, kHeads * head_dim, DType::bf16, 5, 0),
        d_q(kRows, kHeads * head_dim, DType::bf16, 6, 0),
        d_k(kRows, head_dim, d_k_type, 7, 0),
        d_v(kRows, head_dim, DType::bf16, 8, 0) {
    Context ctx(2);
    Numerics n = preset("hf_eager");
    n.backward.one_graph = one_graph;
    const auto rows = [](const Random& m) { return KvRows{.own = m.mat.data, .stride = m.mat.stride}; };
    const AttentionSequence sequence{.first_row = 0, .rows = kRows, .k = rows(k), .v = rows(v)};
    std::vector<float> max(kRows * kHeads);
    std::vector<float> sum(kRows * kHeads);
    attention_forward(ctx,
                      {.q = q,
                       .heads = kHeads,
                       .kv_heads = 1,
                       .head_dim = head_dim,
                       .sequences = &sequence,
                       .n_sequences = 1,
                       .out = out,
                       .row_max = max.data(),
                       .row_sum = sum.data()},
                      n, n.base);
    attention_backward(ctx,
                       {.d_out = d_out,
                        .q = q,
                        .k = k,
                        .v = v,
                        .out = out,
                        .row_max = max.data(),
                        .row_sum = sum.data(),
                        .heads = kHeads,
                        .kv_heads = 1,
                        .head_dim = head_dim,
                        .sequences = &sequence,
                        .n_sequences = 1,
                        .d_q = d_q,
                        .d_k = d_k,
                        .d_v = d_v},
                       n, n.base, BackwardMode::mirror);
  }
  static constexpr std::int64_t kRows = 40;
  static constexpr int kHeads = 3;
  Random q, k, v, d_out, out, d_q, d_k, d_v;
};

TEST(OneGraph, TheSumOverCopiesOfAKvHeadIsStoredInTheTypeAsked) {
  const Attention rounded(16, false, DType::bf16);
  const Attention unrounded(16, false, DType::f32);
  EXPECT_GT(fraction_different(unrounded.d_k, rounded.d_k), 0.5);
  for (std::int64_t r = 0; r < Attention::kRows; ++r)
    for (std::int64_t c = 0; c < 16; ++c) ASSERT_EQ(round_bf16(unrounded.d_k.at(r, c)), rounded.d_k.at(r, c));
}

TEST(OneGraph, AttentionRoundsItsScoresGradientOnceBesidesTheScale) {
  for (int head_dim : {16, 64}) {  // scales 1/4 and 1/8: the second rounding is exact
    EXPECT_EQ(fraction_different(Attention(head_dim, true, DType::bf16).d_q, Attention(head_dim, false, DType::bf16).d_q), 0);
  }
  EXPECT_GT(fraction_different(Attention(32, true, DType::bf16).d_q, Attention(32, false, DType::bf16).d_q), 0.1);
}

}  // namespace
}  // namespace plumb
