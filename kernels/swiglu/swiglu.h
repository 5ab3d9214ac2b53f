// SwiGLU: out = R?(R?(g / (1 + exp(-g))) * u). Sites swiglu.silu, swiglu.out. Source: Shazeer 2020.
#pragma once
#include "kernels/core/context.h"
#include "kernels/core/tensor.h"
#include "kernels/numerics/numerics.h"

namespace plumb {

struct SwigluForward {
  ConstMat gate;  // (N, F)
  ConstMat up;    // (N, F)
  Mat out;        // (N, F)
};
void swiglu_forward(Context&, const SwigluForward&, Sites);

/// mirror: ds = R(dm*u), du = R(dm*s) with the rounded s, dg = R(ds * sigma(g)*(1 + g*(1 - sigma(g)))).
/// fused: one rounding each, du = R(dm*silu_fp32(g)).
struct SwigluBackward {
  ConstMat d_out;  // (N, F)
  ConstMat gate;   // (N, F)
  ConstMat up;     // (N, F)
  Mat d_gate;      // (N, F) may alias gate
  Mat d_up;        // (N, F) may alias up
};
void swiglu_backward(Context&, const SwigluBackward&, Sites, BackwardMode);

}  // namespace plumb
