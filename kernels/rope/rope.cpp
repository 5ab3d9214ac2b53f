#include "kernels/rope/rope.h"

#include <algorithm>
#include <string>

#include "kernels/core/emulated.h"
#include "kernels/core/error.h"
#include "kernels/core/math.h"
#include "kernels/rope/rope_cpu.h"
#include "kernels/rope/rope_math.h"

namespace plumb {

RopeTable::RopeTable(int head_dim, std::int64_t positions) : half_(head_dim / 2), positions_(int(positions)) {
  if (!(head_dim >= 2 && head_dim % 2 == 0)) throw Error("rope: head_dim must be even and at least 2, not " + std::to_string(head_dim));
  require(positions >= 1, "rope: the table needs at least one position");
  values_.resize(std::size_t(4 * positions * half_ + kLanes));  // whole lanes can be read from any row
}

void RopeTable::set(std::int64_t p, int j, float cos, float sin, DType to) {
  const std::size_t one = std::size_t(std::int64_t(positions_) * half_);
  const std::size_t at = std::size_t(p * half_ + j);
  values_[at] = cos;
  values_[at + one] = sin;
  values_[at + 2 * one] = round_to(to, cos);
  values_[at + 3 * one] = round_to(to, sin);
}

RopeTable::RopeTable(int head_dim, double theta, int positions, DType to) : RopeTable(head_dim, positions) {
  if (!(theta > 0)) throw Error("rope: theta must be positive, not " + std::to_string(theta));
  for (int j = 0; j < half_; ++j) {
    const float frequency = inverse_frequency(head_dim, theta, j);
    for (int p = 0; p < positions; ++p) {
      const SinCos y = sin_cos_(float(p) * frequency);
      set(p, j, y.cos, y.sin, to);
    }
  }
}

RopeTable::RopeTable(int head_dim, std::span<const float> cos, std::span<const float> sin, DType to)
    : RopeTable(head_dim, std::int64_t(cos.size()) / std::max(head_dim / 2, 1)) {
  require(cos.size() == std::size_t(std::int64_t(positions_) * half_) && sin.size() == cos.size(),
          "internal: rope: a given table must have head_dim/2 values of cos and of sin a row");
  for (std::int64_t p = 0; p < positions_; ++p) {
    for (int j = 0; j < half_; ++j) set(p, j, cos[std::size_t(p * half_ + j)], sin[std::size_t(p * half_ + j)], to);
  }
}

RopeTable RopeTable::of_positions(int head_dim, double theta, std::span<const std::int32_t> positions, DType to) {
  if (!(theta > 0)) throw Error("rope: theta must be positive, not " + std::to_string(theta));
  RopeTable table(head_dim, std::int64_t(positions.size()));
  for (int j = 0; j < table.half_; ++j) {
    const float frequency = inverse_frequency(head_dim, theta, j);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const SinCos y = sin_cos_(float(positions[i]) * frequency);
      table.set(std::int64_t(i), j, y.cos, y.sin, to);
    }
  }
  return table;
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
