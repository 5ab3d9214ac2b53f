// Every order of summation against plain fmaf chains, on every instruction set of the machine.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <vector>

#include "kernels/core/error.h"
#include "kernels/core/testing.h"
#include "kernels/matmul/matmul.h"

namespace plumb {
namespace {

using test::Random;
using test::same_bits;

constexpr MatmulOrder kOrders[] = {MatmulOrder::natural,  MatmulOrder::onednn_blocks, MatmulOrder::chains_2,
                                   MatmulOrder::chains_4, MatmulOrder::chains_8,      MatmulOrder::pair_swapped};

float element(const MatmulOperand& x, std::int64_t row, std::int64_t k) {
  if (k >= x.depth()) return 0.0f;
  return x.transposed ? test::get(x.mat, k, row) : test::get(x.mat, row, k);
}

/// One chain over k in [k0, k1) from `sum`; an odd end is padded by one zero.
float chain(const Matmul& m, std::int64_t i, std::int64_t j, std::int64_t k0, std::int64_t k1, bool natural, float sum) {
  for (std::int64_t k = k0; k < k1; k += 2) {
    for (std::int64_t side : {0, 1}) {
      const std::int64_t at = natural ? k + side : k + 1 - side;
      sum = std::fmaf(element(m.a, i, at), element(m.b, j, at), sum);
    }
  }
  return sum;
}

float blocks(const Matmul& m, std::int64_t i, std::int64_t j, float start) {
  const std::int64_t depth = m.a.depth();
  const std::int64_t size = depth <= 1024 ? 512 : 1024;
  float sum = chain(m, i, j, 0, std::min(size, depth), false, start);
  for (std::int64_t k = size; k < depth; k += size) sum = sum + chain(m, i, j, k, std::min(k + size, depth), false, 0.0f);
  return sum;
}

float tree(const Matmul& m, std::int64_t i, std::int64_t j, int first, int count, int chains, float start) {
  const std::int64_t pairs = (m.a.depth() + 1) / 2;
  if (count == 1) {
    return chain(m, i, j, 2 * (pairs * first / chains), std::min(m.a.depth(), 2 * (pairs * (first + 1) / chains)), false,
                 first == 0 ? start : 0.0f);
  }
  return tree(m, i, j, first, count / 2, chains, start) + tree(m, i, j, first + count / 2, count / 2, chains, start);
}

float sum_in_order(const Matmul& m, std::int64_t i, std::int64_t j, MatmulOrder order) {
  const float start = m.accumulate ? test::get(m.c, i, j) : 0.0f;
  switch (order) {
    case MatmulOrder::pair_swapped: return chain(m, i, j, 0, m.a.depth(), false, start);
    case MatmulOrder::natural: return chain(m, i, j, 0, m.a.depth(), true, start);
    case MatmulOrder::onednn_blocks: return blocks(m, i, j, start);
    case MatmulOrder::chains_2: return tree(m, i, j, 0, 2, 2, start);
    case MatmulOrder::chains_4: return tree(m, i, j, 0, 4, 4, start);
    case MatmulOrder::chains_8: return tree(m, i, j, 0, 8, 8, start);
  }
  return 0;
}

void reference(const Matmul& m, MatmulOrder order) {
  FtzScope ftz;
  for (std::int64_t i = 0; i < m.c.rows; ++i)
    for (std::int64_t j = 0; j < m.c.cols; ++j) {
      float x = sum_in_order(m, i, j, order);
      if (m.bias) x = x + test::get(m.bias, 0, j);
      test::set(m.c, i, j, m.round ? round_bf16(x) : x);
    }
}

std::deque<Context>& contexts() {
  static std::deque<Context> all;
  if (all.empty())
    for (Isa isa : machine_isas())
      for (int threads : {1, 3}) all.emplace_back(threads, isa);
  return all;
}

struct Case {
  std::int64_t m, n, k;
  DType a = DType::bf16, b = DType::bf16, c = DType::f32;
  bool a_transposed = false, b_transposed = false, bias = false, round = false, accumulate = false;
};

/// Aligned panels of a weight.
PackedWeight pack(Context& ctx, const ConstMat& w, Scratch& memory) {
  void* p = memory.get(packed_bytes(w.rows, w.cols, w.dtype));
  pack_weight(ctx, w, 0, w.rows, p);
  return {.panels = p, .rows = w.rows, .depth = w.cols, .dtype = w.dtype};
}

void expect_exact(const Case& t, MatmulOrder order, std::uint64_t seed) {
  SCOPED_TRACE(std::string(enum_name(order)) + " " + std::to_string(t.m) + " x " + std::to_string(t.n) + " x " + std::to_string(t.k));
  const Random a(t.a_transposed ? t.k : t.m, t.a_transposed ? t.m : t.k, t.a, seed);
  const Random b(t.b_transposed ? t.k : t.n, t.b_transposed ? t.n : t.k, t.b, seed + 1);
  const Random bias(1, t.n, DType::bf16, seed + 2);
  Matmul product{.a = {a.mat, t.a_transposed}, .b = {b.mat, t.b_transposed}, .accumulate = t.accumulate, .round = t.round};
  if (t.bias) product.bias = bias.mat;
  const auto run = [&](auto&& f) {
    Random c(t.m, t.n, t.c, seed + 3);
    product.c = c.mat;
    f();
    return c;
  };
  const Random want = run([&] { reference(product, order); });
  for (Context& ctx : contexts()) {
    SCOPED_TRACE(std::string(name_of(ctx.isa())) + " threads " + std::to_string(ctx.threads()));
    ASSERT_TRUE(same_bits(run([&] { matmul(ctx, product, order); }), want));
    ASSERT_TRUE(same_bits(run([&] { matmul_on_thread(ctx, ctx.threads() - 1, product, order); }), want));
    if (t.b_transposed) continue;
    Scratch memory;
    product.packed = pack(ctx, b.mat, memory);
    ASSERT_TRUE(same_bits(run([&] { matmul(ctx, product, order); }), want)) << "packed";
    product.packed = {};
  }
}

TEST(MatmulOrders, EveryElementIsTheSumInItsOrder) {
  const RandomKey key{.seed = 77};
  std::uint64_t next = 0;
  const auto between = [&](std::int64_t lo, std::int64_t hi) {
    return lo + std::int64_t(random_below(key, next++, std::uint64_t(hi - lo + 1)));
  };
  const auto coin = [&] { return between(0, 1) == 1; };
  for (MatmulOrder order : kOrders) {
    for (int i = 0; i < 20; ++i) {
      Case t{.m = between(1, 40), .n = between(1, 150), .k = between(0, 90)};
      t.a = coin() ? DType::bf16 : DType::f32;
      t.b = coin() ? DType::bf16 : DType::f32;
      t.c = coin() ? DType::bf16 : DType::f32;
      t.a_transposed = coin();
      t.b_transposed = coin();
      t.bias = coin();
      t.round = coin();
      t.accumulate = t.c == DType::f32 && coin();
      expect_exact(t, order, std::uint64_t(1000 + 10 * i));
    }
  }
}

TEST(MatmulOrders, LongSumsAreSplitWhereTheirOrderSays) {
  for (MatmulOrder order : kOrders) {
    for (std::int64_t k : {511, 513, 1023, 1024, 1025, 2048, 2501}) {
      expect_exact({.m = 3, .n = 40, .k = k, .c = DType::bf16}, order, std::uint64_t(k));
      expect_exact({.m = 13, .n = 33, .k = k, .accumulate = true}, order, std::uint64_t(k));
    }
    expect_exact({.m = 3, .n = 17, .k = 4101, .a = DType::f32, .b = DType::f32}, order, 5);
    expect_exact({.m = 50, .n = 140, .k = 1300, .a_transposed = true, .b_transposed = true, .bias = true}, order, 6);
  }
}

TEST(MatmulOrders, RowsDoNotDependOnTheBatch) {
  const Random a(61, 1301, DType::bf16, 1);
  const Random w(70, 1301, DType::bf16, 2);
  for (MatmulOrder order : kOrders) {
    for (Context& ctx : contexts()) {
      Scratch memory;
      const PackedWeight packed = pack(ctx, w.mat, memory);
      Random all(61, 70, DType::f32, 3);
      matmul(ctx, {.a = {a.mat}, .packed = packed, .c = all.mat}, order);
      for (std::int64_t count : {1, 2, 5, 14}) {
        Random some(count, 70, DType::f32, 3);
        matmul(ctx, {.a = {ConstMat(a.mat).slice_rows(61 - count, count)}, .packed = packed, .c = some.mat}, order);
        for (std::int64_t r = 0; r < count; ++r)
          ASSERT_EQ(0, std::memcmp(some.mat.row<float>(r), all.mat.row<float>(61 - count + r), 70 * sizeof(float))) << count;
      }
    }
  }
}

TEST(MatmulOrders, OrdersDifferWhereTheyAreDefinedApart) {
  const Random a(20, 1300, DType::bf16, 1);
  const Random w(40, 1300, DType::bf16, 2);
  Context& ctx = contexts().front();
  std::vector<std::vector<float>> results;
  for (MatmulOrder order : kOrders) {
    Random c(20, 40, DType::f32, 3);
    matmul(ctx, {.a = {a.mat}, .b = {w.mat}, .c = c.mat}, order);
    std::vector<float> flat;
    for (std::int64_t r = 0; r < 20; ++r) flat.insert(flat.end(), c.mat.row<float>(r), c.mat.row<float>(r) + 40);
    for (const auto& other : results) EXPECT_NE(flat, other) << enum_name(order);
    results.push_back(flat);
  }
}

}  // namespace
}  // namespace plumb
