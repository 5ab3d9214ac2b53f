#include "kernels/rope/rope.h"

#include <string>

#include "kernels/core/emulated.h"
#include "kernels/core/error.h"
#include "kernels/core/math.h"
#include "kernels/rope/rope_cpu.h"
#include "kernels/rope/rope_math.h"

namespace plumb {

RopeTable::RopeTable(int head_dim, double theta, int positions, DType to) : half_(head_dim / 2), positions_(positions) {
  if (!(head_dim >= 2 && head_dim % 2 == 0)) throw Error("rope: head_dim must be even and at least 2, not " + std::to_string(head_dim));
  if (!(theta > 0)) throw Error("rope: theta must be positive, not " + std::to_string(theta));
  require(positions >= 1, "rope: the table needs at least one position");
  const std::int64_t one = std::int64_t(positions) * half_;
  values_.resize(std::size_t(4 * one + kLanes));  // whole lanes can be read from any row
  for (int j = 0; j < half_; ++j) {
    const float frequency = inverse_frequency(head_dim, theta, j);
    for (int p = 0; p < positions; ++p) {
      const SinCos y = sin_cos_(float(p) * frequency);
      const std::size_t at = std::size_t(std::int64_t(p) * half_ + j);
      values_[at] = y.cos;
      values_[at + std::size_t(one)] = y.sin;
      values_[at + std::size_t(2 * one)] = round_to(to, y.cos);
      values_[at + std::size_t(3 * one)] = round_to(to, y.sin);
    }
  }
}

// As PyTorch: 1.0 / theta ** (arange(0, d, 2).float() / d), every step rounded to FP32.
float RopeTable::inverse_frequency(int head_dim, double theta, int j) {
  const float exponent = float(2 * j) / float(head_dim);
  return 1.0f / float(exp_double(double(exponent) * log_double(theta)));
}

namespace {

void require_table(const RopeTable* table, const std::int32_t* positions, std::int64_t rows, std::int64_t cols, int heads) {
  require(table != nullptr && (positions != nullptr || rows == 0) && heads >= 1, "internal: rope: table, positions and heads are needed");
  if (!(table->head_dim() <= cpu::kMaxHeadDim))
    throw Error("rope: head_dim " + std::to_string(table->head_dim()) + " is above the maximum of 1024");
  require(cols == std::int64_t(heads) * table->head_dim(), "internal: rope: the matrix must have heads * head_dim columns");
  for (std::int64_t i = 0; i < rows; ++i) {
    if (positions[i] >= 0 && positions[i] < table->positions()) continue;
    throw Error("rope: position " + std::to_string(positions[i]) + " of row " + std::to_string(i) + " is outside the table of " +
                std::to_string(table->positions()) + " positions");
  }
}

}  // namespace

void rope_forward(Context& ctx, const RopeForward& a, Sites sites, RowSumOrder order) {
  require(a.in.rows == a.out.rows && a.in.cols == a.out.cols, "internal: rope_forward: in and out must have one shape");
  require_table(a.table, a.positions, a.in.rows, a.in.cols, a.heads);
  require(!a.norm_weight || a.norm_weight.cols == a.table->head_dim(), "internal: rope_forward: norm_weight must have head_dim columns");
  cpu::rope_forward(ctx, a, sites, order);
  round_emulated(ctx, a.out);
}

void rope_backward(Context& ctx, const RopeBackward& a, Sites sites, BackwardMode rope, BackwardMode qk_norm, RowSumOrder order) {
  require(a.d_out.rows == a.d_in.rows && a.d_out.cols == a.d_in.cols, "internal: rope_backward: d_out and d_in must have one shape");
  require_table(a.table, a.positions, a.d_out.rows, a.d_out.cols, a.heads);
  require(!a.norm_weight ||
              (a.norm_weight.cols == a.table->head_dim() && a.in.rows == a.d_out.rows && a.in.cols == a.d_out.cols && a.rstd != nullptr),
          "internal: rope_backward: QK norm needs the forward's input and rstd, and a weight of head_dim columns");
  Sites gradients = rope_gradient_sites(sites, bool(a.norm_weight), rope, qk_norm);
  if (a.f32_into_norm && rope == BackwardMode::fused) gradients.set(Site::qk_norm_out, false);
  cpu::rope_backward(ctx, a, gradients, order);
  round_emulated(ctx, a.d_in);
}

}  // namespace plumb
