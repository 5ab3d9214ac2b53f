// One op of the regions whose roundings differ between stacks (RoPE with or without QK norm, SwiGLU, residual RMSNorm), forward and
// backward, on tensors of one's own and under any choice of sites: what golden files and probed implementations are compared with.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"
#include "kernels/numerics/numerics.h"
#include "kernels/rope/rope.h"

namespace plumb {

enum class Region : std::uint8_t { rope, qk_norm_rope, swiglu, resid_norm };
constexpr auto enum_names(Region) {
  using enum Region;
  return std::array{std::pair{rope, "rope"}, std::pair{qk_norm_rope, "qk_norm_rope"}, std::pair{swiglu, "swiglu"},
                    std::pair{resid_norm, "resid_norm"}};
}
/// Throws UsageError naming the nearest.
Region region_from_name(std::string_view name);

/// The sites of a region, in the order of the computation.
std::vector<Site> sites_of(Region);

/// A dense (rows, cols) matrix of BF16 or FP32 that owns its memory; zeros at first.
class RegionTensor {
 public:
  RegionTensor() = default;
  RegionTensor(std::int64_t rows, std::int64_t cols, DType dtype)
      : rows_(rows), cols_(cols), dtype_(dtype), bytes_(std::size_t(rows * cols) * bytes_of(dtype)) {}
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::int64_t elements() const { return rows_ * cols_; }
  DType dtype() const { return dtype_; }
  std::vector<std::byte>& bytes() { return bytes_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  Mat mat() { return make_mat(bytes_.data(), rows_, cols_, dtype_); }
  ConstMat mat() const { return make_const_mat(bytes_.data(), rows_, cols_, dtype_); }
  /// Element i, row-major; set() rounds to the dtype.
  float at(std::int64_t i) const;
  void set(std::int64_t i, float x);

 private:
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
  DType dtype_ = DType::bf16;
  std::vector<std::byte> bytes_;
};
using RegionTensors = std::map<std::string, RegionTensor, std::less<>>;

/// What the op is given. Tensors by name:
///   rope          q (N, heads*head_dim), k (N, kv_heads*head_dim) or none; with QK norm wq, wk (1, head_dim)
///   swiglu        gate, up (N, F)
///   resid_norm    h, r (N, D), w (1, D)
///   and, where gradients are wanted, up.0 (up.1): those of the outputs out.0 (out.1); resid_norm without up.1: none through the stream.
struct RegionInputs {
  Region region = Region::swiglu;
  RegionTensors tensors;
  int head_dim = 0;  // rope
  float eps = 1e-6f;
  RopeTable table;                      // rope: row i is that of row i of q and k
  bool table_given_bf16 = false;        // it came as BF16 tensors: how it was rounded is not the op's doing
  double theta = 1e4;                   // rope: what the table was computed from, with `positions`; informative where the table was given
  std::vector<std::int32_t> positions;  // rope: (N)
};
/// Throws Error (one line) when a tensor is missing or has a shape that does not fit the others.
void check_inputs(const RegionInputs&);

/// The dtypes of the outputs that are wanted, by name: out.0 (rope: q), out.1 (rope: k; resid_norm: the stream), and the gradients
/// grad.NAME of inputs.
using RegionWanted = std::map<std::string, DType, std::less<>>;
/// All that these inputs can give, in BF16.
RegionWanted all_outputs(const RegionInputs&);
/// The input whose shape an output has: "q" for "out.0" and for "grad.q".
std::string shaped_like(const RegionInputs&, const std::string& output);

/// What of a Numerics concerns one region.
struct RegionNumerics {
  Sites sites;
  BackwardMode backward = BackwardMode::fused;  // of the rotation, of SwiGLU, of the residual norm
  BackwardMode qk_norm = BackwardMode::fused;
  RowSumOrder row_sum = RowSumOrder::lanes16;
};
/// In an inner layer, its input norm.
RegionNumerics region_numerics(const Numerics&, Region);

/// Throws Error when `wanted` names what the inputs cannot give. Inputs are checked ones.
RegionTensors run_region(Context&, const RegionInputs&, const RegionNumerics&, const RegionWanted& wanted);

}  // namespace plumb
