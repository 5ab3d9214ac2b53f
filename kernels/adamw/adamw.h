// AdamW with decoupled decay on FP32 master weights, as torch.optim.AdamW (Loshchilov & Hutter 2019):
//   p *= 1 - lr*wd;  m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*g*g;  p -= lr/(1-b1^t) * m / (sqrt(v)/sqrt(1-b2^t) + eps)
// One flat range at a time; the compute copy is written in the same pass.
#pragma once
#include <cstdint>

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace plumb {

struct AdamW {
  float* master = nullptr;      // (n)
  const float* grad = nullptr;  // (n)
  float* m = nullptr;           // (n)
  float* v = nullptr;           // (n)
  void* weight = nullptr;       // (n) compute copy, BF16 (rounded) or f32; null: none
  DType weight_dtype = DType::bf16;
  std::int64_t n = 0;
  std::int64_t t = 1;  // step number, from 1
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  float grad_scale = 1.0f;  // clip factor, multiplied in FP32 first
  // bf16: what is stored of master, and of m and v, is rounded once, after the step in FP32; the memory stays FP32.
  DType master_dtype = DType::f32;
  DType moments_dtype = DType::f32;
  /// Wanted: the sum of squares of the change of master, in double, in an order that depends on n alone. Null: not wanted.
  double* update_squares = nullptr;
};
void adamw(Context&, const AdamW&);

/// Sum of squares of n floats, in double, in an order that depends on n alone. NaN and Inf pass through.
double sum_of_squares(Context&, const float* x, std::int64_t n);

}  // namespace plumb
