// Test only: SwiGLU element by element with the C library's exp in double, rounding by policy.
#pragma once
#include <cmath>

#include "kernels/core/dtype.h"
#include "kernels/numerics/numerics.h"

namespace plumb::ref {

inline float round_when(bool rounded, double x) { return rounded ? round_bf16(float(x)) : float(x); }

inline float swiglu(float g, float u, Sites sites) {
  const float s = round_when(sites.rounded(Site::swiglu_silu), double(g) / (1 + std::exp(-double(g))));
  return round_when(sites.rounded(Site::swiglu_out), double(s) * u);
}

struct SwigluGradient {
  float gate;
  float up;
};
/// As stored in BF16 when `stored_bf16`.
inline SwigluGradient swiglu_gradient(float d, float g, float u, bool mirror, Sites sites, bool stored_bf16) {
  const bool rounded = mirror && sites.rounded(Site::swiglu_silu);
  const double sigma = 1 / (1 + std::exp(-double(g)));
  const float s = round_when(rounded, g * sigma);
  const float ds = round_when(rounded, double(d) * u);
  return {round_when(stored_bf16, ds * sigma * (1 + g * (1 - sigma))), round_when(stored_bf16, double(d) * s)};
}

}  // namespace plumb::ref
