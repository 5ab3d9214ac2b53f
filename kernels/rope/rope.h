// QK norm (optional, Qwen3) followed by the rotary embedding, on the heads of one matrix, in place or not:
//   n = R?(R?(q * rstd_head) * w)            sites qk_norm.xhat, qk_norm.out
//   x' = R?(R?(x*c) - R?(y_*s));  y' = R?(R?(y*c) + R?(x_*s))      x, y = first and second half of n;
//   x_, y_ = the copy that rotate_half makes (site rope.rotated); sites rope.products, rope.out, rope.cos_sin_table
// QK norm sums its squares, and its backward's dot product, in the order RowSumOrder.
// Sources: Su et al. 2021; transformers modeling_qwen3 (rotate_half convention).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"
#include "kernels/numerics/numerics.h"

namespace plumb {

/// cos and sin of p * theta^(-2j/head_dim) in FP32, for p < positions, j < head_dim/2; angle and inverse frequency in FP32.
/// Rounded copies for site rope.cos_sin_table = b are kept beside.
class RopeTable {
 public:
  RopeTable() = default;
  /// to: what site rope.cos_sin_table rounds to.
  RopeTable(int head_dim, double theta, int positions, DType to = DType::bf16);
  /// A table that came from elsewhere: (rows, head_dim/2) values each, row p for position p.
  RopeTable(int head_dim, std::span<const float> cos, std::span<const float> sin, DType to = DType::bf16);
  /// Few positions, however far: row i of the table is that of positions[i].
  static RopeTable of_positions(int head_dim, double theta, std::span<const std::int32_t> positions, DType to = DType::bf16);
  /// 1 / theta^(2j/head_dim), j < head_dim/2.
  static float inverse_frequency(int head_dim, double theta, int j);
  int head_dim() const { return 2 * half_; }
  int positions() const { return positions_; }
  /// (head_dim/2) values of position p; 15 more floats can be read (not used) behind them.
  const float* cos(std::int64_t p, bool rounded) const { return table(rounded, 0) + p * half_; }
  const float* sin(std::int64_t p, bool rounded) const { return table(rounded, 1) + p * half_; }

 private:
  RopeTable(int head_dim, std::int64_t positions);
  /// Entry j of row p, FP32 and rounded.
  void set(std::int64_t p, int j, float cos, float sin, DType to);
  const float* table(bool rounded, int which) const { return values_.data() + (std::int64_t(rounded) * 2 + which) * positions_ * half_; }
  int half_ = 0;
  int positions_ = 0;
  std::vector<float> values_;  // (2: f, b) (2: cos, sin) (positions, head_dim/2)
};

struct RopeForward {
  ConstMat in;  // (N, heads*head_dim), may be a column slice of a wider matrix
  int heads = 0;
  ConstMat norm_weight;  // (1, head_dim) QK norm; empty: none
  float eps = 1e-6f;
  const RopeTable* table = nullptr;
  const std::int32_t* positions = nullptr;  // (N), each < table->positions()
  Mat out;                                  // (N, heads*head_dim); may alias `in` exactly when the backward is not needed
  float* rstd = nullptr;                    // (N, heads); null: not wanted; only with norm_weight
};
void rope_forward(Context&, const RopeForward&, Sites, RowSumOrder = RowSumOrder::lanes16);

struct RopeBackward {
  ConstMat d_out;  // (N, heads*head_dim)
  ConstMat in;     // (N, heads*head_dim) the forward's input (only read with norm_weight)
  int heads = 0;
  ConstMat norm_weight;         // as in the forward
  const float* rstd = nullptr;  // (N, heads) as saved; only with norm_weight
  const RopeTable* table = nullptr;
  const std::int32_t* positions = nullptr;  // (N)
  Mat d_in;                                 // (N, heads*head_dim); may alias d_out exactly
  float* d_norm_weight = nullptr;           // (head_dim) FP32, added to: one chain over rows, heads inner; null: not wanted
  bool f32_into_norm = false;               // mode fused: what goes from the rotation into the norm stays FP32
};
void rope_backward(Context&, const RopeBackward&, Sites, BackwardMode rope, BackwardMode qk_norm, RowSumOrder = RowSumOrder::lanes16);

}  // namespace plumb
