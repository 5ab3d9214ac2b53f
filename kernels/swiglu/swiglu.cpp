#include "kernels/swiglu/swiglu.h"

#include "kernels/core/emulated.h"
#include "kernels/core/error.h"
#include "kernels/numerics/site_dispatch.h"
#include "kernels/swiglu/swiglu_cpu.h"

namespace plumb {

namespace {

bool same_shape(const ConstMat& a, const ConstMat& b) { return a.rows == b.rows && a.cols == b.cols; }

}  // namespace

void swiglu_forward(Context& ctx, const SwigluForward& a, Sites sites) {
  require(same_shape(a.gate, a.up) && same_shape(a.gate, a.out), "internal: swiglu_forward: gate, up and out must have one shape");
  cpu::swiglu_forward(ctx, a, sites);
  round_emulated(ctx, a.out);
}

void swiglu_backward(Context& ctx, const SwigluBackward& a, Sites sites, BackwardMode mode) {
  require(same_shape(a.gate, a.up) && same_shape(a.gate, a.d_out) && same_shape(a.gate, a.d_gate) && same_shape(a.gate, a.d_up),
          "internal: swiglu_backward: d_out, gate, up, d_gate and d_up must have one shape");
  cpu::swiglu_backward(ctx, a, gradient_sites(sites, mode));
  round_emulated(ctx, a.d_gate);
  round_emulated(ctx, a.d_up);
}

}  // namespace plumb
