// The engine's own elementary functions, for scalars and lanes alike: polynomials evaluated by FMA, so that every
// machine, thread and device computes the same bits. Each states its error bound, which math_test.cpp checks.
// exp_: relative error <= 2 ulp on [-87.3, 88.7]; 0 below, inf above; NaN passes.
// log_: <= 2 ulp for positive normal numbers; log(0) = -inf; negative -> NaN.
// sin_cos_: for |x| <= 65536 absolute error <= 1 ulp of 1 (reduction in double, exact enough for 40960 * 1.0).
#pragma once
#include "kernels/core/lanes.h"

namespace plumb {

float exp_(float x);
F32x16 exp_(F32x16 x);
float log_(float x);
F32x16 log_(F32x16 x);
struct SinCos {
  float sin;
  float cos;
};
/// Correctly rounded in all but a vanishing share of arguments (computed in double and rounded once).
SinCos sin_cos_(float x);

}  // namespace plumb
