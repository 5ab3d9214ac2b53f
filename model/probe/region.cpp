#include "model/probe/region.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "kernels/core/error.h"
#include "kernels/core/nearest.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/swiglu/swiglu.h"

namespace plumb {
namespace {

bool is_rope(Region region) { return region == Region::rope || region == Region::qk_norm_rope; }

const RegionTensor* find(const RegionInputs& in, std::string_view name) {
  const auto at = in.tensors.find(name);
  return at == in.tensors.end() ? nullptr : &at->second;
}

const RegionTensor& get(const RegionInputs& in, std::string_view name) {
  const RegionTensor* t = find(in, name);
  if (t == nullptr) throw Error(fmt::format("{}: the input {} is missing", enum_name(in.region), name));
  return *t;
}

void check_shape(const RegionInputs& in, std::string_view name, std::int64_t rows, std::int64_t cols) {
  const RegionTensor& t = get(in, name);
  if (t.rows() == rows && t.cols() == cols) return;
  throw Error(fmt::format("{}: {} is ({}, {}); ({}, {}) is right", enum_name(in.region), name, t.rows(), t.cols(), rows, cols));
}

void check_like(const RegionInputs& in, std::string_view name, const RegionTensor& like) {
  check_shape(in, name, like.rows(), like.cols());
}

void check_heads(const RegionInputs& in, const std::string& which, const std::string& up) {
  const RegionTensor& t = get(in, which);
  if (t.cols() % in.head_dim != 0)
    throw Error(fmt::format("{}: {} has {} columns, no multiple of head_dim {}", enum_name(in.region), which, t.cols(), in.head_dim));
  check_shape(in, which, in.table.positions(), t.cols());
  if (in.region == Region::qk_norm_rope) check_shape(in, "w" + which, 1, in.head_dim);
  if (find(in, up) != nullptr) check_like(in, up, t);
}

/// The outputs of one run: made in the dtype that is wanted, or left out.
class Outputs {
 public:
  explicit Outputs(const RegionWanted& wanted) : wanted_(wanted) {}
  bool wants(std::string_view name) const { return wanted_.contains(name); }
  DType dtype(std::string_view name) const { return wanted_.find(name)->second; }
  /// An empty Mat when it is not wanted.
  Mat make(const std::string& name, std::int64_t rows, std::int64_t cols) {
    if (!wants(name)) return {};
    return (made_[name] = RegionTensor(rows, cols, dtype(name))).mat();
  }
  /// A finished tensor, in FP32 or in the dtype that is wanted.
  void put(const std::string& name, RegionTensor values) {
    if (!wants(name)) return;
    RegionTensor& t = made_[name];
    if (values.dtype() == dtype(name)) {
      t = std::move(values);
      return;
    }
    t = RegionTensor(values.rows(), values.cols(), dtype(name));
    for (std::int64_t i = 0; i < t.elements(); ++i) t.set(i, values.at(i));
  }
  RegionTensors take() {
    for (const auto& [name, dtype] : wanted_)
      if (!made_.contains(name)) throw Error(fmt::format("these inputs give no {}", name));
    return std::move(made_);
  }

 private:
  const RegionWanted& wanted_;
  RegionTensors made_;
};

float* floats(RegionTensor& t) { return static_cast<float*>(t.mat().data); }

void run_swiglu(Context& ctx, const RegionInputs& in, const RegionNumerics& n, Outputs& outputs) {
  const RegionTensor& gate = get(in, "gate");
  const RegionTensor& up = get(in, "up");
  if (const Mat out = outputs.make("out.0", gate.rows(), gate.cols()))
    swiglu_forward(ctx, {.gate = gate.mat(), .up = up.mat(), .out = out}, n.sites);
  const RegionTensor* d_out = find(in, "up.0");
  if (d_out == nullptr || !(outputs.wants("grad.gate") || outputs.wants("grad.up"))) return;
  RegionTensor d_gate(gate.rows(), gate.cols(), DType::f32), d_up(gate.rows(), gate.cols(), DType::f32);
  swiglu_backward(ctx, {.d_out = d_out->mat(), .gate = gate.mat(), .up = up.mat(), .d_gate = d_gate.mat(), .d_up = d_up.mat()}, n.sites,
                  n.backward);
  outputs.put("grad.gate", d_gate);
  outputs.put("grad.up", d_up);
}

void run_norm(Context& ctx, const RegionInputs& in, const RegionNumerics& n, Outputs& outputs) {
  const RegionTensor& h = get(in, "h");
  const RegionTensor& r = get(in, "r");
  const RegionTensor& w = get(in, "w");
  const std::int64_t rows = h.rows(), cols = h.cols();
  RegionTensor out(rows, cols, outputs.wants("out.0") ? outputs.dtype("out.0") : DType::bf16);
  RegionTensor sum(rows, cols, DType::f32), rstd(rows, 1, DType::f32);
  rmsnorm_forward(ctx,
                  {.delta = h.mat(),
                   .stream_in = r.mat(),
                   .weight = w.mat(),
                   .eps = in.eps,
                   .stream_out = outputs.make("out.1", rows, cols),
                   .sum = sum.mat(),
                   .out = out.mat(),
                   .rstd = floats(rstd)},
                  n.sites, n.row_sum);
  outputs.put("out.0", std::move(out));
  const RegionTensor* d_out = find(in, "up.0");
  if (d_out == nullptr || !(outputs.wants("grad.h") || outputs.wants("grad.r") || outputs.wants("grad.w"))) return;
  const RegionTensor* d_stream = find(in, "up.1");
  RegionTensor d_sum(rows, cols, DType::f32), d_weight(1, cols, DType::f32);
  rmsnorm_backward(ctx,
                   {.d_out = d_out->mat(),
                    .d_stream = d_stream != nullptr ? d_stream->mat() : ConstMat(),
                    .sum = std::as_const(sum).mat(),
                    .weight = w.mat(),
                    .rstd = floats(rstd),
                    .d_sum = d_sum.mat(),
                    .d_weight = floats(d_weight)},
                   n.sites, n.backward, n.row_sum);
  outputs.put("grad.h", d_sum);
  outputs.put("grad.r", d_sum);
  outputs.put("grad.w", d_weight);
}

/// Of q ("0") or k ("1").
void run_rope(Context& ctx, const RegionInputs& in, const RegionNumerics& n, const std::string& which, const std::string& index,
              Outputs& outputs) {
  const RegionTensor& x = get(in, which);
  const bool normed = in.region == Region::qk_norm_rope;
  const ConstMat weight = normed ? get(in, "w" + which).mat() : ConstMat();
  const int heads = int(x.cols() / in.head_dim);
  std::vector<std::int32_t> rows(std::size_t(x.rows()));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = std::int32_t(i);
  RegionTensor out(x.rows(), x.cols(), outputs.wants("out." + index) ? outputs.dtype("out." + index) : DType::bf16);
  RegionTensor rstd(x.rows(), heads, DType::f32);
  rope_forward(ctx,
               {.in = x.mat(),
                .heads = heads,
                .norm_weight = weight,
                .eps = in.eps,
                .table = &in.table,
                .positions = rows.data(),
                .out = out.mat(),
                .rstd = normed ? floats(rstd) : nullptr},
               n.sites, n.row_sum);
  outputs.put("out." + index, std::move(out));
  const RegionTensor* d_out = find(in, "up." + index);
  if (d_out == nullptr || !(outputs.wants("grad." + which) || outputs.wants("grad.w" + which))) return;
  RegionTensor d_in(x.rows(), x.cols(), DType::f32), d_weight(1, in.head_dim, DType::f32);
  rope_backward(ctx,
                {.d_out = d_out->mat(),
                 .in = x.mat(),
                 .heads = heads,
                 .norm_weight = weight,
                 .rstd = floats(rstd),
                 .table = &in.table,
                 .positions = rows.data(),
                 .d_in = d_in.mat(),
                 .d_norm_weight = normed ? floats(d_weight) : nullptr},
                n.sites, n.backward, n.qk_norm, n.row_sum);
  outputs.put("grad." + which, d_in);
  if (normed) outputs.put("grad.w" + which, d_weight);
}

}  // namespace

Region region_from_name(std::string_view name) {
  std::vector<std::string_view> names;
  for (const auto& [region, text] : enum_names(Region{})) {
    if (name == text) return region;
    names.push_back(text);
  }
  throw UsageError(fmt::format("unknown region '{}'{}", name, suggestion(name, names)));
}

std::vector<Site> sites_of(Region region) {
  using enum Site;
  switch (region) {
    case Region::rope: return {rope_cos_sin_table, rope_rotated, rope_products, rope_out};
    case Region::qk_norm_rope: return {qk_norm_xhat, qk_norm_out, rope_cos_sin_table, rope_rotated, rope_products, rope_out};
    case Region::swiglu: return {swiglu_silu, swiglu_out};
    case Region::resid_norm: break;
  }
  return {resid_store, resid_sum_to_var, resid_sum_to_scale, norm_xhat, norm_out};
}

float RegionTensor::at(std::int64_t i) const {
  const std::byte* p = bytes_.data() + std::size_t(i) * bytes_of(dtype_);
  if (dtype_ == DType::f32) {
    float x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  BF16 x;
  std::memcpy(&x, p, sizeof x);
  return to_float(x);
}

void RegionTensor::set(std::int64_t i, float x) {
  std::byte* p = bytes_.data() + std::size_t(i) * bytes_of(dtype_);
  if (dtype_ == DType::f32) {
    std::memcpy(p, &x, sizeof x);
    return;
  }
  const BF16 rounded = to_bf16(x);
  std::memcpy(p, &rounded, sizeof rounded);
}

void check_inputs(const RegionInputs& in) {
  for (const auto& [name, t] : in.tensors)
    if (t.elements() == 0) throw Error(fmt::format("{}: {} is empty", enum_name(in.region), name));
  if (is_rope(in.region)) {
    check_heads(in, "q", "up.0");
    if (find(in, "k") != nullptr) check_heads(in, "k", "up.1");
    return;
  }
  const bool swiglu = in.region == Region::swiglu;
  const RegionTensor& first = get(in, swiglu ? "gate" : "h");
  check_like(in, swiglu ? "up" : "r", first);
  if (!swiglu) check_shape(in, "w", 1, first.cols());
  for (const char* up : {"up.0", "up.1"})
    if (find(in, up) != nullptr) check_like(in, up, first);
}

RegionWanted all_outputs(const RegionInputs& in) {
  RegionWanted wanted = {{"out.0", DType::bf16}};
  const auto want = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) wanted[name] = DType::bf16;
  };
  const bool backward = find(in, "up.0") != nullptr;
  if (in.region == Region::resid_norm) {
    want({"out.1"});
    if (backward) want({"grad.h", "grad.r", "grad.w"});
  } else if (in.region == Region::swiglu) {
    if (backward) want({"grad.gate", "grad.up"});
  } else {
    const bool normed = in.region == Region::qk_norm_rope;
    if (backward) want({"grad.q"});
    if (backward && normed) want({"grad.wq"});
    if (find(in, "k") == nullptr) return wanted;
    want({"out.1"});
    if (!backward || find(in, "up.1") == nullptr) return wanted;
    want({"grad.k"});
    if (normed) want({"grad.wk"});
  }
  return wanted;
}

std::string shaped_like(const RegionInputs& in, const std::string& output) {
  if (output.starts_with("grad.")) return output.substr(5);
  if (in.region == Region::swiglu) return "gate";
  if (in.region == Region::resid_norm) return "h";
  return output == "out.0" ? "q" : "k";
}

RegionNumerics region_numerics(const Numerics& n, Region region) {
  const auto& b = n.backward;
  const Place place = region == Region::resid_norm ? Place::input_norm : Place::block;
  const BackwardMode mode = is_rope(region) ? b.rope : region == Region::swiglu ? b.swiglu : b.norm;
  return {.sites = n.sites(1, 3, place), .backward = mode, .qk_norm = b.qk_norm, .row_sum = n.reductions.row_sum};
}

RegionTensors run_region(Context& ctx, const RegionInputs& in, const RegionNumerics& n, const RegionWanted& wanted) {
  Outputs outputs(wanted);
  switch (in.region) {
    case Region::swiglu: run_swiglu(ctx, in, n, outputs); break;
    case Region::resid_norm: run_norm(ctx, in, n, outputs); break;
    case Region::rope:
    case Region::qk_norm_rope:
      run_rope(ctx, in, n, "q", "0", outputs);
      if (find(in, "k") != nullptr) run_rope(ctx, in, n, "k", "1", outputs);
      break;
  }
  return outputs.take();
}

}  // namespace plumb
