#include "kernels/rmsnorm/rmsnorm.h"

#include "kernels/core/emulated.h"
#include "kernels/core/error.h"
#include "kernels/rmsnorm/rmsnorm_cpu.h"

namespace plumb {

namespace {

bool fits(const ConstMat& optional, const ConstMat& like) {
  return !optional || (optional.rows == like.rows && optional.cols == like.cols);
}

/// A rounded copy of the sum loses nothing that the norm reads.
bool sum_is_exact(const RmsNormForward& a, Sites sites) {
  if (!a.sum || a.sum.dtype == DType::f32) return true;
  if (!a.delta && a.stream_in.dtype == a.sum.dtype) return true;
  return sites.rounded(Site::resid_sum_to_var) && sites.rounded(Site::resid_sum_to_scale);
}

}  // namespace

void rmsnorm_forward(Context& ctx, const RmsNormForward& a, Sites sites, RowSumOrder order) {
  require(bool(a.stream_in) && bool(a.out) && fits(a.delta, a.stream_in) && fits(a.stream_out, a.stream_in) && fits(a.sum, a.stream_in) &&
              fits(a.out, a.stream_in),
          "internal: rmsnorm_forward: delta, stream_in, stream_out, sum and out must have one shape");
  require(a.weight.cols == a.stream_in.cols, "internal: rmsnorm_forward: weight must have as many columns as the stream");
  require(sum_is_exact(a, sites), "internal: rmsnorm_forward: the sum must be saved in f32 unless both of its uses are rounded");
  cpu::rmsnorm_forward(ctx, a, sites, order);
  for (const Mat& m : {a.stream_out, a.sum, a.out}) round_emulated(ctx, m);
}

void rmsnorm_backward(Context& ctx, const RmsNormBackward& a, Sites sites, BackwardMode mode, RowSumOrder order) {
  require(bool(a.d_out) && bool(a.sum) && bool(a.d_sum) && a.rstd != nullptr && fits(a.d_stream, a.d_out) && fits(a.sum, a.d_out) &&
              fits(a.d_sum, a.d_out),
          "internal: rmsnorm_backward: d_out, d_stream, sum and d_sum must have one shape, rstd is needed");
  require(a.weight.cols == a.d_out.cols, "internal: rmsnorm_backward: weight must have as many columns as d_out");
  cpu::rmsnorm_backward(ctx, a, sites, mode, order);
  round_emulated(ctx, a.d_sum);
}

}  // namespace plumb
