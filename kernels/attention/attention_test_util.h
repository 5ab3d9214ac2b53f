// Test only: random attention problems, the numerics of the presets by hand, and storage that is BF16 or FP32.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/core/rng.h"

namespace plumb::attention_test {

/// A dense matrix of either dtype.
struct Stored {
  DType dtype = DType::bf16;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<unsigned char> bytes;

  Stored(std::int64_t r, std::int64_t c, DType t) : dtype(t), rows(r), cols(c), bytes(std::size_t(r * c) * bytes_of(t)) {}
  Mat mat() { return make_mat(bytes.data(), rows, cols, dtype); }
  ConstMat view() const { return make_const_mat(bytes.data(), rows, cols, dtype); }
  float get(std::int64_t r, std::int64_t c) const {
    if (dtype == DType::bf16) return to_float(view().row<BF16>(r)[c]);
    return view().row<float>(r)[c];
  }
  void set(std::int64_t r, std::int64_t c, float x) {
    if (dtype == DType::bf16) {
      mat().row<BF16>(r)[c] = to_bf16(x);
    } else {
      mat().row<float>(r)[c] = x;
    }
  }
};

inline Stored random_stored(std::int64_t rows, std::int64_t cols, DType dtype, std::uint64_t seed, double scale = 1.0) {
  Stored m(rows, cols, dtype);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j) m.set(i, j, float(scale * random_normal({.seed = seed}, std::uint64_t(i * cols + j))));
  return m;
}

struct Case {
  std::string name;
  DType dtype = DType::bf16;
  Numerics numerics;
  Sites sites;
  BackwardMode mode = BackwardMode::fused;
};

inline Case make_case(std::string name, DType dtype, Softmax softmax, ScaleAt scale_at, std::vector<Site> rounded, BackwardMode mode) {
  Case c{.name = std::move(name), .dtype = dtype, .mode = mode};
  for (Site s : rounded) c.sites.set(s, true);
  c.numerics.compute = dtype;
  c.numerics.softmax = softmax;
  c.numerics.scale_at = scale_at;
  return c;
}

inline Case with(Case c, const Reductions& r) {
  c.numerics.reductions = r;
  return c;
}

/// The attention of every shipped preset, and some unlike any of them.
inline std::vector<Case> all_cases() {
  const Site scores = Site::attn_scores;
  const Site scaled = Site::attn_scaled;
  const Site probs = Site::attn_probs;
  const Site out = Site::attn_out;
  const Reductions vllm{.attention_qk = MatmulOrder::natural, .attention_pv = MatmulOrder::natural, .attention_exp = AttentionExp::u20};
  const Reductions sdpa{.attention_qk = MatmulOrder::natural,
                        .attention_pv = MatmulOrder::natural,
                        .attention_sum = AttentionSum::lanes16_tail,
                        .attention_exp = AttentionExp::torch_fast};
  const Reductions mixed{.attention_qk = MatmulOrder::natural, .attention_exp = AttentionExp::torch_fast_all, .attention_kv_split = 3};
  const Reductions split{.attention_pv = MatmulOrder::natural, .attention_kv_split = 2};
  return {
      make_case("fused", DType::bf16, Softmax::flash, ScaleAt::scores, {out}, BackwardMode::fused),
      make_case("hf_eager", DType::bf16, Softmax::normalised, ScaleAt::scores, {scores, scaled, probs, out}, BackwardMode::mirror),
      make_case("vllm_cpu", DType::bf16, Softmax::flash, ScaleAt::query, {out}, BackwardMode::fused),
      make_case("flash_bf16_probs", DType::bf16, Softmax::flash, ScaleAt::scores, {scaled, probs, out}, BackwardMode::mirror),
      make_case("fp32", DType::f32, Softmax::flash, ScaleAt::scores, {}, BackwardMode::fused),
      make_case("fp32_normalised", DType::f32, Softmax::normalised, ScaleAt::query, {}, BackwardMode::mirror),
      with(make_case("vllm_cpu_orders", DType::bf16, Softmax::flash, ScaleAt::query, {out}, BackwardMode::fused), vllm),
      with(make_case("hf_sdpa", DType::bf16, Softmax::flash, ScaleAt::scores, {probs, out}, BackwardMode::mirror), sdpa),
      with(make_case("split_bf16", DType::bf16, Softmax::flash, ScaleAt::scores, {probs, out}, BackwardMode::fused), mixed),
      with(make_case("split_fp32", DType::f32, Softmax::flash, ScaleAt::scores, {}, BackwardMode::mirror), split),
      with(make_case("vllm_fp32", DType::f32, Softmax::flash, ScaleAt::query, {}, BackwardMode::fused), vllm),
      with(make_case("sdpa_fp32", DType::f32, Softmax::flash, ScaleAt::scores, {}, BackwardMode::fused), sdpa),
      with(make_case("normalised_orders", DType::bf16, Softmax::normalised, ScaleAt::scores, {scores, probs, out}, BackwardMode::mirror),
           sdpa),
  };
}

struct Shape {
  int heads = 1;
  int kv_heads = 1;
  int head_dim = 16;
};

inline KvRows whole(const Stored& m, std::int64_t first_row) { return {.own = m.view().row_bytes(first_row), .stride = m.cols}; }

/// Sequences one after another from row 0, each from position 0 with its keys beside its queries: the training layout.
inline std::vector<AttentionSequence> packed(const std::vector<std::int64_t>& lengths, const Stored& k, const Stored& v) {
  std::vector<AttentionSequence> out;
  std::int64_t row = 0;
  for (std::int64_t n : lengths) {
    out.push_back({.first_row = row, .rows = n, .k = whole(k, row), .v = whole(v, row)});
    row += n;
  }
  return out;
}

inline AttentionForward forward_args(const Stored& q, const std::vector<AttentionSequence>& sequences, const Shape& s, Stored& out) {
  return {.q = q.view(),
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .head_dim = s.head_dim,
          .kv_dtype = q.dtype,
          .sequences = sequences.data(),
          .n_sequences = std::int64_t(sequences.size()),
          .out = out.mat()};
}

inline float rounded_to(DType t, float x) { return t == DType::bf16 ? round_bf16(x) : x; }

inline std::vector<float> row_of(const Stored& m, std::int64_t row, std::int64_t first, std::int64_t n) {
  std::vector<float> out;
  for (std::int64_t d = 0; d < n; ++d) out.push_back(m.get(row, first + d));
  return out;
}

}  // namespace plumb::attention_test
