// Residual RMSNorm:  s = h + r;  stream = store(s);  rstd = 1/sqrt(mean(to_var(s)^2) + eps);
//                    xhat = R?(to_scale(s) * rstd);  out = R?(xhat * w)
// The mean's sum and the backward's <dz, X> are products and adds in the order RowSumOrder.
// Sites: resid.store, resid.sum_to_var, resid.sum_to_scale, norm.xhat, norm.out (docs/numerics.md).
// Source: Zhang & Sennrich 2019; rounding as read and proven in transformers, Inductor and vLLM.
#pragma once
#include "kernels/core/context.h"
#include "kernels/core/tensor.h"
#include "kernels/numerics/numerics.h"

namespace plumb {

struct RmsNormForward {
  ConstMat delta;      // (N, D) h, the block's output; empty: there is no add (the first norm) and s = stream_in
  ConstMat stream_in;  // (N, D) r
  ConstMat weight;     // (1, D)
  float eps = 1e-6f;
  Mat stream_out;         // (N, D) the stored stream, rounded at resid.store and again to its dtype; empty: not wanted
  Mat sum;                // (N, D) s unrounded (f32) or as the norm read it: what the backward needs; empty: not wanted
  Mat out;                // (N, D)
  float* rstd = nullptr;  // (N); null: not wanted
};
void rmsnorm_forward(Context&, const RmsNormForward&, Sites, RowSumOrder = RowSumOrder::lanes16);

/// dz = R?(dout * w); dx = r*dz - X*(r^3/D)*<dz, X>; d_stream_out = R?(R?(dx) + d_stream_in); dw += sum over rows.
/// `fused`: all FP32 including the stream's gradient, one rounding (d_sum is BF16, or resid.store is `b`). `mirror`: each of R?
/// rounds.
struct RmsNormBackward {
  ConstMat d_out;               // (N, D)
  ConstMat d_stream;            // (N, D) gradient that reaches s through the stored stream; empty: none (the final norm)
  ConstMat sum;                 // (N, D) as saved
  ConstMat weight;              // (1, D)
  const float* rstd = nullptr;  // (N)
  Mat d_sum;                    // (N, D) gradient of s: flows to both h and r. May alias d_stream.
  float* d_weight = nullptr;    // (D) FP32, added to: one chain over the rows in order; null: not wanted
};
void rmsnorm_backward(Context&, const RmsNormBackward&, Sites, BackwardMode, RowSumOrder = RowSumOrder::lanes16);

}  // namespace plumb
