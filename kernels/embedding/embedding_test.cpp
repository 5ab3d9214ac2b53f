#include "kernels/embedding/embedding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/core/error.h"
#include "kernels/core/testing.h"
#include "kernels/embedding/embedding_ref.h"
#include "kernels/numerics/preset_sites.h"

namespace plumb {
namespace {

using test::Random;
using test::same_bits;

std::vector<std::int32_t> tokens(std::int64_t n, std::uint64_t vocab) {
  std::vector<std::int32_t> t;
  for (std::int64_t i = 0; i < n; ++i) t.push_back(std::int32_t(random_below({.seed = 8}, std::uint64_t(i), vocab + 1)) - 1);
  return t;
}

TEST(Embedding, ForwardEqualsTheReference) {
  const auto ids = tokens(700, 11);
  for (int threads : {1, 3}) {
    Context ctx(threads);
    for (DType from : {DType::f32, DType::bf16}) {
      for (DType to : {DType::f32, DType::bf16}) {
        for (Sites sites : {Sites{}, kFusedSites}) {
          const Random table(11, 50, from, 1);
          Random got(700, 50, to, 2);
          Random want(700, 50, to, 2);
          embedding_forward(ctx, {.table = table, .tokens = ids.data(), .out = got}, sites);
          ref::embedding_forward({.table = table, .tokens = ids.data(), .out = want}, sites);
          EXPECT_TRUE(same_bits(got, want));
        }
      }
    }
  }
}

TEST(Embedding, BackwardAddsRowsInOrderOnAnyNumberOfThreads) {
  const auto ids = tokens(700, 11);
  for (std::int64_t cols : {1, 50, 300}) {
    for (DType type : {DType::f32, DType::bf16}) {
      const Random d(700, cols, type, 1);
      for (BackwardMode mode : {BackwardMode::fused, BackwardMode::mirror}) {
        Random want(11, cols, DType::f32, 2, 0);
        ref::embedding_backward({.d_out = d, .tokens = ids.data(), .d_table = want}, mode);
        for (int threads : {1, 2, 3}) {
          Context ctx(threads);
          Random got(11, cols, DType::f32, 2, 0);
          embedding_backward(ctx, {.d_out = d.mat.slice_rows(0, 300), .tokens = ids.data(), .d_table = got}, mode);
          embedding_backward(ctx, {.d_out = d.mat.slice_rows(300, 400), .tokens = ids.data() + 300, .d_table = got}, mode);
          EXPECT_TRUE(same_bits(got, want));
        }
      }
    }
  }
}

// The lookup is linear in the table, so its derivative is its adjoint: <d, lookup(table)> = <backward(d), table>.
TEST(Embedding, BackwardIsTheAdjointOfForward) {
  Context ctx(2);
  for (const std::int64_t rows : {1, 7, 90}) {
    for (const std::int64_t cols : {1, 7, 50}) {
      const auto ids = tokens(rows, 7);
      const Random table(7, cols, DType::f32, 1);
      const Random d(rows, cols, DType::f32, 2);
      Random out(rows, cols, DType::f32, 3);
      embedding_forward(ctx, {.table = table, .tokens = ids.data(), .out = out}, {});
      double want = 0;
      double size = 0;
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < cols; ++c) {
          want += double(d.at(r, c)) * out.at(r, c);
          size += std::abs(double(d.at(r, c)) * out.at(r, c));
        }
      for (const BackwardMode mode : {BackwardMode::fused, BackwardMode::mirror}) {
        Random d_table(7, cols, DType::f32, 4, 0);
        embedding_backward(ctx, {.d_out = d, .tokens = ids.data(), .d_table = d_table, .round_to = DType::f32}, mode);
        double got = 0;
        for (std::int64_t r = 0; r < 7; ++r)
          for (std::int64_t c = 0; c < cols; ++c) got += double(d_table.at(r, c)) * table.at(r, c);
        EXPECT_NEAR(got, want, double(rows) * 0x1p-24 * size) << rows << " x " << cols;  // a chain of `rows` roundings
      }
    }
  }
}

TEST(Embedding, RefusesATokenOutsideTheVocabulary) {
  Context ctx(1);
  const Random table(11, 8, DType::bf16, 1);
  Random out(2, 8, DType::bf16, 2);
  const std::int32_t ids[] = {3, 11};
  EXPECT_THROW(embedding_forward(ctx, {.table = table, .tokens = ids, .out = out}, {}), Error);
}

}  // namespace
}  // namespace plumb
