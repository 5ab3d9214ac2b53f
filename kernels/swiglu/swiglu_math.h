// The one place where SwiGLU rounds.
#pragma once
#include "kernels/core/math.h"
#include "kernels/numerics/numerics.h"

namespace plumb {

/// g / (1 + exp(-g)): this form and not g * sigmoid(g), which differs in 6e-6 of BF16 outputs.
template <class V>
[[gnu::always_inline]] inline V silu(V g) {
  return g / (V(1.0f) + exp_(-g));
}

template <class S, class V>
[[gnu::always_inline]] inline V swiglu_step(S sites, V g, V u) {
  const V s = round_if(sites.rounded(Site::swiglu_silu), silu(g), sites.to);
  return round_if(sites.rounded(Site::swiglu_out), s * u, sites.to);
}

template <class V>
struct SwigluGradients {
  V gate;
  V up;
};

/// G: the sites whose tensors have gradients of their own (none in mode fused). The callers store, and so round, the result.
template <class G, class V>
[[gnu::always_inline]] inline SwigluGradients<V> swiglu_gradient_step(G gradient_sites, V d, V g, V u) {
  const bool rounded = gradient_sites.rounded(Site::swiglu_silu);
  const V one(1.0f);
  const V denominator = one + exp_(-g);
  const V s = round_if(rounded, g / denominator, gradient_sites.to);
  const V sigma = one / denominator;
  const V ds = round_if(rounded, d * u, gradient_sites.to);
  return {.gate = ds * sigma * (one + g * (one - sigma)), .up = d * s};
}

}  // namespace plumb
