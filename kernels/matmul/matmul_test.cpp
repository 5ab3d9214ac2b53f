#include "kernels/matmul/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "kernels/core/error.h"
#include "kernels/core/rng.h"
#include "kernels/matmul/matmul_ref.h"
#include "kernels/matmul/peak.h"

namespace plumb {
namespace {

enum class Values { normal, tiny, wild };  // tiny: products around the smallest normal; wild: all scales, Inf, NaN, denormals

/// A matrix that owns its memory, with guard elements around every row.
struct Owned {
  std::vector<char> bytes;
  Mat mat;
  Owned(std::int64_t rows, std::int64_t cols, DType dtype, std::int64_t gap = 0)
      : bytes(std::size_t((rows * (cols + gap) + gap) * std::int64_t(bytes_of(dtype)) + 64), char(0x5A)),
        mat{bytes.data(), rows, cols, cols + gap, dtype} {}
  void set(std::int64_t r, std::int64_t c, float x) {
    if (mat.dtype == DType::f32) {
      mat.row<float>(r)[c] = x;
    } else {
      mat.row<BF16>(r)[c] = BF16{std::uint16_t(std::bit_cast<std::uint32_t>(x) >> 16)};
    }
  }
};

class Random {
 public:
  explicit Random(std::uint64_t seed) : key_{.seed = seed} {}
  std::uint64_t below(std::uint64_t n) { return random_below(key_, next_++, n); }
  std::int64_t between(std::int64_t lo, std::int64_t hi) { return lo + std::int64_t(below(std::uint64_t(hi - lo + 1))); }
  bool coin() { return below(2) == 1; }
  float value(Values kind) {
    const auto w = random_words(key_, next_++);
    const float x = float(std::int32_t(w[0])) * 0x1p-31f;
    if (kind == Values::normal) return x;
    const std::uint32_t special = w[1] & (kind == Values::tiny ? 15u : 255u);
    if (special == 0) return std::bit_cast<float>(w[2] & 0x807FFFFFu);  // denormal
    if (kind == Values::tiny) return std::ldexp(x, -60 - int(w[3] & 7));
    if (special == 1) return std::bit_cast<float>((w[2] & 0x80000000u) | 0x7F800000u);
    if (special == 2) return std::bit_cast<float>((w[2] & 0x80000000u) | 0x7FC10000u);
    return std::ldexp(x, int(w[3] & 127) - 64);
  }
  Owned matrix(std::int64_t rows, std::int64_t cols, DType dtype, Values kind, std::int64_t gap = 0) {
    Owned m(rows, cols, dtype, gap);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) m.set(r, c, value(kind));
    return m;
  }

 private:
  RandomKey key_;
  std::uint64_t next_ = 0;
};

/// Equal bit for bit, guards included; FP32 NaNs are equal whatever their payload.
::testing::AssertionResult same(const Owned& got, const Owned& want) {
  if (got.bytes == want.bytes) return ::testing::AssertionSuccess();
  const std::size_t size = bytes_of(want.mat.dtype);
  for (std::size_t i = 0; i + size <= got.bytes.size(); i += size) {
    if (std::memcmp(&got.bytes[i], &want.bytes[i], size) == 0) continue;
    float g = 0;
    float w = 0;
    if (size == 4) {
      std::memcpy(&g, &got.bytes[i], 4);
      std::memcpy(&w, &want.bytes[i], 4);
      if (std::isnan(g) && std::isnan(w)) continue;
    }
    const std::int64_t element = std::int64_t(i / size);
    return ::testing::AssertionFailure() << "row " << element / want.mat.stride << " column " << element % want.mat.stride << ": " << g
                                         << " instead of " << w;
  }
  return ::testing::AssertionSuccess();
}

/// 64-byte aligned panels of a weight.
struct Panels {
  Scratch memory;
  PackedWeight packed;
  Panels(Context& ctx, const ConstMat& w) {
    void* p = memory.get(packed_bytes(w.rows, w.cols, w.dtype));
    pack_weight(ctx, w, 0, w.rows, p);
    packed = {.panels = p, .rows = w.rows, .depth = w.cols, .dtype = w.dtype};
  }
};

/// The contexts on which every product must give the same bits.
std::deque<Context>& contexts() {
  static std::deque<Context> all;
  if (all.empty())
    for (Isa isa : machine_isas())
      for (int threads = 1; threads <= 3; ++threads) all.emplace_back(threads, isa);
  return all;
}

struct Case {
  std::int64_t m, n, k;
  DType a = DType::bf16, b = DType::bf16, c = DType::f32;
  bool a_transposed = false, b_transposed = false, bias = false, round = false, accumulate = false;
  Values values = Values::normal;
  std::int64_t gap = 0;

  std::string text() const {
    return "M=" + std::to_string(m) + " N=" + std::to_string(n) + " K=" + std::to_string(k) + " " + name_of(a) +
           (a_transposed ? "^T" : "") + " x " + name_of(b) + (b_transposed ? "^T" : "") + " -> " + name_of(c) + (bias ? " bias" : "") +
           (round ? " round" : "") + (accumulate ? " accumulate" : "") + " values " + std::to_string(int(values)) + " gap " +
           std::to_string(gap);
  }
};

void expect_exact(const Case& t, Random& random) {
  SCOPED_TRACE(t.text());
  const Owned a = t.a_transposed ? random.matrix(t.k, t.m, t.a, t.values, t.gap) : random.matrix(t.m, t.k, t.a, t.values, t.gap);
  const Owned b = t.b_transposed ? random.matrix(t.k, t.n, t.b, t.values, t.gap) : random.matrix(t.n, t.k, t.b, t.values, t.gap);
  const Owned bias = random.matrix(1, t.n, random.coin() ? DType::bf16 : DType::f32, t.values);
  const Owned start = random.matrix(t.m, t.n, t.c, Values::normal, t.gap);
  Matmul product{.a = {a.mat, t.a_transposed}, .b = {b.mat, t.b_transposed}, .accumulate = t.accumulate, .round = t.round};
  if (t.bias) product.bias = bias.mat;
  auto run = [&](auto&& f) {
    Owned c(t.m, t.n, t.c, t.gap);
    if (t.accumulate) c.bytes = start.bytes;
    product.c = c.mat;
    product.c.data = c.bytes.data();
    f();
    return c;
  };
  const Owned want = run([&] { matmul_ref(product); });
  for (Context& ctx : contexts()) {
    SCOPED_TRACE(std::string(name_of(ctx.isa())) + " threads " + std::to_string(ctx.threads()));
    ASSERT_TRUE(same(run([&] { matmul(ctx, product); }), want));
    ASSERT_TRUE(same(run([&] { matmul_on_thread(ctx, ctx.threads() - 1, product); }), want));
    if (t.b_transposed) continue;
    const Panels panels(ctx, b.mat);
    product.packed = panels.packed;
    ASSERT_TRUE(same(run([&] { matmul(ctx, product); }), want)) << "packed";
    product.packed = {};
  }
}

DType any_dtype(Random& r) { return r.below(3) == 0 ? DType::f32 : DType::bf16; }

Case random_case(Random& r, std::int64_t most) {
  Case t{.m = r.between(1, most), .n = r.between(1, most), .k = r.between(1, most)};
  t.a = any_dtype(r);
  t.b = any_dtype(r);
  t.c = r.coin() ? DType::f32 : DType::bf16;
  t.a_transposed = r.coin();
  t.b_transposed = r.coin();
  t.bias = r.below(4) == 0;
  t.round = r.below(4) == 0;
  t.accumulate = t.c == DType::f32 && r.coin();
  t.values = Values(r.below(3));
  t.gap = r.coin() ? 0 : r.between(1, 9);
  return t;
}

TEST(Matmul, EveryElementIsTheChain) {
  Random r(1);
  for (int i = 0; i < 150; ++i) expect_exact(random_case(r, 70), r);
}

TEST(Matmul, EveryTileEdge) {
  Random r(2);
  for (DType panel : {DType::bf16, DType::f32})
    for (std::int64_t m = 1; m <= 30; ++m)
      expect_exact(
          {.m = m, .n = r.between(1, 100), .k = r.between(1, 40), .a = panel, .b = panel, .c = m % 2 == 0 ? DType::f32 : DType::bf16}, r);
  for (std::int64_t n = 1; n <= 68; ++n)
    expect_exact({.m = r.between(1, 9), .n = n, .k = r.between(1, 20), .c = n % 2 == 0 ? DType::f32 : DType::bf16}, r);
  for (std::int64_t k = 1; k <= 36; ++k) expect_exact({.m = 7, .n = 37, .k = k, .a_transposed = k % 3 == 0, .b_transposed = k % 4 == 0}, r);
}

TEST(Matmul, EveryBlockOfKAndOfRows) {
  Random r(3);
  for (DType c : {DType::f32, DType::bf16}) {
    expect_exact({.m = 5, .n = 33, .k = 1337, .c = c}, r);
    expect_exact({.m = 33, .n = 70, .k = 2501, .c = c, .bias = true, .values = Values::wild, .gap = 3}, r);
    expect_exact({.m = 33, .n = 70, .k = 2501, .a = DType::f32, .b = DType::f32, .c = c, .bias = true}, r);
    expect_exact({.m = 300, .n = 40, .k = 1400, .c = c, .round = true}, r);
    expect_exact({.m = 40, .n = 200, .k = 1281, .c = c, .a_transposed = true, .b_transposed = true}, r);
  }
  expect_exact({.m = 20, .n = 50, .k = 2600, .accumulate = true}, r);
  expect_exact({.m = 1201, .n = 33, .k = 64}, r);
}

TEST(Matmul, NothingToAddIsZeroOrTheOldValue) {
  Random r(4);
  expect_exact({.m = 5, .n = 40, .k = 0}, r);
  expect_exact({.m = 5, .n = 40, .k = 0, .c = DType::bf16, .bias = true}, r);
  expect_exact({.m = 5, .n = 40, .k = 0, .bias = true, .accumulate = true}, r);
  expect_exact({.m = 5, .n = 40, .k = 0, .round = true, .accumulate = true, .gap = 2}, r);
  expect_exact({.m = 5, .n = 40, .k = 0, .accumulate = true}, r);
  expect_exact({.m = 0, .n = 40, .k = 8}, r);
  expect_exact({.m = 5, .n = 0, .k = 8}, r);
}

TEST(Matmul, ChainsCarriedOverCallsEqualOneCall) {
  Random r(5);
  for (int trial = 0; trial < 20; ++trial) {
    const std::int64_t m = r.between(1, 40), n = r.between(1, 60), k = r.between(4, 300);
    const DType dtype = any_dtype(r);
    const Owned a = r.matrix(k, m, dtype, Values::wild);
    const Owned b = r.matrix(k, n, dtype, Values::wild);
    Owned want(m, n, DType::f32);
    for (Context& ctx : contexts()) {
      matmul(ctx, {.a = {a.mat, true}, .b = {b.mat, true}, .c = want.mat});
      Owned got(m, n, DType::f32);
      for (std::int64_t first = 0; first < k;) {
        const std::int64_t count = std::min(k - first, 2 * r.between(1, 60));
        matmul(ctx, {.a = {a.mat.slice_rows(first, count), true},
                     .b = {b.mat.slice_rows(first, count), true},
                     .c = got.mat,
                     .accumulate = first > 0});
        first += count;
      }
      ASSERT_TRUE(same(got, want));
    }
  }
}

TEST(Matmul, RowsDoNotDependOnTheBatch) {
  Random r(6);
  const std::int64_t m = 200, n = 130, k = 333;
  const Owned a = r.matrix(m, k, DType::bf16, Values::normal);
  const Owned w = r.matrix(n, k, DType::bf16, Values::normal);
  for (Context& ctx : contexts()) {
    const Panels panels(ctx, w.mat);
    Owned all(m, n, DType::f32);
    matmul(ctx, {.a = {a.mat}, .packed = panels.packed, .c = all.mat});
    for (std::int64_t count : {1, 2, 3, 4, 7, 13}) {
      Owned some(count, n, DType::f32);
      matmul(ctx, {.a = {ConstMat(a.mat).slice_rows(m - count, count)}, .packed = panels.packed, .c = some.mat});
      EXPECT_EQ(0, std::memcmp(some.mat.data, all.mat.row<float>(m - count), std::size_t(count * n) * 4)) << count;
    }
  }
}

TEST(Matmul, MixedStorageOfEqualValuesGivesEqualBits) {
  Random r(7);
  const Owned a = r.matrix(19, 75, DType::bf16, Values::wild);
  const Owned b = r.matrix(45, 75, DType::bf16, Values::wild);
  auto widen = [](const Owned& x) {
    Owned y(x.mat.rows, x.mat.cols, DType::f32);
    for (std::int64_t i = 0; i < x.mat.rows; ++i)
      for (std::int64_t j = 0; j < x.mat.cols; ++j) y.set(i, j, to_float(x.mat.row<BF16>(i)[j]));
    return y;
  };
  const Owned a32 = widen(a);
  const Owned b32 = widen(b);
  for (Context& ctx : contexts()) {
    Owned want(19, 45, DType::f32);
    matmul(ctx, {.a = {a.mat}, .b = {b.mat}, .c = want.mat});
    for (const Owned* x : {&a, &a32})
      for (const Owned* y : {&b, &b32}) {
        Owned got(19, 45, DType::f32);
        matmul(ctx, {.a = {x->mat}, .b = {y->mat}, .c = got.mat});
        EXPECT_TRUE(same(got, want));
      }
  }
}

TEST(Matmul, PanelsArePackedInRangesAndAlikeOnEveryIsa) {
  Random r(8);
  for (DType dtype : {DType::bf16, DType::f32}) {
    const Owned w = r.matrix(150, 37, dtype, Values::wild, 3);
    const std::size_t size = packed_bytes(150, 37, dtype);
    EXPECT_EQ(size, std::size_t(5 * 32 * 19 * 2) * bytes_of(dtype));
    std::vector<char> want;
    for (Context& ctx : contexts()) {
      std::vector<char> whole(size, 0);
      std::vector<char> parts(size, 0);
      pack_weight(ctx, w.mat, 0, 150, whole.data());
      pack_weight(ctx, w.mat, 64, 86, parts.data());
      pack_weight(ctx, w.mat, 0, 64, parts.data());
      EXPECT_EQ(whole, parts);
      if (want.empty()) want = whole;
      EXPECT_EQ(whole, want);
    }
    EXPECT_THROW(pack_weight(contexts()[0], w.mat, 16, 32, want.data()), Error);
    EXPECT_THROW(pack_weight(contexts()[0], w.mat, 0, 33, want.data()), Error);
    EXPECT_THROW(pack_weight(contexts()[0], w.mat, 128, 32, want.data()), Error);
  }
}

TEST(Matmul, RefusesWhatDoesNotFit) {
  Context& ctx = contexts()[0];
  Owned a(5, 7, DType::bf16);
  Owned b(3, 8, DType::bf16);
  Owned c(5, 3, DType::f32);
  auto message = [&](const Matmul& m) {
    try {
      matmul(ctx, m);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message({.a = {a.mat}, .b = {b.mat}, .c = c.mat}), "matmul: a is (5, 7) and b is (3, 8); both need the same depth");
  const Owned b7(3, 7, DType::bf16);
  const Owned c4(5, 4, DType::f32);
  EXPECT_EQ(message({.a = {a.mat}, .b = {b7.mat}, .c = c4.mat}), "matmul: c is (5, 4) but the product is (5, 3)");
  EXPECT_EQ(message({.a = {a.mat}, .b = {b7.mat}, .bias = c4.mat, .c = c.mat}), "matmul: bias is (5, 4); it must be (1, 3)");
  const Owned c16(5, 3, DType::bf16);
  EXPECT_EQ(message({.a = {a.mat}, .b = {b7.mat}, .c = c16.mat, .accumulate = true}), "matmul: accumulate needs an f32 c, which is bf16");
  EXPECT_EQ(message({.a = {a.mat}, .b = {b7.mat}, .packed = {.panels = b.mat.data, .rows = 3, .depth = 8}, .c = c.mat}),
            "matmul: b is (3, 7) but packed is (3, 8); they must be the same weight");
  Mat narrow = c.mat;
  narrow.stride = 2;
  EXPECT_EQ(message({.a = {a.mat}, .b = {b7.mat}, .c = narrow}),
            "matmul: c is (5, 3) with row stride 2; the stride must be at least the columns");
  EXPECT_EQ(message({.a = {a.mat}, .b = {b7.mat}, .c = {nullptr, 5, 3, 3, DType::f32}}), "matmul: c is (5, 3) but has no memory");
  EXPECT_EQ(message({.a = {a.mat}, .b = {b7.mat}, .c = c.mat}), "accepted");
}

TEST(Peak, IsMeasured) {
  Context context(1);
  const double flops = best_peak_flops(context);
  EXPECT_GT(flops, 0) << "no lower bound: a sanitizer on a busy machine leaves little of it";
  EXPECT_LT(flops, 2e12);
}

}  // namespace
}  // namespace plumb
