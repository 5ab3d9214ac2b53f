// The three regions against golden values of PyTorch: transformers' eager code, what Inductor makes of it, and a serving
// engine's formulas, forward and backward, bit for bit. Needs PLUMB_SHARED.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/numerics/numerics.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/rope/rope.h"
#include "kernels/swiglu/swiglu.h"
#include "model/safetensors/safetensors.h"

namespace plumb {
namespace {

/// A preset with some of its sites given another value.
Numerics with(const char* name, std::initializer_list<Site> sites, bool rounded) {
  Numerics n = preset(name);
  for (Site x : sites) n.base.set(x, rounded);
  return n;
}

/// A BF16 tensor as rows; (1, heads, tokens, d) becomes (tokens, heads * d).
struct Tensor {
  Tensor(std::int64_t r, std::int64_t c) : rows(r), cols(c), values(std::size_t(r * c)) {}
  explicit Tensor(const StoredTensor& t) : Tensor(rows_of(t), t.elements() / rows_of(t)) {
    if (t.shape.size() != 4) {
      std::memcpy(values.data(), t.data.data(), t.data.size());
      return;
    }
    const std::int64_t d = t.shape[3];
    for (std::int64_t h = 0; h < t.shape[1]; ++h) {
      for (std::int64_t n = 0; n < rows; ++n) {
        std::memcpy(&values[std::size_t(n * cols + h * d)], t.data.data() + 2 * (h * rows + n) * d, std::size_t(2 * d));
      }
    }
  }
  static std::int64_t rows_of(const StoredTensor& t) { return t.shape.size() == 1 ? 1 : t.shape[t.shape.size() - 2]; }
  operator Mat() { return make_mat(values.data(), rows, cols, DType::bf16); }                   // NOLINT(google-explicit-constructor)
  operator ConstMat() const { return make_const_mat(values.data(), rows, cols, DType::bf16); }  // NOLINT(google-explicit-constructor)
  std::int64_t rows;
  std::int64_t cols;
  std::vector<BF16> values;
};

Tensor rounded(const std::vector<float>& x) {
  Tensor t(1, std::int64_t(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) t.values[i] = to_bf16(x[i]);
  return t;
}

class RegionGoldens : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("PLUMB_SHARED") == nullptr) GTEST_SKIP() << "PLUMB_SHARED is not set: the golden values of the regions are not there";
  }
  void open(const std::string& name) {
    name_ = name;
    file_ = std::make_unique<SafetensorsFile>(std::string(std::getenv("PLUMB_SHARED")) + "/conformance/regions/" + name + ".safetensors");
  }
  Tensor get(const std::string& name) const { return Tensor(file_->get(name)); }
  std::vector<std::int64_t> get_integers(const std::string& name) const { return read_i64(file_->get(name)); }
  std::vector<float> get_floats(const std::string& name) const { return read_f32(file_->get(name)); }

  /// Every bit, with the orders of the stacks' sums.
  void compare(const std::string& golden, const Tensor& got) {
    const Tensor want = get(golden);
    ASSERT_EQ(want.values.size(), got.values.size());
    std::size_t differ = 0;
    for (std::size_t i = 0; i < want.values.size(); ++i) differ += want.values[i].bits != got.values[i].bits;
    EXPECT_EQ(differ, 0u) << "of " << want.values.size() << ": " << name_ << " " << golden;
    differ_ += double(differ);
    compared_ += double(want.values.size());
  }
  void TearDown() override {
    if (compared_ > 0) std::printf("%.5f %% equal (%.0f of %.0f differ)\n", 100 * (1 - differ_ / compared_), differ_, compared_);
  }

  void norm(const std::string& mode, const Numerics& numerics);
  void rope(const std::string& mode, const std::string& which, const RopeTable& table, const std::vector<std::int32_t>& positions,
            const Numerics& numerics);
  void rope_pair(const std::string& mode, const Numerics& numerics);

  Context ctx_{2};
  double differ_ = 0;
  double compared_ = 0;
  std::string name_;
  std::unique_ptr<SafetensorsFile> file_;
};

void RegionGoldens::norm(const std::string& mode, const Numerics& numerics) {
  const RowSumOrder order = numerics.reductions.row_sum;
  const Tensor h = get("in.h");
  const Tensor r = get("in.r");
  const Tensor w = get("in.w");
  Tensor stream(h.rows, h.cols);
  Tensor out(h.rows, h.cols);
  Tensor d_sum(h.rows, h.cols);
  std::vector<float> sum(h.values.size());
  std::vector<float> rstd(std::size_t(h.rows));
  std::vector<float> d_weight(std::size_t(h.cols));
  const Mat sum_mat = make_mat(sum.data(), h.rows, h.cols, DType::f32);
  rmsnorm_forward(ctx_, {.delta = h, .stream_in = r, .weight = w, .stream_out = stream, .sum = sum_mat, .out = out, .rstd = rstd.data()},
                  numerics.base, order);
  compare(mode + ".out.0", out);
  compare(mode + ".out.1", stream);
  const Tensor d_out = get("up.0");
  const Tensor d_stream = get("up.1");
  rmsnorm_backward(
      ctx_,
      {.d_out = d_out, .d_stream = d_stream, .sum = sum_mat, .weight = w, .rstd = rstd.data(), .d_sum = d_sum, .d_weight = d_weight.data()},
      numerics.base, numerics.backward.norm, order);
  compare(mode + ".grad.h", d_sum);
  compare(mode + ".grad.r", d_sum);
  compare(mode + ".grad.w", rounded(d_weight));
}

// `serving`: vLLM's formula run eagerly, and compiled by Inductor.
TEST_F(RegionGoldens, ResidualRmsNorm) {
  for (const char* d : {"48", "896", "4096"}) {
    open(std::string("resid_norm_d") + d);
    norm("eager", preset("hf_eager"));
    norm("compiled", preset("hf_compiled"));
    open(std::string("serving_resid_norm_d") + d);
    norm("eager", with("hf_eager", {Site::resid_sum_to_var, Site::resid_sum_to_scale}, false));
    norm("compiled", preset("vllm_compiled"));
  }
}

TEST_F(RegionGoldens, Swiglu) {
  open("swiglu");
  const Tensor gate = get("in.gate");
  const Tensor up = get("in.up");
  const Tensor d = get("up.0");
  for (const std::string mode : {"eager", "compiled"}) {
    const Numerics numerics = preset(mode == "eager" ? "hf_eager" : "hf_compiled");
    Tensor out(gate.rows, gate.cols);
    Tensor d_gate(gate.rows, gate.cols);
    Tensor d_up(gate.rows, gate.cols);
    swiglu_forward(ctx_, {.gate = gate, .up = up, .out = out}, numerics.base);
    swiglu_backward(ctx_, {.d_out = d, .gate = gate, .up = up, .d_gate = d_gate, .d_up = d_up}, numerics.base, numerics.backward.swiglu);
    compare(mode + ".out.0", out);
    compare(mode + ".grad.gate", d_gate);
    compare(mode + ".grad.up", d_up);
  }
}

const RopeTable& table_of(int head_dim) {
  static const RopeTable small(64, 1e4, 40960);
  static const RopeTable large(128, 1e6, 40960);
  return head_dim == 64 ? small : large;
}

/// which: "q" or "k".
void RegionGoldens::rope(const std::string& mode, const std::string& which, const RopeTable& table,
                         const std::vector<std::int32_t>& positions, const Numerics& numerics) {
  const std::string index = which == "q" ? "0" : "1";
  const Tensor in = get("in." + which);
  const bool normed = file_->find("in.w" + which) != nullptr;
  const Tensor weight = normed ? get("in.w" + which) : Tensor(0, 0);
  const ConstMat norm_weight = normed ? ConstMat(weight) : ConstMat();
  const int heads = int(in.cols) / table.head_dim();
  Tensor out(in.rows, in.cols);
  Tensor d_in(in.rows, in.cols);
  std::vector<float> rstd(std::size_t(in.rows * heads));
  std::vector<float> d_weight(std::size_t(table.head_dim()));
  rope_forward(ctx_,
               {.in = in,
                .heads = heads,
                .norm_weight = norm_weight,
                .table = &table,
                .positions = positions.data(),
                .out = out,
                .rstd = normed ? rstd.data() : nullptr},
               numerics.base, numerics.reductions.row_sum);
  compare(mode + ".out." + index, out);
  const Tensor d_out = get("up." + index);
  rope_backward(ctx_,
                {.d_out = d_out,
                 .in = in,
                 .heads = heads,
                 .norm_weight = norm_weight,
                 .rstd = rstd.data(),
                 .table = &table,
                 .positions = positions.data(),
                 .d_in = d_in,
                 .d_norm_weight = normed ? d_weight.data() : nullptr},
                numerics.base, numerics.backward.rope, numerics.backward.qk_norm, numerics.reductions.row_sum);
  compare(mode + ".grad." + which, d_in);
  if (normed) compare(mode + ".grad.w" + which, rounded(d_weight));
}

/// The positions of make.py; files with a table of their own do not hold them.
std::vector<std::int32_t> default_positions() {
  std::vector<std::int32_t> p;
  for (int i = 0; i < 32; ++i) p.push_back(i);
  for (int x : {127, 1000, 2047, 4095, 8191, 16383, 32767, 40959}) p.push_back(x);
  return p;
}

void RegionGoldens::rope_pair(const std::string& mode, const Numerics& numerics) {
  std::vector<std::int32_t> positions = default_positions();
  if (file_->find("in.pos") != nullptr) {
    const auto stored = get_integers("in.pos");
    positions.assign(stored.begin(), stored.end());
  }
  const RopeTable& table = table_of(std::stoi(file_->metadata().at("head_dim")));
  for (const char* which : {"q", "k"}) rope(mode, which, table, positions, numerics);
}

TEST_F(RegionGoldens, RopeWithAndWithoutQkNorm) {
  for (const std::string d : {"64", "128"}) {
    for (const std::string region : {"rope", "qknorm_rope"}) {
      open(region + "_d" + d);
      rope_pair("eager", preset("hf_eager"));
      rope_pair("compiled", preset("hf_compiled"));
      open(region + "_table_in_d" + d);  // the table is an input: a BF16 tensor
      rope_pair("eager", preset("hf_eager"));
      rope_pair("compiled", with("hf_compiled", {Site::rope_cos_sin_table}, true));
    }
    open("serving_qknorm_rope_d" + d);
    rope_pair("eager", preset("hf_eager"));
    rope_pair("compiled", preset("vllm_compiled"));
  }
}

// PyTorch's pow, cos and sin are not correctly rounded, ours are: a few FP32 entries differ in their last bits, the BF16
// tables agree in every element.
TEST_F(RegionGoldens, RopeTables) {
  for (int d : {64, 128}) {
    open("rope_d" + std::to_string(d));
    const std::size_t half = std::size_t(d / 2);
    const RopeTable& table = table_of(d);
    const auto positions = default_positions();
    const auto frequencies = get_floats("inv_freq");
    std::vector<double> distance(half);
    std::size_t other_frequencies = 0;
    for (std::size_t j = 0; j < half; ++j) {
      distance[j] = std::abs(double(RopeTable::inverse_frequency(d, d == 64 ? 1e4 : 1e6, int(j))) - frequencies[j]);
      other_frequencies += distance[j] != 0;
      EXPECT_LE(distance[j], 0x1p-23 * frequencies[j]) << d << " " << j;
    }
    std::size_t differ[2] = {};
    for (const bool round : {false, true}) {
      const std::string suffix = round ? "_bf16" : "_f32";
      const auto cos = get_floats("table.cos" + suffix);
      const auto sin = get_floats("table.sin" + suffix);
      for (std::size_t i = 0; i < cos.size(); ++i) {
        const std::int32_t p = positions[i / half];
        const std::size_t j = i % half;
        differ[round] += std::size_t(table.cos(p, round)[j] != cos[i]) + std::size_t(table.sin(p, round)[j] != sin[i]);
        const double tolerance = (round ? 0x1p-8 : 0x1p-23) + 2 * p * distance[j];
        EXPECT_NEAR(table.cos(p, round)[j], cos[i], tolerance) << p << " " << j;
        EXPECT_NEAR(table.sin(p, round)[j], sin[i], tolerance) << p << " " << j;
      }
    }
    std::printf("rope_d%d: %zu of %zu inverse frequencies differ; of %zu table entries %zu differ in FP32, %zu in BF16\n", d,
                other_frequencies, half, std::size_t(40 * d), differ[0], differ[1]);
    EXPECT_EQ(differ[1], 0u);
  }
}

}  // namespace
}  // namespace plumb
