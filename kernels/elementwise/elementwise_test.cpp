#include "kernels/elementwise/elementwise.h"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/error.h"
#include "kernels/core/rng.h"
#include "kernels/elementwise/elementwise_ref.h"

namespace plumb {
namespace {

/// A random (rows, cols) matrix with unused columns on the right that must stay as they are.
struct Random {
  Random(std::int64_t rows, std::int64_t cols, DType dtype, std::uint64_t seed)
      : memory(std::size_t(rows * (cols + 3)) * bytes_of(dtype)), mat(make_mat(memory.data(), rows, cols + 3, dtype).slice_cols(0, cols)) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols + 3; ++c) {
        const float x = float(random_normal({.seed = seed}, std::uint64_t(r * (cols + 3) + c)));
        if (dtype == DType::f32) {
          mat.row<float>(r)[c] = x;
        } else {
          mat.row<BF16>(r)[c] = to_bf16(x);
        }
      }
  }
  float at(std::int64_t r, std::int64_t c) const { return ref::get(mat, r, c); }
  Buffer memory;
  Mat mat;
};

constexpr DType kTypes[] = {DType::f32, DType::bf16};

TEST(Elementwise, AddConvertAndZeroMatchTheReference) {
  for (int threads : {1, 3}) {
    Context ctx(threads);
    for (DType ta : kTypes)
      for (DType tb : kTypes)
        for (std::int64_t cols : {1, 15, 16, 50, 9000}) {
          Random a(5, cols, ta, 1);
          const Random a0(5, cols, ta, 1);
          const Random b(5, cols, tb, 2);
          Random out(5, cols, ta, 3);
          const Random out0(5, cols, ta, 3);
          add_in_place(ctx, a.mat, b.mat);
          convert(ctx, b.mat, out.mat);
          for (std::int64_t r = 0; r < 5; ++r) {
            for (std::int64_t c = 0; c < cols; ++c) {
              ASSERT_EQ(a.at(r, c), ref::stored(a0.at(r, c) + b.at(r, c), ta));
              ASSERT_EQ(out.at(r, c), ref::stored(b.at(r, c), ta));
            }
            for (std::int64_t c = cols; c < cols + 3; ++c) {
              ASSERT_EQ(a.at(r, c), a0.at(r, c));
              ASSERT_EQ(out.at(r, c), out0.at(r, c));
            }
          }
          fill_zero(ctx, out.mat);
          ASSERT_EQ(out.at(4, cols - 1), 0.0f);
          ASSERT_EQ(out.at(4, cols), out0.at(4, cols));
        }
  }
}

TEST(Elementwise, ColumnSumsAreOneChainHoweverTheRowsAreSplit) {
  for (int threads : {1, 2, 3}) {
    Context ctx(threads);
    for (DType type : kTypes)
      for (std::int64_t cols : {1, 17, 700}) {
        const Random x(301, cols, type, 4);
        std::vector<float> start(std::size_t(cols), 0.25f);
        const std::vector<float> want = ref::column_sums(x.mat, start);
        std::vector<float> whole = start;
        column_sums(ctx, x.mat, whole.data());
        EXPECT_EQ(whole, want);
        std::vector<float> split = start;
        column_sums(ctx, x.mat.slice_rows(0, 100), split.data());
        column_sums(ctx, x.mat.slice_rows(100, 201), split.data());
        EXPECT_EQ(split, want);
      }
  }
}

TEST(Elementwise, GatherRowsCopiesOrZeroes) {
  const std::vector<std::int32_t> index = {3, -1, 0, 3, 4};
  for (int threads : {1, 3}) {
    Context ctx(threads);
    for (DType type : kTypes) {
      const Random in(6, 9000, type, 1);
      const Random out(5, 9000, type, 2);
      gather_rows(ctx, in.mat, index.data(), out.mat);
      for (std::int64_t r = 0; r < 5; ++r)
        for (std::int64_t c = 0; c < 9000; ++c) ASSERT_EQ(out.at(r, c), index[std::size_t(r)] < 0 ? 0.0f : in.at(index[std::size_t(r)], c));
      EXPECT_THROW(gather_rows(ctx, in.mat.slice_cols(0, 3), index.data(), out.mat), Error);
    }
  }
}

TEST(Elementwise, ScatterRowsUndoesGatherRows) {
  const std::vector<std::int32_t> index = {3, -1, 0, 4};
  for (int threads : {1, 3}) {
    Context ctx(threads);
    for (DType type : kTypes) {
      const Random in(4, 9000, type, 1);
      const Random out(5, 9000, type, 2);
      const Random before(5, 9000, type, 2);
      scatter_rows(ctx, in.mat, index.data(), out.mat);
      for (std::int64_t c = 0; c < 9000; ++c) {
        for (std::int64_t r : {0, 2, 3}) ASSERT_EQ(out.at(index[std::size_t(r)], c), in.at(r, c));
        for (std::int64_t r : {1, 2}) ASSERT_EQ(out.at(r, c), before.at(r, c));
      }
      EXPECT_THROW(scatter_rows(ctx, in.mat.slice_cols(0, 3), index.data(), out.mat), Error);
    }
  }
}

TEST(Elementwise, RoundInPlaceIsR) {
  Context ctx(2);
  std::vector<float> x(70000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = float(random_normal({.seed = 5}, i));
  const std::vector<float> before = x;
  round_in_place(ctx, x.data(), std::int64_t(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(x[i], round_bf16(before[i]));
}

TEST(Elementwise, DifferentShapesAreRefused) {
  Context ctx(1);
  Random a(2, 3, DType::f32, 1);
  Random b(2, 4, DType::f32, 1);
  EXPECT_THROW(add_in_place(ctx, a.mat, b.mat), Error);
  EXPECT_THROW(convert(ctx, a.mat, b.mat), Error);
}

}  // namespace
}  // namespace plumb
