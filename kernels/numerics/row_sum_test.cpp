// Orders of a row's sum: PyTorch's against sums that PyTorch 2.15 computed, the others against plain loops, and that both norms
// use the order they are given, forward and backward.
#include "kernels/numerics/row_sum.h"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "kernels/core/math.h"
#include "kernels/core/testing.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/rope/rope.h"

namespace plumb {
namespace {

using test::Random;

constexpr RowSumOrder kOrders[] = {RowSumOrder::lanes16, RowSumOrder::lanes8, RowSumOrder::lanes32, RowSumOrder::lanes1,
                                   RowSumOrder::torch};

/// Full mantissas over seven binades, so that every order gives other bits.
std::vector<float> terms(std::int64_t n) {
  std::vector<float> x;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto bits = std::uint32_t(std::uint64_t(i) * 2654435761u + 12345u) >> 8;
    x.push_back(float(bits) * 0x1p-24f * float(1 << (i % 7)));
  }
  return x;
}

TEST(RowSum, TorchIsPyTorch) {
  // torch.stack([x, x]).sum(-1) on a CPU
  constexpr struct {
    std::int64_t n;
    std::uint32_t sum;
  } kSums[] = {{1, 0x36400000u},    {5, 0x41848A13u},    {7, 0x42818E6Du},    {8, 0x42823577u},    {9, 0x4285FC67u},    {24, 0x431FA99Cu},
               {31, 0x43600564u},   {32, 0x43614B22u},   {33, 0x436DBA18u},   {64, 0x44001FF7u},   {100, 0x44550A81u},  {128, 0x448B1FA5u},
               {301, 0x452CDC05u},  {512, 0x45929BDAu},  {576, 0x45A54D7Cu},  {896, 0x46002E94u},  {1024, 0x46103AECu}, {2048, 0x4690B46Fu},
               {2049, 0x4690CBE9u}, {4096, 0x47114DECu}, {4864, 0x472CC347u}, {8192, 0x47912C7Fu}, {70001, 0x491B0C22u}};
  for (const auto& [n, sum] : kSums) EXPECT_EQ(std::bit_cast<std::uint32_t>(row_sum(RowSumOrder::torch, terms(n).data(), n)), sum) << n;
}

float folded(const std::vector<float>& x, std::size_t lanes) {
  std::vector<float> sums(lanes, 0.0f);
  for (std::size_t i = 0; i < x.size(); ++i) sums[i % lanes] += x[i];
  for (std::size_t half = lanes / 2; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

TEST(RowSum, LanesAreFoldedByHalves) {
  for (std::int64_t n = 0; n < 130; ++n) {
    const std::vector<float> x = terms(n);
    EXPECT_EQ(row_sum(RowSumOrder::lanes16, x.data(), n), folded(x, 16));
    EXPECT_EQ(row_sum(RowSumOrder::lanes8, x.data(), n), folded(x, 8));
    EXPECT_EQ(row_sum(RowSumOrder::lanes32, x.data(), n), folded(x, 32));
    EXPECT_EQ(row_sum(RowSumOrder::lanes1, x.data(), n), folded(x, 1));
  }
}

TEST(RowSum, OrdersDiffer) {
  constexpr std::int64_t kFirst = 500;
  constexpr std::int64_t kLast = 600;
  for (RowSumOrder a : kOrders) {
    for (RowSumOrder b : kOrders) {
      int differ = 0;
      for (std::int64_t n = kFirst; n < kLast; ++n) differ += row_sum(a, terms(n).data(), n) != row_sum(b, terms(n).data(), n);
      EXPECT_EQ(differ > 10, a != b) << enum_name(a) << " " << enum_name(b);
    }
  }
}

/// rstd of a row of FP32 values and dL/dx = r dz - x (r^3 / n) <dz, x> in the order of autograd.
struct Norm {
  Norm(const Random& x, std::int64_t row, std::int64_t first, std::int64_t n, RowSumOrder order) {
    std::vector<float> squares;
    for (std::int64_t i = 0; i < n; ++i) squares.push_back(x.at(row, first + i) * x.at(row, first + i));
    rstd = rsqrt_(row_sum(order, squares.data(), n) / float(n) + 1e-6f);
  }
  static std::vector<float> gradient(const std::vector<float>& dz, const std::vector<float>& x, float rstd, RowSumOrder order) {
    std::vector<float> products;
    for (std::size_t i = 0; i < x.size(); ++i) products.push_back(dz[i] * x[i]);
    const float dot = row_sum(order, products.data(), std::int64_t(x.size()));
    const float factor = (-0.5f * dot) * (rstd * rstd * rstd) / float(x.size());
    std::vector<float> d;
    for (std::size_t i = 0; i < x.size(); ++i) d.push_back(dz[i] * rstd + factor * (2.0f * x[i]));
    return d;
  }
  float rstd;
};

TEST(RowSum, TheResidualNormUsesTheOrderForwardAndBackward) {
  constexpr std::int64_t kRows = 9;
  for (std::int64_t cols : {5, 48, 301}) {
    const Random x(kRows, cols, DType::f32, 1);
    const Random w(1, cols, DType::f32, 2, 0.2, 1);
    const Random d_out(kRows, cols, DType::f32, 3);
    for (RowSumOrder order : kOrders) {
      for (int threads : {1, 3}) {
        Context ctx(threads);
        Random out(kRows, cols, DType::f32, 4, 0);
        Random d_sum(kRows, cols, DType::f32, 5, 0);
        std::vector<float> rstd(kRows);
        rmsnorm_forward(ctx, {.stream_in = x, .weight = w, .out = out, .rstd = rstd.data()}, {}, order);
        rmsnorm_backward(ctx, {.d_out = d_out, .sum = x, .weight = w, .rstd = rstd.data(), .d_sum = d_sum}, {}, BackwardMode::fused, order);
        for (std::int64_t r = 0; r < kRows; ++r) {
          const Norm want(x, r, 0, cols, order);
          ASSERT_EQ(rstd[std::size_t(r)], want.rstd) << enum_name(order);
          std::vector<float> dz;
          std::vector<float> row;
          for (std::int64_t i = 0; i < cols; ++i) {
            ASSERT_EQ(out.at(r, i), x.at(r, i) * want.rstd * w.at(0, i));
            dz.push_back(d_out.at(r, i) * w.at(0, i));
            row.push_back(x.at(r, i));
          }
          const std::vector<float> d = Norm::gradient(dz, row, want.rstd, order);
          for (std::int64_t i = 0; i < cols; ++i) ASSERT_EQ(d_sum.at(r, i), d[std::size_t(i)]) << enum_name(order);
        }
      }
    }
  }
}

TEST(RowSum, QkNormUsesTheOrderForwardAndBackward) {
  constexpr std::int64_t kRows = 7;
  constexpr int kHeads = 2;
  const std::vector<std::int32_t> positions(kRows, 0);  // no rotation at position 0
  for (int d : {24, 64}) {
    const RopeTable table(d, 1e4, 1);
    const Random x(kRows, kHeads * d, DType::f32, 1);
    const Random w(1, d, DType::f32, 2, 0.2, 1);
    const Random d_out(kRows, kHeads * d, DType::f32, 3);
    for (RowSumOrder order : kOrders) {
      Context ctx(2);
      Random out(kRows, kHeads * d, DType::f32, 4, 0);
      Random d_in(kRows, kHeads * d, DType::f32, 5, 0);
      std::vector<float> rstd(kRows * kHeads);
      const RopeForward forward{
          .in = x, .heads = kHeads, .norm_weight = w, .table = &table, .positions = positions.data(), .out = out, .rstd = rstd.data()};
      rope_forward(ctx, forward, {}, order);
      const RopeBackward backward{.d_out = d_out,
                                  .in = x,
                                  .heads = kHeads,
                                  .norm_weight = w,
                                  .rstd = rstd.data(),
                                  .table = &table,
                                  .positions = positions.data(),
                                  .d_in = d_in};
      rope_backward(ctx, backward, {}, BackwardMode::fused, BackwardMode::fused, order);
      for (std::int64_t r = 0; r < kRows; ++r) {
        for (int h = 0; h < kHeads; ++h) {
          const Norm want(x, r, h * d, d, order);
          ASSERT_EQ(rstd[std::size_t(r * kHeads + h)], want.rstd) << enum_name(order);
          std::vector<float> dz;
          std::vector<float> row;
          for (std::int64_t i = 0; i < d; ++i) {
            dz.push_back(d_out.at(r, h * d + i) * w.at(0, i));
            row.push_back(x.at(r, h * d + i));
          }
          const std::vector<float> want_d = Norm::gradient(dz, row, want.rstd, order);
          for (std::int64_t i = 0; i < d; ++i) ASSERT_EQ(d_in.at(r, h * d + i), want_d[std::size_t(i)]) << enum_name(order);
        }
      }
    }
  }
}

}  // namespace
}  // namespace plumb
