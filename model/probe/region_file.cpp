#include "model/probe/region_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <set>

#include "kernels/core/error.h"

namespace plumb {
namespace {

constexpr double kMostTheta = 1e18;
constexpr std::int64_t kMostElements = std::int64_t(1) << 28;

/// Mode and output of a name: ("eager", "grad.q") of "eager.grad.q", ("", "out.0") of "out.0"; nothing of any other tensor.
std::optional<std::pair<std::string, std::string>> split_name(const std::string& name) {
  for (const std::string kind : {"out.", "grad."}) {
    if (name.starts_with(kind)) return std::pair(std::string(), name);
    const std::size_t at = name.rfind("." + kind);
    if (at != std::string::npos) return std::pair(name.substr(0, at), name.substr(at + 1));
  }
  return std::nullopt;
}

std::string names_of(const RegionWanted& wanted) {
  std::vector<std::string> names;
  for (const auto& [name, dtype] : wanted) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Rows and columns of a stored tensor; of one with heads (head_dim > 0), (tokens, heads * head_dim).
struct RegionShape {
  std::int64_t rows = 1;
  std::int64_t cols = 1;
  std::int64_t heads_outside = 0;  // stored (1, heads, tokens, head_dim): this many
};
std::optional<RegionShape> region_shape(const std::vector<std::int64_t>& shape, std::int64_t head_dim) {
  RegionShape s;
  if (shape.empty()) return std::nullopt;
  if (head_dim > 0 && shape.size() == 4) {
    if (shape[0] != 1 || shape[3] != head_dim) return std::nullopt;
    return RegionShape{.rows = shape[2], .cols = shape[1] * shape[3], .heads_outside = shape[1]};
  }
  if (head_dim > 0 && shape.size() == 3 && shape[0] != 1) {
    if (shape[2] != head_dim) return std::nullopt;
    return RegionShape{.rows = shape[0], .cols = shape[1] * shape[2]};
  }
  s.cols = shape.back();
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) s.rows *= shape[i];
  return s;
}

}  // namespace

RegionWanted outputs_of(const RegionObservation& o) {
  RegionWanted wanted;
  for (const auto& [name, tensor] : o.outputs) wanted[name] = tensor.dtype();
  return wanted;
}

void RegionFile::fail(const std::string& what) const { throw Error(fmt::format("{}: {}", file_.path().string(), what)); }

Region RegionFile::region() const {
  if (file_.find("in.h") != nullptr && file_.find("in.r") != nullptr) return Region::resid_norm;
  if (file_.find("in.gate") != nullptr) return Region::swiglu;
  if (file_.find("in.q") == nullptr) fail("holds the inputs of no region (in.q, in.gate, or in.h and in.r)");
  return file_.find("in.wq") != nullptr ? Region::qk_norm_rope : Region::rope;
}

RegionTensor RegionFile::tensor(const std::string& name, std::int64_t head_dim) const {
  const StoredTensor& t = file_.get(name);
  if (t.dtype != StoredType::bf16 && t.dtype != StoredType::f32)
    fail(fmt::format("{} is {}; BF16 or F32 is right", name, name_of(t.dtype)));
  if (t.elements() == 0 || t.elements() > kMostElements)
    fail(fmt::format("{} is {}; at least one element and at most {} are right", name, describe(t), kMostElements));
  const auto shape = region_shape(t.shape, head_dim);
  if (!shape)
    fail(fmt::format("{} is {}; (tokens, heads*{}), (tokens, heads, {}) or (1, heads, tokens, {}) is right", name, describe(t), head_dim,
                     head_dim, head_dim));
  RegionTensor out(shape->rows, shape->cols, t.dtype == StoredType::f32 ? DType::f32 : DType::bf16);
  if (shape->heads_outside == 0) {
    std::memcpy(out.bytes().data(), t.data.data(), t.data.size());
    return out;
  }
  const std::size_t head = std::size_t(head_dim) * bytes_of(out.dtype());
  for (std::int64_t h = 0; h < shape->heads_outside; ++h) {
    for (std::int64_t n = 0; n < shape->rows; ++n) {
      const auto from = t.data.subspan(std::size_t(h * shape->rows + n) * head, head);
      std::memcpy(out.bytes().data() + std::size_t(n * shape->heads_outside + h) * head, from.data(), head);
    }
  }
  return out;
}

double RegionFile::number(const std::string& key, double otherwise) const {
  const auto at = file_.metadata().find(key);
  if (at == file_.metadata().end()) return otherwise;
  char* end = nullptr;
  const double x = std::strtod(at->second.c_str(), &end);
  if (at->second.empty() || *end != '\0' || !std::isfinite(x) || x <= 0)
    fail(fmt::format("metadata {} is {}; a positive number is right", key, in_quotes(at->second)));
  return x;
}

void RegionFile::read_table(RegionInputs& in) const {
  const std::int64_t half = in.head_dim / 2;
  const std::int64_t rows = in.tensors.at("q").rows();
  if (file_.find("in.pos") != nullptr) {
    for (const std::int64_t p : read_i64(file_.get("in.pos"))) {
      if (p < 0 || p > std::numeric_limits<std::int32_t>::max()) fail(fmt::format("in.pos holds {}, which is no position", p));
      in.positions.push_back(std::int32_t(p));
    }
    if (std::int64_t(in.positions.size()) != rows) fail(fmt::format("in.pos has {} positions for {} tokens", in.positions.size(), rows));
  }
  in.theta = number("theta", in.theta);
  if (in.theta < 1 || in.theta > kMostTheta)
    fail(fmt::format("metadata theta is {}; a number from 1 to {} is right", in.theta, kMostTheta));
  const bool one = file_.find("in.const_table") != nullptr;
  if (!one && file_.find("in.const_cos") == nullptr) {
    if (in.positions.empty()) fail("holds no table: in.const_cos and in.const_sin, in.const_table, or in.pos is needed");
    if (file_.metadata().find("theta") == file_.metadata().end()) fail("metadata has no theta, from which the table is computed");
    in.table = RopeTable::of_positions(in.head_dim, in.theta, in.positions);
    return;
  }
  std::vector<float> values[2];
  in.table_given_bf16 = true;
  for (const bool sine : {false, true}) {
    const std::string name = one ? "in.const_table" : sine ? "in.const_sin" : "in.const_cos";
    const RegionTensor t = tensor(name, 0);
    if (t.rows() != rows || (t.cols() != half && t.cols() != 2 * half) || (one && t.cols() != 2 * half))
      fail(fmt::format("{} is ({}, {}); ({}, {}) is right", name, t.rows(), t.cols(), rows, 2 * half));
    in.table_given_bf16 = in.table_given_bf16 && t.dtype() == DType::bf16;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t j = 0; j < half; ++j) {
        const std::int64_t at = r * t.cols() + j;
        values[sine].push_back(t.at(one && sine ? at + half : at));
        if (!one && t.cols() == 2 * half && t.at(at) != t.at(at + half))
          fail(fmt::format("{}: its two halves differ; the table of rotate_half has them equal", name));
      }
  }
  in.table = RopeTable(in.head_dim, values[0], values[1]);
}

RegionInputs RegionFile::inputs() const {
  RegionInputs in{.region = region()};
  in.eps = float(number("eps", 1e-6));
  if (in.eps > 1) fail(fmt::format("metadata eps is {}; a number up to 1 is right", in.eps));
  const bool rope = in.region == Region::rope || in.region == Region::qk_norm_rope;
  if (rope) {
    const double head_dim = number("head_dim", 0);
    if (head_dim == 0) fail("metadata has no head_dim");
    if (head_dim != std::floor(head_dim) || head_dim > 1024 || int(head_dim) % 2 != 0)
      fail(fmt::format("metadata head_dim is {}; an even number up to 1024 is right", head_dim));
    in.head_dim = int(head_dim);
  }
  const std::set<std::string> heads = {"in.q", "in.k", "up.0", "up.1"};
  for (const char* name : {"in.q", "in.k", "in.wq", "in.wk", "in.gate", "in.up", "in.h", "in.r", "in.w", "up.0", "up.1"}) {
    if (file_.find(name) == nullptr) continue;
    const std::string key = std::string(name).starts_with("in.") ? std::string(name).substr(3) : name;
    in.tensors[key] = tensor(name, rope && heads.contains(name) ? in.head_dim : 0);
  }
  if (rope) read_table(in);
  try {
    check_inputs(in);
  } catch (const Error& error) {
    fail(error.what());
  }
  return in;
}

std::vector<RegionObservation> RegionFile::observations(const RegionInputs& in) const {
  const RegionWanted possible = all_outputs(in);
  std::map<std::string, RegionObservation> modes;
  for (const std::string& name : file_.names()) {
    const auto parts = split_name(name);
    if (!parts) continue;
    const auto& [mode, output] = *parts;
    if (!possible.contains(output)) fail(fmt::format("{}: the inputs give no {}; they give {}", name, output, names_of(possible)));
    const bool heads = in.head_dim > 0 && !output.starts_with("grad.w");
    const RegionTensor& t = modes[mode].outputs[output] = tensor(name, heads ? in.head_dim : 0);
    const RegionTensor& like = in.tensors.at(shaped_like(in, output));
    if (t.rows() != like.rows() || t.cols() != like.cols())
      fail(fmt::format("{} is ({}, {}); ({}, {}) is right", name, t.rows(), t.cols(), like.rows(), like.cols()));
  }
  if (modes.empty()) fail("holds no outputs (MODE.out.0, or out.0)");
  std::vector<RegionObservation> all;
  for (auto& [mode, observation] : modes) all.push_back({.mode = mode, .outputs = std::move(observation.outputs)});
  return all;
}

}  // namespace plumb
