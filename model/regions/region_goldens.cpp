#include "model/regions/region_goldens.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/core/error.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/rope/rope.h"
#include "kernels/swiglu/swiglu.h"
#include "model/safetensors/safetensors.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;

enum class Region { norm, swiglu, rope };

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

Region region_of(const SafetensorsFile& file, const fs::path& path) {
  if (file.find("in.h") != nullptr && file.find("in.r") != nullptr) return Region::norm;
  if (file.find("in.gate") != nullptr) return Region::swiglu;
  if (file.find("in.q") != nullptr) return Region::rope;
  throw Error(fmt::format("{}: holds none of the regions (in.h and in.r, in.gate, or in.q)", path.string()));
}

/// As conformance/regions has them: 32 positions from 0, then far ones. Files with a table of their own do not hold them.
std::vector<std::int32_t> default_positions(std::int64_t n) {
  const std::vector<std::int32_t> far = {127, 1000, 2047, 4095, 8191, 16383, 32767, 40959};
  std::vector<std::int32_t> p;
  for (std::int32_t i = 0; i + std::int64_t(far.size()) < n; ++i) p.push_back(i);
  p.insert(p.end(), far.begin(), far.end());
  return p;
}

class RegionCheck {
 public:
  RegionCheck(Context& ctx, const fs::path& path, const RegionCase& c)
      : ctx_(ctx), path_(path), file_(path), case_(c), region_(region_of(file_, path)) {}

  std::vector<RegionResult> run() {
    switch (region_) {
      case Region::norm: norm(); break;
      case Region::swiglu: swiglu(); break;
      case Region::rope: rope(); break;
    }
    return std::move(results_);
  }

 private:
  Tensor get(const std::string& name) const {
    const StoredTensor& t = file_.get(name);
    if (t.dtype != StoredType::bf16) throw Error(fmt::format("{}: {} is {}; BF16 is right", path_.string(), name, name_of(t.dtype)));
    return Tensor(t);
  }

  void compare(const std::string& output, const Tensor& got) {
    const Tensor want = get(case_.mode + "." + output);
    require(want.values.size() == got.values.size(), fmt::format("{}: {}.{} has another size", path_.string(), case_.mode, output));
    RegionResult r{.output = output, .elements = std::int64_t(want.values.size())};
    for (std::size_t i = 0; i < want.values.size(); ++i) r.differ += want.values[i].bits != got.values[i].bits;
    results_.push_back(r);
  }

  void norm() {
    const Tensor h = get("in.h"), r = get("in.r"), w = get("in.w"), d_out = get("up.0"), d_stream = get("up.1");
    Tensor stream(h.rows, h.cols), out(h.rows, h.cols), d_sum(h.rows, h.cols);
    std::vector<float> sum(h.values.size()), rstd(std::size_t(h.rows)), d_weight(std::size_t(h.cols));
    const Mat sum_mat = make_mat(sum.data(), h.rows, h.cols, DType::f32);
    const Sites sites = case_.numerics.sites(1, 3, Place::input_norm);
    const RowSumOrder order = case_.numerics.reductions.row_sum;
    rmsnorm_forward(ctx_, {.delta = h, .stream_in = r, .weight = w, .stream_out = stream, .sum = sum_mat, .out = out, .rstd = rstd.data()},
                    sites, order);
    rmsnorm_backward(ctx_,
                     {.d_out = d_out,
                      .d_stream = d_stream,
                      .sum = sum_mat,
                      .weight = w,
                      .rstd = rstd.data(),
                      .d_sum = d_sum,
                      .d_weight = d_weight.data()},
                     sites, case_.numerics.backward.norm, order);
    compare("out.0", out);
    compare("out.1", stream);
    compare("grad.h", d_sum);
    compare("grad.r", d_sum);
    compare("grad.w", rounded(d_weight));
  }

  void swiglu() {
    const Tensor gate = get("in.gate"), up = get("in.up"), d = get("up.0");
    Tensor out(gate.rows, gate.cols), d_gate(gate.rows, gate.cols), d_up(gate.rows, gate.cols);
    const Sites sites = case_.numerics.sites(1, 3, Place::block);
    swiglu_forward(ctx_, {.gate = gate, .up = up, .out = out}, sites);
    swiglu_backward(ctx_, {.d_out = d, .gate = gate, .up = up, .d_gate = d_gate, .d_up = d_up}, sites, case_.numerics.backward.swiglu);
    compare("out.0", out);
    compare("grad.gate", d_gate);
    compare("grad.up", d_up);
  }

  void rope() {
    const auto& metadata = file_.metadata();
    const auto head_dim = metadata.find("head_dim");
    if (head_dim == metadata.end()) throw Error(fmt::format("{}: metadata has no head_dim", path_.string()));
    const int d = std::stoi(head_dim->second);
    const double theta = metadata.contains("theta") ? std::stod(metadata.at("theta")) : d == 64 ? 1e4 : 1e6;
    std::vector<std::int32_t> positions;
    if (file_.find("in.pos") != nullptr) {
      for (std::int64_t p : read_i64(file_.get("in.pos"))) positions.push_back(std::int32_t(p));
    } else {
      positions = default_positions(get("in.q").rows);
    }
    const RopeTable table(d, theta, *std::max_element(positions.begin(), positions.end()) + 1);
    rope("q", "0", table, positions);
    rope("k", "1", table, positions);
  }

  void rope(const std::string& which, const std::string& index, const RopeTable& table, const std::vector<std::int32_t>& positions) {
    const Tensor in = get("in." + which), d_out = get("up." + index);
    const bool normed = file_.find("in.w" + which) != nullptr;
    const Tensor weight = normed ? get("in.w" + which) : Tensor(0, 0);
    const ConstMat norm_weight = normed ? ConstMat(weight) : ConstMat();
    const int heads = int(in.cols) / table.head_dim();
    Tensor out(in.rows, in.cols), d_in(in.rows, in.cols);
    std::vector<float> rstd(std::size_t(in.rows * heads)), d_weight(std::size_t(table.head_dim()));
    const Sites sites = case_.numerics.sites(1, 3, Place::block);
    const RowSumOrder order = case_.numerics.reductions.row_sum;
    rope_forward(ctx_,
                 {.in = in,
                  .heads = heads,
                  .norm_weight = norm_weight,
                  .table = &table,
                  .positions = positions.data(),
                  .out = out,
                  .rstd = normed ? rstd.data() : nullptr},
                 sites, order);
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
                  sites, case_.numerics.backward.rope, case_.numerics.backward.qk_norm, order);
    compare("out." + index, out);
    compare("grad." + which, d_in);
    if (normed) compare("grad.w" + which, rounded(d_weight));
  }

  Context& ctx_;
  const fs::path& path_;
  SafetensorsFile file_;
  const RegionCase& case_;
  Region region_;
  std::vector<RegionResult> results_;
};

}  // namespace

std::vector<RegionCase> region_cases(const fs::path& path) {
  const SafetensorsFile file(path);
  const Region region = region_of(file, path);
  const bool serving = path.filename().string().starts_with("serving");
  // The serving formulas run eagerly round as vLLM's kernels do: RoPE as the older ones, the norm as the CPU's.
  const std::string eager = !serving ? "hf_eager" : region == Region::rope ? "vllm_cuda_legacy" : "vllm_cpu_eager";
  const std::string compiled = serving ? "vllm_compiled" : "hf_compiled";
  std::vector<RegionCase> cases;
  for (const auto& [mode, name] : {std::pair{"eager", eager}, std::pair{"compiled", compiled}}) {
    const auto names = file.names();
    if (std::none_of(names.begin(), names.end(), [&](const auto& n) { return n.starts_with(std::string(mode) + ".out."); })) continue;
    RegionCase c{.mode = mode, .preset = name, .numerics = preset(name)};
    // PyTorch's autograd gives serving formulas the backward of their mode, which a serving stack itself does not have.
    const BackwardMode backward = c.mode == "eager" ? BackwardMode::mirror : BackwardMode::fused;
    c.numerics.backward.norm = c.numerics.backward.qk_norm = c.numerics.backward.rope = c.numerics.backward.swiglu = backward;
    if (c.mode == "eager") c.numerics.reductions.row_sum = preset("hf_eager").reductions.row_sum;  // PyTorch ran it
    if (!serving && c.mode == "compiled" && file.find("in.const_cos") != nullptr) {
      c.preset += ", table given";
      c.numerics.base.set(Site::rope_cos_sin_table, true);
    }
    cases.push_back(std::move(c));
  }
  if (cases.empty()) throw Error(fmt::format("{}: holds no outputs (eager.out.* or compiled.out.*)", path.string()));
  return cases;
}

std::vector<RegionResult> check_region(Context& ctx, const fs::path& file, const RegionCase& c) { return RegionCheck(ctx, file, c).run(); }

std::vector<fs::path> region_files(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  if (error) throw Error(fmt::format("{}: {}", folder.string(), error.message()));
  if (files.empty()) throw Error(fmt::format("{}: holds no .safetensors files", folder.string()));
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace plumb
