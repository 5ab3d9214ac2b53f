#include "kernels/adamw/adamw.h"

#include "kernels/adamw/adamw_cpu.h"
#include "kernels/core/error.h"
#include "kernels/elementwise/elementwise.h"

namespace plumb {

namespace {

/// base^exponent by squaring: the same on every machine, which libm's pow is not.
double power(double base, std::int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result *= base;
    base *= base;
  }
  return result;
}

AdamWScalars scalars_of(const AdamW& a) {
  return {.grad_scale = a.grad_scale,
          .keep = float(1 - a.lr * a.weight_decay),
          .one_minus_b1 = float(1 - a.beta1),
          .b2 = float(a.beta2),
          .one_minus_b2 = float(1 - a.beta2),
          .bias_2_sqrt = float(__builtin_sqrt(1 - power(a.beta2, a.t))),
          .eps = float(a.eps),
          .minus_step = float(-(a.lr / (1 - power(a.beta1, a.t))))};
}

}  // namespace

void adamw(Context& ctx, const AdamW& a) {
  require(a.t >= 1, "internal: adamw: t counts from 1");
  require(a.n == 0 || (a.master != nullptr && a.grad != nullptr && a.m != nullptr && a.v != nullptr),
          "internal: adamw: master, grad, m and v are needed");
  require(a.beta1 >= 0 && a.beta1 < 1 && a.beta2 >= 0 && a.beta2 < 1, "adamw: beta1 and beta2 must be in [0, 1)");
  for (DType t : {a.master_dtype, a.moments_dtype}) require(t == DType::f32 || t == DType::bf16, "internal: adamw: a state is f32 or bf16");
  cpu::adamw(ctx, a, scalars_of(a));
  if (a.weight != nullptr && is_emulated(a.weight_dtype)) round_in_place(ctx, static_cast<float*>(a.weight), a.n, a.weight_dtype);
}

double sum_of_squares(Context& ctx, const float* x, std::int64_t n) { return cpu::sum_of_squares(ctx, x, n); }

}  // namespace plumb
