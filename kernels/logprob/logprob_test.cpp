#include "kernels/logprob/logprob.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/core/error.h"
#include "kernels/core/rng.h"
#include "kernels/logprob/logprob_ref.h"

namespace plumb {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Preset {
  std::string name;
  DType compute = DType::bf16;
  Sites sites;
};

std::vector<Preset> presets() {
  std::vector<Preset> out = {{"fused"}, {"hf_eager"}, {"bf16 logits, f temperature"}, {"fp32", DType::f32}};
  for (int i : {1, 2}) out[std::size_t(i)].sites.set(Site::lm_head_logits, true);
  out[1].sites.set(Site::logits_temperature, true);
  return out;
}

/// A head and N rows, as values and as stored.
struct Problem {
  std::int64_t n, depth, vocab;
  DType dtype;
  std::vector<float> hidden, weight;
  std::vector<BF16> hidden16, weight16;
  std::vector<std::int32_t> targets;
  std::vector<float> d_logprob, d_entropy;

  Problem(std::int64_t rows, std::int64_t d, std::int64_t v, DType t) : n(rows), depth(d), vocab(v), dtype(t) {
    auto fill = [&](std::vector<float>& x, std::vector<BF16>& x16, std::int64_t count, std::uint64_t seed, double scale) {
      for (std::int64_t i = 0; i < count; ++i) {
        float y = float(scale * random_normal({.seed = seed}, std::uint64_t(i)));
        if (t == DType::bf16) y = round_bf16(y);
        x.push_back(y);
        x16.push_back(to_bf16(y));
      }
    };
    fill(hidden, hidden16, n * d, 1, 1.0);
    fill(weight, weight16, v * d, 2, 2.0 / std::sqrt(double(d)));
    for (std::int64_t i = 0; i < n; ++i) {
      targets.push_back(i % 5 == 3 ? -1 : std::int32_t(random_below({.seed = 3}, std::uint64_t(i), std::uint64_t(v))));
      d_logprob.push_back(i % 7 == 4 ? 0.0f : float(random_normal({.seed = 4}, std::uint64_t(i))));
      d_entropy.push_back(i % 7 == 4 || i % 2 == 0 ? 0.0f : float(random_normal({.seed = 5}, std::uint64_t(i))));
    }
  }
  ConstMat hidden_mat() const {
    return make_const_mat(dtype == DType::bf16 ? static_cast<const void*>(hidden16.data()) : hidden.data(), n, depth, dtype);
  }
  ConstMat weight_mat() const {
    return make_const_mat(dtype == DType::bf16 ? static_cast<const void*>(weight16.data()) : weight.data(), vocab, depth, dtype);
  }
  float h(std::int64_t i, std::int64_t d) const { return hidden[std::size_t(i * depth + d)]; }
  float w(std::int64_t v, std::int64_t d) const { return weight[std::size_t(v * depth + d)]; }
  /// One row of logits as the site stores it.
  std::vector<float> logits(std::int64_t i, Sites sites) const {
    std::vector<float> out;
    for (std::int64_t v = 0; v < vocab; ++v)
      out.push_back(logprob_ref::rounded(sites.rounded(Site::lm_head_logits), logprob_ref::chain(
                                                                                  depth, 0.0f, [&](std::int64_t d) { return h(i, d); },
                                                                                  [&](std::int64_t d) { return w(v, d); })));
    return out;
  }
};

struct Forward {
  std::vector<float> logprob, entropy;
  std::vector<std::int32_t> argmax;
  friend bool operator==(const Forward&, const Forward&) = default;
};

Forward forward(Context& ctx, const Problem& p, float temperature, Sites sites, std::int64_t chunk, PackedWeight packed = {}) {
  Forward f{std::vector<float>(std::size_t(p.n)), std::vector<float>(std::size_t(p.n)), std::vector<std::int32_t>(std::size_t(p.n))};
  logprob_forward(ctx,
                  {.hidden = p.hidden_mat(),
                   .weight = p.weight_mat(),
                   .packed = packed,
                   .targets = p.targets.data(),
                   .temperature = temperature,
                   .row_chunk = chunk,
                   .logprob = f.logprob.data(),
                   .entropy = f.entropy.data(),
                   .argmax = f.argmax.data()},
                  sites);
  return f;
}

struct Backward {
  std::vector<float> d_hidden;  // values, whatever the storage
  std::vector<float> d_weight;
  friend bool operator==(const Backward&, const Backward&) = default;
};

Backward backward(Context& ctx, const Problem& p, float temperature, Sites sites, std::int64_t chunk, std::int64_t first, std::int64_t rows,
                  std::vector<float> d_weight) {
  std::vector<float> d_hidden(std::size_t(rows * p.depth));
  std::vector<BF16> d_hidden16(d_hidden.size());
  void* out = p.dtype == DType::bf16 ? static_cast<void*>(d_hidden16.data()) : d_hidden.data();
  logprob_backward(ctx,
                   {.hidden = p.hidden_mat().slice_rows(first, rows),
                    .weight = p.weight_mat(),
                    .targets = p.targets.data() + first,
                    .temperature = temperature,
                    .row_chunk = chunk,
                    .d_logprob = p.d_logprob.data() + first,
                    .d_entropy = p.d_entropy.data() + first,
                    .d_hidden = make_mat(out, rows, p.depth, p.dtype),
                    .d_weight = make_mat(d_weight.data(), p.vocab, p.depth, DType::f32)},
                   sites);
  if (p.dtype == DType::bf16)
    for (std::size_t i = 0; i < d_hidden.size(); ++i) d_hidden[i] = to_float(d_hidden16[i]);
  return {d_hidden, d_weight};
}

Backward backward(Context& ctx, const Problem& p, float temperature, Sites sites, std::int64_t chunk) {
  return backward(ctx, p, temperature, sites, chunk, 0, p.n, std::vector<float>(std::size_t(p.vocab * p.depth)));
}

TEST(Logprob, ForwardIsTheReferenceBitForBit) {
  Context ctx(2);
  for (const Preset& preset : presets()) {
    for (std::int64_t vocab : {1, 5, 16, 37, 300}) {
      for (float temperature : {1.0f, 0.7f}) {
        const Problem p(9, 24, vocab, preset.compute);
        const Forward got = forward(ctx, p, temperature, preset.sites, 0);
        for (std::int64_t i = 0; i < p.n; ++i) {
          const std::int32_t target = p.targets[std::size_t(i)];
          if (target < 0) {
            EXPECT_EQ(got.logprob[std::size_t(i)], 0.0f);
            EXPECT_EQ(got.entropy[std::size_t(i)], 0.0f);
            continue;
          }
          const logprob_ref::Row want = logprob_ref::forward(p.logits(i, preset.sites), temperature, preset.sites);
          ASSERT_EQ(got.logprob[std::size_t(i)], want.logp[std::size_t(target)]) << preset.name << " V " << vocab << " T " << temperature;
          ASSERT_EQ(got.entropy[std::size_t(i)], want.entropy) << preset.name << " V " << vocab;
          ASSERT_EQ(got.argmax[std::size_t(i)], want.argmax) << preset.name << " V " << vocab;
        }
      }
    }
  }
}

TEST(Logprob, BackwardIsTheReferenceBitForBit) {
  Context ctx(2);
  for (const Preset& preset : presets()) {
    for (std::int64_t vocab : {3, 16, 37, 100}) {
      for (float temperature : {1.0f, 0.7f}) {
        const Problem p(11, 24, vocab, preset.compute);
        const Backward got = backward(ctx, p, temperature, preset.sites, 4);
        const bool bf16 = preset.compute == DType::bf16;
        std::vector<std::vector<float>> dl;
        for (std::int64_t i = 0; i < p.n; ++i) {
          const auto k = std::size_t(i);
          dl.push_back(logprob_ref::backward(logprob_ref::forward(p.logits(i, preset.sites), temperature, preset.sites), p.targets[k],
                                             p.d_logprob[k], p.d_entropy[k], temperature, preset.sites));
          for (float& x : dl.back()) x = logprob_ref::rounded(bf16, x);
          for (std::int64_t d = 0; d < p.depth; ++d) {
            const float want = logprob_ref::chain(
                vocab, 0.0f, [&](std::int64_t v) { return dl[k][std::size_t(v)]; }, [&](std::int64_t v) { return p.w(v, d); });
            ASSERT_EQ(got.d_hidden[k * std::size_t(p.depth) + std::size_t(d)], logprob_ref::rounded(bf16, want))
                << preset.name << " row " << i;
          }
        }
        for (std::int64_t v = 0; v < vocab; ++v)
          for (std::int64_t d = 0; d < p.depth; ++d) {
            const float want = logprob_ref::chain(
                p.n, 0.0f, [&](std::int64_t i) { return dl[std::size_t(i)][std::size_t(v)]; }, [&](std::int64_t i) { return p.h(i, d); });
            ASSERT_EQ(got.d_weight[std::size_t(v * p.depth + d)], want) << preset.name << " v " << v;
          }
      }
    }
  }
}

void expect_finite_differences(const Problem& p) {
  Context ctx(1);
  for (double temperature : {1.0, 0.7}) {
    const Backward got = backward(ctx, p, float(temperature), {}, 0);
    std::vector<double> x[2] = {{p.hidden.begin(), p.hidden.end()}, {p.weight.begin(), p.weight.end()}};
    const std::vector<float>* gradients[2] = {&got.d_hidden, &got.d_weight};
    for (int which = 0; which < 2; ++which) {
      float norm = 0;
      for (float g : *gradients[which]) norm = std::max(norm, std::abs(g));
      for (std::size_t i = 0; i < x[which].size(); ++i) {
        constexpr double kStep = 1e-5;
        const double at = x[which][i];
        auto objective = [&](double value) {
          x[which][i] = value;
          return logprob_ref::objective(x[0], x[1], p.depth, p.targets, p.d_logprob, p.d_entropy, temperature);
        };
        const double slope = (objective(at + kStep) - objective(at - kStep)) / (2 * kStep);
        x[which][i] = at;
        ASSERT_NEAR(slope, double((*gradients[which])[i]), 32 * 6e-8 * double(norm) + 1e-8) << "tensor " << which << " element " << i;
      }
    }
  }
}

// A vocabulary of one, of seven, of a tile and one more; one row; a depth of one.
TEST(Logprob, BackwardAgreesWithFiniteDifferences) {
  for (const auto& [rows, depth, vocab] : {std::array{6, 5, 11}, {6, 5, 7}, {1, 4, 7}, {3, 1, 2}, {2, 7, 17}, {2, 3, 1}}) {
    SCOPED_TRACE(vocab);
    expect_finite_differences(Problem(rows, depth, vocab, DType::f32));
  }
}

// Chunks, threads, instruction sets, prepacked weights and the rows beside a row are Execution.
TEST(Logprob, NoExecutionSettingChangesABit) {
  for (const Preset& preset : presets()) {
    const Problem p(37, 32, 203, preset.compute);
    Context one(1);
    const Forward want = forward(one, p, 0.7f, preset.sites, 0);
    const Backward want_back = backward(one, p, 0.7f, preset.sites, 0);
    for (Isa isa : machine_isas()) {
      for (int threads : {1, 3}) {
        Context ctx(threads, isa);
        std::vector<std::uint64_t> panels(packed_bytes(p.vocab, p.depth, p.dtype) / 8 + 16);
        auto* aligned = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(panels.data()) + 63) / 64 * 64);
        pack_weight(ctx, p.weight_mat(), 0, p.vocab, aligned);
        const PackedWeight packed{.panels = aligned, .rows = p.vocab, .depth = p.depth, .dtype = p.dtype};
        for (std::int64_t chunk : {1, 2, 6, 16, 100}) {
          EXPECT_EQ(forward(ctx, p, 0.7f, preset.sites, chunk), want) << preset.name << " chunk " << chunk;
          EXPECT_EQ(forward(ctx, p, 0.7f, preset.sites, chunk, packed), want) << preset.name << " chunk " << chunk;
          EXPECT_EQ(backward(ctx, p, 0.7f, preset.sites, chunk), want_back) << preset.name << " chunk " << chunk;
        }
      }
    }
    // Two micro-batches, the second continuing the chains of the first.
    const Backward a = backward(one, p, 0.7f, preset.sites, 0, 0, 14, std::vector<float>(std::size_t(p.vocab * p.depth)));
    const Backward b = backward(one, p, 0.7f, preset.sites, 0, 14, p.n - 14, a.d_weight);
    EXPECT_EQ(b.d_weight, want_back.d_weight) << preset.name;
  }
}

TEST(Logprob, KeepsTheLogitsWhenAsked) {
  Context ctx(2);
  for (const Preset& preset : presets()) {
    const Problem p(5, 16, 19, preset.compute);
    const bool bf16 = preset.sites.rounded(Site::lm_head_logits);
    std::vector<float> f(std::size_t(p.n * p.vocab));
    std::vector<BF16> b(f.size());
    std::vector<float> logprob(std::size_t(p.n));
    const Mat logits = bf16 ? make_mat(b.data(), p.n, p.vocab, DType::bf16) : make_mat(f.data(), p.n, p.vocab, DType::f32);
    logprob_forward(ctx,
                    {.hidden = p.hidden_mat(),
                     .weight = p.weight_mat(),
                     .targets = p.targets.data(),
                     .temperature = 0.7f,
                     .row_chunk = 2,
                     .logprob = logprob.data(),
                     .logits = logits},
                    preset.sites);
    EXPECT_EQ(logprob, forward(ctx, p, 0.7f, preset.sites, 0).logprob);
    for (std::int64_t i = 0; i < p.n; ++i) {
      const std::vector<float> want = p.logits(i, preset.sites);
      for (std::int64_t v = 0; v < p.vocab; ++v) {
        const auto k = std::size_t(i * p.vocab + v);
        ASSERT_EQ(bf16 ? to_float(b[k]) : f[k], want[std::size_t(v)]);
      }
    }
  }
}

/// A problem of one row whose logits are the given ones: the weight is the logits, the hidden state is 1.
struct OneRow {
  std::vector<float> weight;
  float logprob = 0;
  float entropy = 0;
  std::vector<float> d_weight;  // = the gradient of the logits

  OneRow(std::vector<float> logits, std::int32_t target, float temperature, float d_logprob, float d_entropy) : weight(std::move(logits)) {
    Context ctx(1);
    const auto vocab = std::int64_t(weight.size());
    const float one = 1.0f;
    const ConstMat hidden = make_const_mat(&one, 1, 1, DType::f32);
    const ConstMat w = make_const_mat(weight.data(), vocab, 1, DType::f32);
    logprob_forward(
        ctx, {.hidden = hidden, .weight = w, .targets = &target, .temperature = temperature, .logprob = &logprob, .entropy = &entropy}, {});
    d_weight.resize(weight.size());
    // A hidden gradient of 0 * inf is nobody's business here.
    float d_hidden = 0;
    logprob_backward(ctx,
                     {.hidden = hidden,
                      .weight = w,
                      .targets = &target,
                      .temperature = temperature,
                      .d_logprob = &d_logprob,
                      .d_entropy = &d_entropy,
                      .d_hidden = make_mat(&d_hidden, 1, 1, DType::f32),
                      .d_weight = make_mat(d_weight.data(), vocab, 1, DType::f32)},
                     {});
  }
};

// cases.md 17
TEST(Logprob, DividesByTheTemperature) {
  EXPECT_NEAR(OneRow({2, 1, 0}, 0, 1.0f, 1, 0).logprob, -.4076060, 2e-7);
  EXPECT_NEAR(OneRow({2, 1, 0}, 0, 0.7f, 1, 0).logprob, -.2601184, 2e-7);
}

// cases.md 19
TEST(Logprob, ExtremeLogitsStayFinite) {
  const OneRow a({60, 0, 0}, 1, 1.0f, 1, 0.5f);
  EXPECT_NEAR(a.logprob, -60, 1e-5);
  const OneRow b({1e4f, -1e4f}, 1, 1.0f, 1, 0.5f);
  EXPECT_EQ(b.logprob, -2e4f);
  for (const OneRow* r : {&a, &b}) {
    EXPECT_NEAR(r->entropy, 0, 1e-6);
    for (float g : r->d_weight) EXPECT_TRUE(std::isfinite(g));
    EXPECT_EQ(r->d_weight[0], -1.0f);
    EXPECT_EQ(r->d_weight[1], 1.0f);
  }
}

// cases.md 20
TEST(Logprob, ImpossibleTokensAddNothingToTheEntropy) {
  const OneRow a({0, -kInf}, 0, 1.0f, 1, 1);
  EXPECT_EQ(a.entropy, 0.0f);
  const OneRow b({0, 0, -kInf}, 0, 1.0f, 0, 1);
  EXPECT_NEAR(b.entropy, .69314718, 1e-7);
  for (const OneRow* r : {&a, &b})
    for (float g : r->d_weight) EXPECT_TRUE(std::isfinite(g));
}

// cases.md 45: what pads the vocabulary to a tile takes no part.
TEST(Logprob, PaddedColumnsTakeNoPart) { EXPECT_NEAR(OneRow({-10, -15, -15, -15}, 0, 1.0f, 1, 0).logprob, -.02001225, 2e-7); }

TEST(Logprob, RowsAtHandGiveTheSameBits) {
  Context ctx(2);
  for (const Preset& preset : presets()) {
    for (float temperature : {1.0f, 0.7f}) {
      const Problem p(8, 24, 203, preset.compute);
      const Forward want = forward(ctx, p, temperature, preset.sites, 0);
      for (std::int64_t i = 0; i < p.n; ++i) {
        const std::int32_t target = p.targets[std::size_t(i)];
        if (target < 0) continue;
        const std::vector<float> logits = p.logits(i, preset.sites);
        std::vector<BF16> stored;
        for (float l : logits) stored.push_back(to_bf16(l));
        const bool bf16 = preset.sites.rounded(Site::lm_head_logits);
        std::vector<float> z(std::size_t(p.vocab));
        const RowLogprob s = row_log_softmax(bf16 ? static_cast<const void*>(stored.data()) : logits.data(),
                                             bf16 ? DType::bf16 : DType::f32, p.vocab, temperature, preset.sites, z.data());
        ASSERT_EQ(logprob_of(s, z[std::size_t(target)]), want.logprob[std::size_t(i)]) << preset.name;
      }
    }
  }
}

TEST(Logprob, RefusesWhatCannotBe) {
  Context ctx(1);
  Problem p(2, 8, 10, DType::f32);
  p.targets = {3, 10};
  auto message = [&](float temperature) -> std::string {
    try {
      forward(ctx, p, temperature, {}, 0);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message(1), "logprob: target 10 of row 1 is outside the vocabulary of 10");
  p.targets[1] = -1;
  EXPECT_EQ(message(1), "");
  EXPECT_EQ(message(0), "logprob: temperature must be positive, not 0.000000");
}

}  // namespace
}  // namespace plumb
