// The decoder as a whole: one result whatever the execution, cache or packing; gradients against finite differences.
#include "model/qwen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/core/error.h"
#include "model/model_testing.h"

namespace plumb {
namespace {

using namespace testing_model;

constexpr Family kFamilies[] = {Family::qwen3, Family::qwen2, Family::llama};
constexpr int kMaxPositions = 64;

/// The shipped presets, and one whose stream is FP32 in the first block only (as compiled transformers models have it).
std::vector<Numerics> all_numerics() {
  std::vector<Numerics> out;
  for (std::string_view name : usable_presets()) out.push_back(preset(name));
  Numerics mixed = preset("hf_eager");
  mixed.preset = "mixed";
  for (Site site : {Site::resid_store, Site::resid_sum_to_var, Site::resid_sum_to_scale}) {
    mixed.overrides.push_back({.first_layer = 0, .last_layer = 0, .place = Place::post_attention_norm, .site = site, .rounded = false});
  }
  out.push_back(mixed);
  return out;
}

std::string label(const Numerics& n, Family f) { return n.preset + " " + name_of(f); }

/// Equal bit for bit, or what the first difference is.
::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " against " << b.size() << " values";
  std::size_t different = 0;
  std::size_t first = 0;
  for (std::size_t i = a.size(); i-- > 0;) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) == 0) continue;
    ++different;
    first = i;
  }
  if (different == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << different << " of " << a.size() << " differ, first at " << first << ": " << a[first] << ", "
                                       << b[first];
}

/// What a run of the whole model gives, for comparisons.
struct Outcome {
  Scores scores;
  std::vector<float> gradients;
};

struct Setting {
  ModelExecution execution;
  int threads = 1;
  Isa isa = best_isa();
  std::vector<std::size_t> split;  // sequences per micro-batch; empty: all in one
};

std::vector<float> token_weights(std::size_t n, std::uint64_t seed) {
  std::vector<float> w(n);
  for (std::size_t i = 0; i < n; ++i) w[i] = float(random_normal({.seed = seed}, i));
  return w;
}

/// d logprob and d entropy of every row: by sequence and position, so that they do not depend on the packing.
void upstream(std::span<const Ids> sequences, std::size_t first, const Packed& p, std::vector<float>& d_logprob,
              std::vector<float>& d_entropy) {
  d_logprob.assign(p.tokens.size(), 0);
  d_entropy.assign(p.tokens.size(), 0);
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const std::vector<float> w = token_weights(2 * sequences[s].size(), 100 + first + s);
    for (std::size_t i = 0; i + 1 < sequences[s].size(); ++i) {
      d_logprob[std::size_t(p.sequences[s].first_row) + i] = -w[2 * i];
      d_entropy[std::size_t(p.sequences[s].first_row) + i] = 0.1f * w[2 * i + 1];
    }
  }
}

Outcome run(const ModelConfig& c, const Numerics& numerics, const Buffer& master, std::span<const Ids> sequences, const Setting& setting) {
  Context ctx(setting.threads, setting.isa);
  const auto w = make_weights(ctx, c, numerics.compute, master);
  const Packed all(sequences);
  Qwen model(c, numerics, setting.execution, all.batch().rows, kMaxPositions, true);
  Outcome out;
  out.scores = score(ctx, model, *w, all);
  GradientMemory g(*w);
  const std::vector<std::size_t> split = setting.split.empty() ? std::vector<std::size_t>{sequences.size()} : setting.split;
  std::size_t first = 0;
  for (std::size_t count : split) {
    const auto part = sequences.subspan(first, count);
    const Packed p(part);
    std::vector<float> d_logprob;
    std::vector<float> d_entropy;
    upstream(part, first, p, d_logprob, d_entropy);
    add_gradients(ctx, model, *w, p, d_logprob, d_entropy, g.views);
    first += count;
  }
  finish_gradients(ctx, w->parameters(), c, numerics, g.views);
  out.gradients = g.values();
  return out;
}

void expect_no_execution_setting_changes_a_bit(const ModelConfig& c, std::span<const int> lengths) {
  std::vector<Setting> settings = {{.execution = {.merged_matmuls = false}},
                                   {.execution = {.recompute = true}},
                                   {.execution = {.merged_matmuls = false, .recompute = true}, .threads = 2},
                                   {.threads = 3},
                                   {.threads = 2, .split = std::vector<std::size_t>(lengths.size(), 1)},
                                   {.split = {2, lengths.size() - 2}},
                                   {.execution = {.recompute = true}, .split = {lengths.size() - 1, 1}}};
  for (Isa isa : machine_isas()) settings.push_back({.isa = isa});
  const Buffer master = lively_parameters(c, 3);
  const std::vector<Ids> sequences = random_sequences(c, lengths, 7);
  for (const Numerics& numerics : all_numerics()) {
    SCOPED_TRACE(label(numerics, c.family));
    const Outcome want = run(c, numerics, master, sequences, {});
    for (std::size_t i = 0; i < settings.size(); ++i) {
      SCOPED_TRACE(i);
      const Outcome got = run(c, numerics, master, sequences, settings[i]);
      EXPECT_TRUE(same_bits(got.scores.logits, want.scores.logits));
      EXPECT_TRUE(same_bits(got.scores.logprob, want.scores.logprob));
      EXPECT_TRUE(same_bits(got.scores.entropy, want.scores.entropy));
      EXPECT_TRUE(same_bits(got.gradients, want.gradients));
    }
  }
}

TEST(Qwen, NoExecutionSettingChangesABit) {
  constexpr int kLengths[] = {9, 4, 17, 1, 6};
  for (Family family : kFamilies) expect_no_execution_setting_changes_a_bit(small_config(family, family != Family::llama), kLengths);
}

TEST(Qwen, NoExecutionSettingChangesABitInOddShapes) {
  constexpr int kLengths[] = {1, 2, 19, 1};
  for (Family family : kFamilies) expect_no_execution_setting_changes_a_bit(odd_config(family), kLengths);
}

/// Runs sequences through a cache in the given chunks of positions, all sequences of a chunk in one batch.
class Cached {
 public:
  Cached(const ModelConfig& c, const Numerics& n, const Weights& w, int threads)
      : ctx_(threads), weights_(w), model_(c, n, {}, 256, kMaxPositions, false), cache_(c, n.compute, 512) {}

  struct Sequence {
    Ids ids;
    std::int64_t prefix = 0;
    std::int64_t prefix_len = 0;
    std::int64_t own = 0;
    std::int64_t next = 0;  // positions done
  };
  Sequence start(const Ids& ids) { return {.ids = ids, .own = cache_.allocate(std::int64_t(ids.size()))}; }
  /// A sequence whose first positions are those of another, which has computed them.
  Sequence fork(const Sequence& from, std::int64_t shared, const Ids& ids) {
    return {
        .ids = ids, .prefix = from.own, .prefix_len = shared, .own = cache_.allocate(std::int64_t(ids.size()) - shared), .next = shared};
  }
  /// The next `count` positions of every sequence that has so many; returns their hidden rows, sequence by sequence.
  std::vector<std::vector<float>> advance(std::span<Sequence* const> sequences, std::int64_t count) {
    Ids tokens;
    Ids positions;
    std::vector<SequenceRows> rows;
    for (Sequence* s : sequences) {
      rows.push_back({.first_row = std::int64_t(tokens.size()),
                      .rows = count,
                      .first_pos = s->next,
                      .kv_prefix = s->prefix,
                      .prefix_len = s->prefix_len,
                      .kv_own = s->own});
      for (std::int64_t i = 0; i < count; ++i) {
        tokens.push_back(s->ids[std::size_t(s->next + i)]);
        positions.push_back(std::int32_t(s->next + i));
      }
      s->next += count;
    }
    const Batch batch{.rows = std::int64_t(tokens.size()),
                      .tokens = tokens.data(),
                      .positions = positions.data(),
                      .sequences = rows.data(),
                      .n_sequences = std::int64_t(rows.size())};
    const ConstMat hidden = model_.forward(ctx_, weights_, batch, &cache_, false);
    std::vector<std::vector<float>> out;
    for (const SequenceRows& r : rows) out.push_back(to_floats(hidden.slice_rows(r.first_row, r.rows)));
    return out;
  }

 private:
  Context ctx_;
  const Weights& weights_;
  Qwen model_;
  KvCache cache_;
};

void append(std::vector<float>& to, const std::vector<float>& more) { to.insert(to.end(), more.begin(), more.end()); }

TEST(Qwen, DecodingStepByStepEqualsPrefillEqualsTraining) {
  constexpr int kLengths[] = {23, 23, 23};
  constexpr std::int64_t kPrompt = 10;
  std::vector<ModelConfig> configs;
  for (Family family : kFamilies) configs.insert(configs.end(), {small_config(family), odd_config(family)});
  for (const ModelConfig& c : configs) {
    const Buffer master = lively_parameters(c, 4);
    std::vector<Ids> sequences = random_sequences(c, kLengths, 8);
    for (Ids& ids : sequences) std::copy_n(sequences[0].begin(), kPrompt, ids.begin());  // one prompt, three answers
    for (Numerics numerics : all_numerics()) {
      numerics.reductions = without_sequence_end(numerics.reductions);
      SCOPED_TRACE(label(numerics, c.family));
      Context ctx(2);
      const auto w = make_weights(ctx, c, numerics.compute, master);
      const Packed packed(sequences);
      Qwen model(c, numerics, {}, packed.batch().rows, kMaxPositions, true);
      const Batch batch = packed.batch();
      const std::vector<float> hidden = to_floats(model.forward(ctx, *w, batch, nullptr, true));
      std::vector<std::vector<float>> want;
      for (const SequenceRows& s : packed.sequences) {
        const auto first = hidden.begin() + s.first_row * c.hidden_size;
        want.emplace_back(first, first + s.rows * c.hidden_size);
      }

      Cached cached(c, numerics, *w, 1);
      Cached::Sequence whole = cached.start(sequences[0]);
      Cached::Sequence* const one[] = {&whole};
      EXPECT_TRUE(same_bits(cached.advance(one, 23)[0], want[0])) << "prefill at once";

      Cached::Sequence chunked = cached.start(sequences[1]);
      Cached::Sequence* const two[] = {&chunked};
      std::vector<float> got;
      for (std::int64_t n : {1, 7, 1, 1, 13}) append(got, cached.advance(two, n)[0]);
      EXPECT_TRUE(same_bits(got, want[1])) << "prefill in chunks";

      Cached::Sequence a = cached.fork(whole, kPrompt, sequences[0]);
      Cached::Sequence b = cached.fork(whole, kPrompt, sequences[1]);
      Cached::Sequence d = cached.fork(whole, kPrompt, sequences[2]);
      Cached::Sequence* const group[] = {&a, &b, &d};
      std::vector<std::vector<float>> answers(3);
      for (std::int64_t i = kPrompt; i < 23; ++i) {
        const auto step = cached.advance(group, 1);
        for (std::size_t s = 0; s < 3; ++s) append(answers[s], step[s]);
      }
      for (std::size_t s = 0; s < 3; ++s) {
        const std::vector<float> tail(want[s].begin() + kPrompt * c.hidden_size, want[s].end());
        EXPECT_TRUE(same_bits(answers[s], tail)) << "a group's decode with a shared prompt, sample " << s;
      }
    }
  }
}

// cases.md 7
TEST(Qwen, APackedSequenceNeverSeesItsNeighbours) {
  constexpr int kLengths[] = {7, 12, 5};
  const ModelConfig c = small_config(Family::qwen3);
  const std::vector<Ids> sequences = random_sequences(c, kLengths, 9);
  Context ctx(1);
  for (const Numerics& numerics : all_numerics()) {
    SCOPED_TRACE(numerics.preset);
    const auto w = make_weights(ctx, c, numerics.compute, lively_parameters(c, 5));
    Qwen model(c, numerics, {}, 64, kMaxPositions, false);
    const Packed packed(sequences);
    const Scores together = score(ctx, model, *w, packed);
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const Scores alone = score(ctx, model, *w, Packed(std::span(sequences).subspan(s, 1)));
      const auto first = together.logprob.begin() + packed.sequences[s].first_row;
      const auto n = std::ptrdiff_t(sequences[s].size());
      EXPECT_TRUE(same_bits({alone.logprob.begin(), alone.logprob.begin() + n}, {first, first + n}));
    }
  }
}

/// Every parameter's gradient against the slope of the loss along it.
void expect_finite_differences(const ModelConfig& c, const Numerics& numerics, std::span<const int> lengths) {
  const std::vector<Ids> sequences = random_sequences(c, lengths, 11);
  const Packed packed(sequences);
  std::vector<float> d_logprob;
  std::vector<float> d_entropy;
  upstream(sequences, 0, packed, d_logprob, d_entropy);
  Buffer master = lively_parameters(c, 6);
  Context ctx(1);
  Qwen model(c, numerics, {}, packed.batch().rows, kMaxPositions, true);
  const auto w = make_weights(ctx, c, numerics.compute, master);
  const auto loss = [&] {
    set_weights(ctx, *w, master);
    const Scores s = score(ctx, model, *w, packed);
    double sum = 0;
    for (std::size_t i = 0; i < s.logprob.size(); ++i) {
      if (d_logprob[i] != 0) sum += double(d_logprob[i]) * s.logprob[i] + double(d_entropy[i]) * s.entropy[i];
    }
    return sum;
  };
  GradientMemory g(*w);
  add_gradients(ctx, model, *w, packed, d_logprob, d_entropy, g.views);
  finish_gradients(ctx, w->parameters(), c, numerics, g.views);
  const std::vector<float> gradient = g.values();
  float* x = static_cast<float*>(master.data());
  for (const Parameter& p : w->parameters().all()) {
    SCOPED_TRACE(p.name);
    // Along the gradient the slope is its norm; two step sizes cancel the third-order error.
    double norm2 = 0;
    for (std::int64_t i = 0; i < p.size(); ++i) norm2 += double(gradient[std::size_t(p.offset + i)]) * gradient[std::size_t(p.offset + i)];
    ASSERT_GT(norm2, 0);
    const double norm = std::sqrt(norm2);
    const std::vector<float> saved(x + p.offset, x + p.offset + p.size());
    const auto at = [&](double step) {
      for (std::int64_t i = 0; i < p.size(); ++i)
        x[p.offset + i] = float(saved[std::size_t(i)] + step / norm * gradient[std::size_t(p.offset + i)]);
      return loss();
    };
    constexpr double kStep = 0.004;
    const double coarse = (at(2 * kStep) - at(-2 * kStep)) / (4 * kStep);
    const double fine = (at(kStep) - at(-kStep)) / (2 * kStep);
    std::copy(saved.begin(), saved.end(), x + p.offset);
    EXPECT_NEAR((4 * fine - coarse) / 3, norm, 5e-3 * norm + 2e-3);
  }
}

TEST(Qwen, GradientsMatchFiniteDifferences) {
  constexpr int kLengths[] = {6, 9};
  for (Family family : kFamilies) {
    ModelConfig c = small_config(family, family == Family::qwen3);
    if (family == Family::llama) c.qkv_bias = c.o_bias = c.mlp_bias = true;
    expect_finite_differences(c, preset("fp32"), kLengths);
  }
}

class PresetGradients : public testing::TestWithParam<std::string_view> {};

// With 20 mantissa bits every rounding of a preset, forward and backward, is still made, where and in the mode that the preset says, but
// is too small to hide what the gradient is of.
TEST_P(PresetGradients, MatchFiniteDifferencesWithFineRounding) {
  constexpr int kLengths[] = {6, 9};
  constexpr int kOddLengths[] = {1, 2, 19};
  Numerics numerics = preset(GetParam());
  if (numerics.compute == DType::bf16) numerics.compute = e8_dtype(20);
  numerics.reductions.attention_exp = AttentionExp::exact;  // PyTorch's fast one has steps: it is no derivative of itself
  for (Family family : kFamilies) {
    SCOPED_TRACE(name_of(family));
    ModelConfig c = small_config(family);
    c.layers = 2;
    expect_finite_differences(c, numerics, kLengths);
    SCOPED_TRACE("odd shapes");
    expect_finite_differences(odd_config(family), numerics, kOddLengths);
  }
}

INSTANTIATE_TEST_SUITE_P(All, PresetGradients, testing::ValuesIn(usable_presets()), [](const auto& p) { return std::string(p.param); });

TEST(Qwen, FrozenParametersGetNoGradientAndChangeNoOther) {
  constexpr int kLengths[] = {8, 5};
  const ModelConfig c = small_config(Family::qwen3, false);
  const Buffer master = lively_parameters(c, 3);
  const std::vector<Ids> sequences = random_sequences(c, kLengths, 7);
  const Packed p(sequences);
  std::vector<float> d_logprob;
  std::vector<float> d_entropy;
  upstream(sequences, 0, p, d_logprob, d_entropy);
  Context ctx(1);
  const Numerics numerics = preset("fused");
  const auto w = make_weights(ctx, c, numerics.compute, master);
  Qwen model(c, numerics, {}, p.batch().rows, kMaxPositions, true);
  GradientMemory all(*w);
  add_gradients(ctx, model, *w, p, d_logprob, d_entropy, all.views);
  const std::vector<float> want = all.values();
  const auto& parameters = w->parameters().all();
  const auto some = [](const Parameter& x) { return x.role == Role::k || x.role == Role::q_norm || x.role == Role::gate || x.layer == 0; };
  const auto lower = [](const Parameter& x) { return x.layer < 2 && x.role != Role::final_norm && x.role != Role::lm_head; };
  for (int which = 0; which < 2; ++which) {
    GradientMemory part(*w);
    for (const Parameter& x : parameters) part.views.frozen.push_back(char(which == 0 ? some(x) : lower(x)));
    add_gradients(ctx, model, *w, p, d_logprob, d_entropy, part.views);
    const std::vector<float> got = part.values();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      SCOPED_TRACE(parameters[i].name);
      const auto first = std::ptrdiff_t(parameters[i].offset);
      const auto last = first + std::ptrdiff_t(parameters[i].size());
      const std::vector<float> g(got.begin() + first, got.begin() + last);
      if (part.views.frozen[i] != 0) {
        EXPECT_EQ(g, std::vector<float>(g.size(), 0.0f));
      } else {
        EXPECT_TRUE(same_bits(g, {want.begin() + first, want.begin() + last}));
      }
    }
  }
}

TEST(Qwen, PadRowsIgnoreWhatAnEarlierBatchLeft) {
  constexpr int kLong[] = {20, 20};
  constexpr int kOdd[] = {9, 11, 3};
  const ModelConfig c = small_config(Family::qwen2);
  Context ctx(1);
  for (const Numerics& numerics : all_numerics()) {
    SCOPED_TRACE(numerics.preset);
    const auto w = make_weights(ctx, c, numerics.compute, lively_parameters(c, 3));
    Buffer broken_master = lively_parameters(c, 3);
    static_cast<float*>(broken_master.data())[0] = std::numeric_limits<float>::quiet_NaN();
    for (const Parameter& p : w->parameters().all()) {
      if (p.role == Role::input_norm) static_cast<float*>(broken_master.data())[p.offset] = std::numeric_limits<float>::quiet_NaN();
    }
    const auto broken = make_weights(ctx, c, numerics.compute, broken_master);
    const Packed p(random_sequences(c, kOdd, 7));
    const std::vector<float> d(p.tokens.size(), 1.0f);
    const auto gradients = [&](bool dirty) {
      Qwen model(c, numerics, {}, 64, kMaxPositions, true);
      GradientMemory g(*w);
      if (dirty) {
        GradientMemory waste(*w);
        const Packed full(random_sequences(c, kLong, 8));
        add_gradients(ctx, model, *broken, full, std::vector<float>(full.tokens.size(), 1.0f), {}, waste.views);
      }
      add_gradients(ctx, model, *w, p, d, {}, g.views);
      return g.values();
    };
    const std::vector<float> clean = gradients(false);
    EXPECT_TRUE(same_bits(gradients(true), clean));
    for (float x : clean) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST(Qwen, MemoryIsKnownBeforehand) {
  const ModelConfig c = small_config(Family::qwen3);
  for (const Numerics& numerics : all_numerics()) {
    std::size_t last = 0;
    for (bool training : {false, true}) {
      const Qwen model(c, numerics, {}, 100, kMaxPositions, training);
      EXPECT_EQ(model.memory_bytes(), Qwen::memory_bytes(c, numerics, {}, 100, kMaxPositions, training));
      EXPECT_GT(model.memory_bytes(), last);
      last = model.memory_bytes();
    }
    EXPECT_LT(Qwen::memory_bytes(c, numerics, {.recompute = true}, 100, kMaxPositions, true), last);
    const Weights w(c, numerics.compute);
    EXPECT_EQ(w.memory_bytes(), Weights::memory_bytes(c, numerics.compute));
  }
}

TEST(Qwen, WhatItCannotDoIsRefused) {
  const ModelConfig c = small_config(Family::qwen3);
  Numerics n = preset("fused");
  n.base.set(Site::swiglu_out, false);
  EXPECT_THROW(Qwen(c, n, {}, 8, 8, false), UsageError);
  Context ctx(1);
  n = preset("fused");
  const auto w = make_weights(ctx, c, DType::bf16, lively_parameters(c, 1));
  Qwen model(c, n, {}, 8, 8, true);
  constexpr int kTooLong[] = {9};
  constexpr int kFits[] = {8};
  EXPECT_THROW(score(ctx, model, *w, Packed(random_sequences(c, kTooLong, 1))), Error);
  const Packed p(random_sequences(c, kFits, 1));
  score(ctx, model, *w, p);
  GradientMemory g(*w);
  const Buffer d(8 * 48 * 2);
  EXPECT_THROW(model.backward(ctx, *w, p.batch(), make_mat(d.data(), 8, 48, DType::bf16), g.views), Error);
  const auto other = make_weights(ctx, c, DType::f32, lively_parameters(c, 1));
  EXPECT_THROW(score(ctx, model, *other, p), Error);
}

}  // namespace
}  // namespace plumb
