#include <gtest/gtest.h>

#include <limits>

#include "kernels/attention/attention_ref.h"
#include "kernels/attention/attention_test_util.h"
#include "kernels/core/error.h"

namespace plumb {
namespace {

using namespace attention_test;

const Shape kShapes[] = {{1, 1, 16}, {4, 2, 24}, {3, 1, 64}, {8, 2, 32}, {2, 2, 6}, {2, 1, 128}};

struct Outputs {
  Stored out;
  std::vector<float> max;
  std::vector<float> sum;
};

Outputs run(Context& ctx, const Case& c, const Shape& s, const Stored& q, const std::vector<AttentionSequence>& sequences) {
  Outputs o{Stored(q.rows, q.cols, c.dtype), std::vector<float>(std::size_t(q.rows * s.heads)),
            std::vector<float>(std::size_t(q.rows * s.heads))};
  AttentionForward a = forward_args(q, sequences, s, o.out);
  a.row_max = o.max.data();
  a.row_sum = o.sum.data();
  attention_forward(ctx, a, c.numerics, c.sites);
  return o;
}

attention_ref::Rows rows_of(const Stored& m, std::int64_t first_row, std::int64_t rows, std::int64_t col, std::int64_t n) {
  attention_ref::Rows out;
  for (std::int64_t t = 0; t < rows; ++t) out.push_back(row_of(m, first_row + t, col, n));
  return out;
}

TEST(Attention, ForwardIsTheReferenceBitForBit) {
  Context ctx(2);
  for (Case c : all_cases()) {
    for (const Shape& s : kShapes) {
      for (int tile : {16, 64, 512}) {
        c.numerics.reductions.attention_kv_tile = tile;
        const std::int64_t T = 83;
        const Stored q = random_stored(T, s.heads * s.head_dim, c.dtype, 1, 2.0);
        const Stored k = random_stored(T, s.kv_heads * s.head_dim, c.dtype, 2);
        const Stored v = random_stored(T, s.kv_heads * s.head_dim, c.dtype, 3);
        const Outputs got = run(ctx, c, s, q, packed({T}, k, v));
        for (std::int64_t t : {0, 1, 2, 15, 16, 17, 63, 64, 65, 81, 82}) {
          for (int h = 0; h < s.heads; ++h) {
            std::vector<std::vector<float>> keys;
            std::vector<std::vector<float>> values;
            for (std::int64_t j = 0; j <= t; ++j) {
              keys.push_back(row_of(k, j, h / (s.heads / s.kv_heads) * s.head_dim, s.head_dim));
              values.push_back(row_of(v, j, h / (s.heads / s.kv_heads) * s.head_dim, s.head_dim));
            }
            const auto want = attention_ref::forward(row_of(q, t, h * s.head_dim, s.head_dim), keys, values, c.numerics, c.sites, T);
            ASSERT_EQ(want.out, row_of(got.out, t, h * s.head_dim, s.head_dim))
                << c.name << " tile " << tile << " row " << t << " head " << h;
            ASSERT_EQ(want.max, got.max[std::size_t(t * s.heads + h)]) << c.name;
            ASSERT_EQ(want.sum, got.sum[std::size_t(t * s.heads + h)]) << c.name;
          }
        }
      }
    }
  }
}

// Any shape, tile and split: one query, one head, lengths of whole groups and not, and tiles that end with the sequence.
TEST(Attention, RandomShapesAreTheReferenceBitForBit) {
  constexpr int kDims[] = {16, 64, 128, 24, 6};
  std::uint64_t draw = 0;
  auto any = [&](int n) { return int(random_below({.seed = 77}, draw++, std::uint64_t(n))); };
  Context ctx(2);
  for (int trial = 0; trial < 60; ++trial) {
    Case c = all_cases()[std::size_t(any(int(all_cases().size())))];
    const int kv_heads = 1 + any(2);
    const Shape s{kv_heads * (1 + any(3)), kv_heads, kDims[any(5)]};
    const std::int64_t T = trial % 4 == 0 ? 1 + any(3) : 1 + any(90);
    c.numerics.reductions.attention_kv_tile = 16 * (1 + any(4));
    if (c.numerics.softmax == Softmax::flash) c.numerics.reductions.attention_kv_split = 1 + any(6);
    const Stored q = random_stored(T, s.heads * s.head_dim, c.dtype, std::uint64_t(trial), 3.0);
    const Stored k = random_stored(T, s.kv_heads * s.head_dim, c.dtype, 100 + std::uint64_t(trial));
    const Stored v = random_stored(T, s.kv_heads * s.head_dim, c.dtype, 200 + std::uint64_t(trial));
    const Outputs got = run(ctx, c, s, q, packed({T}, k, v));
    for (std::int64_t t = T - 1; t >= 0; t -= 1 + any(9)) {
      const int h = any(s.heads);
      const std::int64_t col = h / (s.heads / s.kv_heads) * s.head_dim;
      const auto want = attention_ref::forward(row_of(q, t, h * s.head_dim, s.head_dim), rows_of(k, 0, t + 1, col, s.head_dim),
                                               rows_of(v, 0, t + 1, col, s.head_dim), c.numerics, c.sites, T);
      ASSERT_EQ(want.out, row_of(got.out, t, h * s.head_dim, s.head_dim)) << c.name << " T " << T << " row " << t << " dim " << s.head_dim;
      ASSERT_EQ(want.sum, got.sum[std::size_t(t * s.heads + h)]) << c.name;
    }
  }
}

// What PyTorch does at a sequence's end belongs to its last length mod 16 positions only: before them a sampler's numbers, which
// know no end, are the trainer's.
TEST(Attention, OnlyTheLastPositionsDependOnTheSequenceEnd) {
  Context ctx(1);
  for (const Case& c : all_cases()) {
    if (!needs_whole_sequences(c.numerics.reductions)) continue;
    Case endless = c;
    endless.numerics.reductions = without_sequence_end(c.numerics.reductions);
    const Shape s{2, 1, 32};
    const std::int64_t T = 91;
    const Stored q = random_stored(T, 64, c.dtype, 1, 2.0);
    const Stored k = random_stored(T, 32, c.dtype, 2);
    const Stored v = random_stored(T, 32, c.dtype, 3);
    const Outputs a = run(ctx, c, s, q, packed({T}, k, v));
    const Outputs b = run(ctx, endless, s, q, packed({T}, k, v));
    const std::ptrdiff_t whole = 80 * 2;
    EXPECT_TRUE(std::equal(a.sum.begin(), a.sum.begin() + whole, b.sum.begin())) << c.name;
    EXPECT_NE(a.sum, b.sum) << c.name;
    for (std::int64_t t = 0; t < 80; ++t) ASSERT_EQ(row_of(a.out, t, 0, 64), row_of(b.out, t, 0, 64)) << c.name;
  }
}

// Every order is an order of its own: with 91 keys each setting changes some output of FP32.
TEST(Attention, EveryReductionChangesSomething) {
  Context ctx(1);
  const Case base = make_case("base", DType::f32, Softmax::flash, ScaleAt::scores, {}, BackwardMode::fused);
  Reductions tiles;
  tiles.attention_kv_tile = 16;
  std::vector<Reductions> all(7, tiles);
  all[1].attention_qk = MatmulOrder::natural;
  all[2].attention_pv = MatmulOrder::natural;
  all[3].attention_sum = AttentionSum::lanes16_tail;
  all[4].attention_exp = AttentionExp::torch_fast;
  all[5].attention_exp = AttentionExp::u20;
  all[6].attention_kv_split = 2;
  all.push_back({.attention_kv_tile = 32});
  all.push_back(all[6]);
  all.back().attention_kv_split = 4;
  const Stored q = random_stored(91, 64, DType::f32, 1, 2.0);
  const Stored k = random_stored(91, 32, DType::f32, 2);
  const Stored v = random_stored(91, 32, DType::f32, 3);
  std::vector<std::vector<unsigned char>> results;
  for (const Reductions& r : all) results.push_back(run(ctx, with(base, r), {2, 1, 32}, q, packed({91}, k, v)).out.bytes);
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(results[i], results[j]) << i << " " << j;
}

// Decoding row by row from a cache whose unused rows are NaN, with any split into a shared prefix and own rows, in any
// batch and with any number of threads, equals the whole sequence at once.
TEST(Attention, DecodeAndPrefillAndTrainingAreOneFunction) {
  for (Case c : all_cases()) {
    c.numerics.reductions.attention_kv_tile = 32;
    c.numerics.reductions = without_sequence_end(c.numerics.reductions);
    for (const Shape& s : kShapes) {
      const std::int64_t T = 71;
      const std::int64_t kv_width = s.kv_heads * s.head_dim;
      const Stored q = random_stored(T, s.heads * s.head_dim, c.dtype, 4, 2.0);
      Stored k = random_stored(T + 9, kv_width, c.dtype, 5);
      Stored v = random_stored(T + 9, kv_width, c.dtype, 6);
      Context one(1);
      const Outputs want = run(one, c, s, q, packed({T}, k, v));
      for (std::int64_t i = T; i < T + 9; ++i)
        for (std::int64_t d = 0; d < kv_width; ++d) {
          k.set(i, d, std::numeric_limits<float>::quiet_NaN());
          v.set(i, d, std::numeric_limits<float>::infinity());
        }
      Context three(3);
      for (std::int64_t prefix : {0, 1, 16, 37}) {
        // The prefix as a separate copy; then steps of 1, 5, 1, 5, ... rows, all of them as one batch of sequences.
        Stored pk(prefix + 1, kv_width, c.dtype);
        Stored pv(prefix + 1, kv_width, c.dtype);
        for (std::int64_t i = 0; i < prefix; ++i)
          for (std::int64_t d = 0; d < kv_width; ++d) {
            pk.set(i, d, k.get(i, d));
            pv.set(i, d, v.get(i, d));
          }
        std::vector<AttentionSequence> steps;
        for (std::int64_t t = prefix; t < T;) {
          const std::int64_t n = std::min<std::int64_t>(T - t, t % 2 == 0 ? 1 : 5);
          auto rows = [&](const Stored& p, const Stored& m) {
            return KvRows{.prefix = p.bytes.data(), .own = m.view().row_bytes(prefix), .prefix_len = prefix, .stride = kv_width};
          };
          steps.push_back({.first_row = t, .rows = n, .first_pos = t, .k = rows(pk, k), .v = rows(pv, v)});
          t += n;
        }
        std::reverse(steps.begin(), steps.end());
        const Outputs got = run(three, c, s, q, steps);
        for (std::int64_t t = prefix; t < T; ++t)
          for (std::int64_t d = 0; d < q.cols; ++d)
            ASSERT_EQ(want.out.get(t, d), got.out.get(t, d)) << c.name << " prefix " << prefix << " row " << t;
        for (std::int64_t t = prefix * s.heads; t < T * s.heads; ++t) {
          ASSERT_EQ(want.max[std::size_t(t)], got.max[std::size_t(t)]);
          ASSERT_EQ(want.sum[std::size_t(t)], got.sum[std::size_t(t)]);
        }
      }
    }
  }
}

// cases.md 7: packed sequences do not see each other; and later keys of a row's own sequence, however hostile, never enter.
TEST(Attention, RowsSeeTheirOwnPastOnly) {
  for (const Case& c : all_cases()) {
    const Shape s{4, 2, 24};
    const std::vector<std::int64_t> lengths = {1, 33, 2, 64, 0, 17};
    const std::int64_t n = 117;
    const Stored q = random_stored(n, s.heads * s.head_dim, c.dtype, 7);
    Stored k = random_stored(n, s.kv_heads * s.head_dim, c.dtype, 8);
    Stored v = random_stored(n, s.kv_heads * s.head_dim, c.dtype, 9);
    Context ctx(2);
    const Outputs together = run(ctx, c, s, q, packed(lengths, k, v));
    for (const AttentionSequence& alone : packed(lengths, k, v)) {
      const Outputs got = run(ctx, c, s, q, {alone});
      for (std::int64_t t = alone.first_row; t < alone.first_row + alone.rows; ++t)
        for (std::int64_t d = 0; d < q.cols; ++d) ASSERT_EQ(together.out.get(t, d), got.out.get(t, d)) << c.name;
    }
    const std::int64_t poisoned = 1 + 20;  // a row in the middle of the second sequence
    for (std::int64_t d = 0; d < k.cols; ++d) {
      k.set(poisoned, d, std::numeric_limits<float>::quiet_NaN());
      v.set(poisoned, d, std::numeric_limits<float>::infinity());
    }
    const Outputs after = run(ctx, c, s, q, packed(lengths, k, v));
    for (std::int64_t t = 0; t < n; ++t) {
      const bool sees = t >= poisoned && t < 34;
      for (std::int64_t d = 0; d < q.cols; ++d) {
        if (sees) {
          ASSERT_FALSE(std::isfinite(after.out.get(t, d))) << c.name << " row " << t;
        } else {
          ASSERT_EQ(together.out.get(t, d), after.out.get(t, d)) << c.name << " row " << t;
        }
      }
    }
  }
}

// cases.md 44: with 4 query heads on 2 kv heads the kv index is 0, 0, 1, 1.
TEST(Attention, QueryHeadsShareTheirKvHead) {
  const Case c = all_cases()[0];
  const Shape s{4, 2, 16};
  Stored q(1, 64, DType::bf16);
  Stored k(1, 32, DType::bf16);
  Stored v(1, 32, DType::bf16);
  for (int d = 0; d < 32; ++d) v.set(0, d, d < 16 ? 1.0f : 2.0f);
  Context ctx(1);
  const Outputs got = run(ctx, c, s, q, packed({1}, k, v));
  for (int h = 0; h < 4; ++h) EXPECT_EQ(got.out.get(0, h * 16), h < 2 ? 1.0f : 2.0f);
}

struct Training {
  Stored q, k, v, out, d_out, d_q, d_k, d_v;
  std::vector<float> max, sum;

  Training(std::int64_t n, const Shape& s, DType t)
      : q(random_stored(n, s.heads * s.head_dim, t, 11, 2.0)),
        k(random_stored(n, s.kv_heads * s.head_dim, t, 12)),
        v(random_stored(n, s.kv_heads * s.head_dim, t, 13)),
        out(n, q.cols, t),
        d_out(random_stored(n, q.cols, t, 14)),
        d_q(n, q.cols, t),
        d_k(n, k.cols, t),
        d_v(n, k.cols, t),
        max(std::size_t(n * s.heads)),
        sum(std::size_t(n * s.heads)) {}

  void run(Context& ctx, const Case& c, const Shape& s, const std::vector<AttentionSequence>& sequences) {
    AttentionForward f = forward_args(q, sequences, s, out);
    f.row_max = max.data();
    f.row_sum = sum.data();
    attention_forward(ctx, f, c.numerics, c.sites);
    attention_backward(ctx,
                       {.d_out = d_out.view(),
                        .q = q.view(),
                        .k = k.view(),
                        .v = v.view(),
                        .out = out.view(),
                        .row_max = max.data(),
                        .row_sum = sum.data(),
                        .heads = s.heads,
                        .kv_heads = s.kv_heads,
                        .head_dim = s.head_dim,
                        .sequences = sequences.data(),
                        .n_sequences = std::int64_t(sequences.size()),
                        .d_q = d_q.mat(),
                        .d_k = d_k.mat(),
                        .d_v = d_v.mat()},
                       c.numerics, c.sites, c.mode);
  }
};

void expect_rows(const attention_ref::Rows& want, const Stored& got, std::int64_t col, const std::string& what) {
  for (std::size_t t = 0; t < want.size(); ++t)
    for (std::size_t d = 0; d < want[t].size(); ++d)
      ASSERT_EQ(rounded_to(got.dtype, want[t][d]), got.get(std::int64_t(t), col + std::int64_t(d))) << what << " row " << t << " dim " << d;
}

// Both modes, every rounding included. The mirror is hf_eager's autograd: a gradient per query head, rounded, the heads of a
// group summed with one more rounding.
TEST(Attention, BackwardIsTheReferenceBitForBit) {
  Context ctx(2);
  for (const Case& c : all_cases()) {
    for (const Shape& s : {Shape{1, 1, 16}, Shape{4, 2, 24}, Shape{3, 1, 32}}) {
      for (std::int64_t T : {1, 2, 5, 16, 43}) {
        Training t(T, s, c.dtype);
        t.run(ctx, c, s, packed({T}, t.k, t.v));
        const int group = s.heads / s.kv_heads;
        const std::int64_t D = s.head_dim;
        const attention_ref::Rows zeros(static_cast<std::size_t>(T), std::vector<float>(static_cast<std::size_t>(D)));
        for (int kv = 0; kv < s.kv_heads; ++kv) {
          attention_ref::Gradients chains{zeros, zeros, zeros};
          attention_ref::Gradients sums{zeros, zeros, zeros};
          for (int h = kv * group; h < (kv + 1) * group; ++h) {
            if (c.mode == BackwardMode::mirror) chains = {zeros, zeros, zeros};
            chains = attention_ref::backward(rows_of(t.q, 0, T, h * D, D), rows_of(t.k, 0, T, kv * D, D), rows_of(t.v, 0, T, kv * D, D),
                                             rows_of(t.out, 0, T, h * D, D), rows_of(t.d_out, 0, T, h * D, D), c.numerics, c.sites, c.mode,
                                             chains);
            expect_rows(chains.q, t.d_q, h * D, c.name + " d_q");
            for (std::size_t i = 0; i < std::size_t(T); ++i)
              for (std::size_t d = 0; d < std::size_t(D); ++d) {
                sums.k[i][d] += rounded_to(c.dtype, chains.k[i][d]);
                sums.v[i][d] += rounded_to(c.dtype, chains.v[i][d]);
              }
          }
          expect_rows(c.mode == BackwardMode::mirror ? sums.k : chains.k, t.d_k, kv * D, c.name + " d_k");
          expect_rows(c.mode == BackwardMode::mirror ? sums.v : chains.v, t.d_v, kv * D, c.name + " d_v");
        }
      }
    }
  }
}

/// <w, attention(q, k, v)> in double, one sequence, and nothing shared with the code under test.
double loss(const std::vector<double>& q, const std::vector<double>& k, const std::vector<double>& v, const std::vector<double>& w, int T,
            const Shape& s) {
  const int D = s.head_dim;
  double total = 0;
  for (int t = 0; t < T; ++t) {
    for (int h = 0; h < s.heads; ++h) {
      const int kv = h / (s.heads / s.kv_heads);
      double sum = 0;
      double weighted = 0;
      for (int j = 0; j <= t; ++j) {
        double dot = 0;
        double value = 0;
        for (int d = 0; d < D; ++d) {
          dot += q[std::size_t((t * s.heads + h) * D + d)] * k[std::size_t((j * s.kv_heads + kv) * D + d)];
          value += w[std::size_t((t * s.heads + h) * D + d)] * v[std::size_t((j * s.kv_heads + kv) * D + d)];
        }
        const double e = std::exp(dot / std::sqrt(double(D)));
        sum += e;
        weighted += e * value;
      }
      total += weighted / sum;
    }
  }
  return total;
}

void expect_finite_differences(const Shape& s, int T) {
  Context ctx(1);
  for (Case c : all_cases()) {
    if (c.dtype != DType::f32) continue;
    c.numerics.reductions.attention_kv_tile = 16;
    // Of the exp: PyTorch's fast one is no derivative of itself, only close to exp.
    const AttentionExp e = c.numerics.reductions.attention_exp;
    const double exp_error = e == AttentionExp::torch_fast ? 4e-4 : e == AttentionExp::u20 ? 20 * 6e-8 : 0;
    Training t(T, s, c.dtype);
    t.run(ctx, c, s, packed({T}, t.k, t.v));
    auto values = [](const Stored& m) {
      std::vector<double> x;
      for (std::int64_t i = 0; i < m.rows; ++i)
        for (std::int64_t j = 0; j < m.cols; ++j) x.push_back(double(m.get(i, j)));
      return x;
    };
    std::vector<double> x[3] = {values(t.q), values(t.k), values(t.v)};
    const std::vector<double> w = values(t.d_out);
    const std::vector<double> got[3] = {values(t.d_q), values(t.d_k), values(t.d_v)};
    double norm = 0;  // of all three: a single key's d_q and d_k are zero but for roundings
    for (const auto& tensor : got)
      for (double y : tensor) norm = std::max(norm, std::abs(y));
    for (int which = 0; which < 3; ++which) {
      for (std::size_t i = 0; i < x[which].size(); ++i) {
        constexpr double kStep = 1e-5;
        const double at = x[which][i];
        x[which][i] = at + kStep;
        const double above = loss(x[0], x[1], x[2], w, T, s);
        x[which][i] = at - kStep;
        const double below = loss(x[0], x[1], x[2], w, T, s);
        x[which][i] = at;
        // FP32: a few dozen roundings relative to the largest gradient; the difference quotient is good to 1e-9.
        ASSERT_NEAR((above - below) / (2 * kStep), got[which][i], (32 * 6e-8 + 4 * exp_error) * norm + 1e-8)
            << c.name << " tensor " << which << " element " << i;
      }
    }
  }
}

TEST(Attention, BackwardAgreesWithFiniteDifferences) {
  expect_finite_differences({4, 2, 6}, 21);
  expect_finite_differences({1, 1, 2}, 1);
  expect_finite_differences({3, 1, 10}, 2);
  expect_finite_differences({2, 2, 18}, 17);
}

// A gradient depends on its own sequence only: not on what it is packed with, nor on the threads.
TEST(Attention, BackwardIsTheSameInAnyBatchOnAnyThreads) {
  for (const Case& c : all_cases()) {
    const Shape s{4, 2, 24};
    const std::vector<std::int64_t> lengths = {1, 33, 2, 70, 0, 17};
    Training t(123, s, c.dtype);
    Context three(3);
    t.run(three, c, s, packed(lengths, t.k, t.v));
    for (const AttentionSequence& alone : packed(lengths, t.k, t.v)) {
      Training u(123, s, c.dtype);
      Context one(1);
      const std::vector<AttentionSequence> sequence = {alone};
      u.run(one, c, s, sequence);
      for (std::int64_t i = alone.first_row; i < alone.first_row + alone.rows; ++i) {
        for (std::int64_t d = 0; d < t.q.cols; ++d) ASSERT_EQ(t.d_q.get(i, d), u.d_q.get(i, d)) << c.name;
        for (std::int64_t d = 0; d < t.k.cols; ++d) {
          ASSERT_EQ(t.d_k.get(i, d), u.d_k.get(i, d)) << c.name;
          ASSERT_EQ(t.d_v.get(i, d), u.d_v.get(i, d)) << c.name;
        }
      }
    }
  }
}

TEST(Attention, RefusesWhatCannotBe) {
  const Case c = all_cases()[0];
  Stored q(2, 48, DType::bf16);
  Stored kv(2, 32, DType::bf16);
  Stored out(2, 48, DType::bf16);
  Context ctx(1);
  auto sequences = packed({2}, kv, kv);
  auto message = [&](AttentionForward a, const Numerics& n) -> std::string {
    try {
      attention_forward(ctx, a, n, c.sites);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  AttentionForward a = forward_args(q, sequences, {3, 2, 16}, out);
  EXPECT_EQ(message(a, c.numerics), "attention: 3 heads are no multiple of 2 kv heads");
  a = forward_args(q, sequences, {16, 16, 3}, out);
  EXPECT_EQ(message(a, c.numerics), "attention: head_dim must be even and positive, not 3");
  a = forward_args(q, sequences, {4, 2, 16}, out);
  EXPECT_EQ(message(a, c.numerics), "attention: q must be (2, 64), not (2, 48)");
  a = forward_args(q, sequences, {3, 1, 16}, out);
  Numerics odd = c.numerics;
  odd.reductions.attention_kv_tile = 20;
  EXPECT_EQ(message(a, odd), "reductions.attention_kv_tile must be a positive multiple of 16, not 20");
  odd = c.numerics;
  odd.reductions.attention_qk = MatmulOrder::chains_2;
  EXPECT_EQ(message(a, odd), "reductions.attention_qk and attention_pv are pair_swapped or natural, not chains_2");
  odd = c.numerics;
  odd.reductions.attention_kv_split = 0;
  EXPECT_EQ(message(a, odd), "reductions.attention_kv_split must be positive, not 0");
  odd.reductions.attention_kv_split = 2;
  odd.softmax = Softmax::normalised;
  EXPECT_EQ(message(a, odd), "reductions.attention_kv_split needs flash softmax: a normalised one has no tiles");
  odd = c.numerics;
  odd.reductions.attention_exp = AttentionExp::torch_fast;
  sequences[0].first_pos = 1;
  EXPECT_EQ(message(a, odd), "attention: torch_fast and lanes16_tail need whole sequences; without them use torch_fast_all and lanes16");
  sequences[0].first_pos = 0;
  EXPECT_EQ(message(a, c.numerics), "");
  sequences[0].first_row = 1;
  EXPECT_EQ(message(a, c.numerics), "attention: sequence 0 lies outside the queries' rows");
}

}  // namespace
}  // namespace plumb
