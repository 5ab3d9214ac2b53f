// The one place where the residual RMSNorm rounds, and the arithmetic that QK norm shares with it.
#pragma once
#include "kernels/core/math.h"
#include "kernels/numerics/numerics.h"

namespace plumb {

/// A term of the row's sum: a product of its own, then an add, as PyTorch's pow(2).mean() and Inductor's code do it.
template <class V>
[[gnu::always_inline]] inline V square(V x) {
  return x * x;
}

inline float rstd_of(float sum_of_squares, std::int64_t n, float eps) { return rsqrt_(sum_of_squares / float(n) + eps); }

/// The factor of x in the gradient that comes back through rstd, in the order of autograd (rsqrt, mean, pow).
inline float variance_factor(float dot, float rstd, std::int64_t n) { return (-0.5f * dot) * (rstd * rstd * rstd) / float(n); }

template <class V>
[[gnu::always_inline]] inline V variance_gradient(V factor, V x) {
  return factor * (V(2.0f) * x);
}

template <class S, class V>
[[gnu::always_inline]] inline V stored_sum(S sites, V sum) {
  return round_if(sites.rounded(Site::resid_store), sum, sites.to);
}
template <class S, class V>
[[gnu::always_inline]] inline V variance_operand(S sites, V sum) {
  return round_if(sites.rounded(Site::resid_sum_to_var), sum, sites.to);
}
template <class S, class V>
[[gnu::always_inline]] inline V scale_operand(S sites, V sum) {
  return round_if(sites.rounded(Site::resid_sum_to_scale), sum, sites.to);
}

template <class S, class V>
[[gnu::always_inline]] inline V norm_xhat(S sites, V scaled, V rstd) {
  return round_if(sites.rounded(Site::norm_xhat), scaled * rstd, sites.to);
}
template <class S, class V>
[[gnu::always_inline]] inline V norm_out(S sites, V scaled, V rstd, V w) {
  return round_if(sites.rounded(Site::norm_out), norm_xhat(sites, scaled, rstd) * w, sites.to);
}

// Backward. G: the sites whose tensors have gradients of their own, and so round them (none in mode fused).

/// dL/dxhat
template <class G, class V>
[[gnu::always_inline]] inline V norm_d_xhat(G g, V d_out, V w) {
  return round_if(g.rounded(Site::norm_xhat), d_out * w, g.to);
}
/// One row's term of dL/dw.
template <class G, class V>
[[gnu::always_inline]] inline V norm_d_weight_term(G g, V d_out, V scaled, V rstd) {
  return round_if(g.rounded(Site::norm_xhat), d_out * norm_xhat(g, scaled, rstd), g.to);
}
/// dL/ds from the norm alone: the sum of its two uses, rounded when they are one tensor, else each by itself.
template <class G, class V>
[[gnu::always_inline]] inline V norm_d_sum(G g, V through_scale, V through_variance) {
  const bool scale = g.rounded(Site::resid_sum_to_scale);
  const bool variance = g.rounded(Site::resid_sum_to_var);
  if (scale && variance) return round_if(true, through_scale + through_variance, g.to);
  return round_if(scale, through_scale, g.to) + round_if(variance, through_variance, g.to);
}
/// The whole gradient of s, that of the stored stream added: what the block's output and the stream before it receive.
template <class G, class V>
[[gnu::always_inline]] inline V norm_d_total(G g, V d) {
  return round_if(g.rounded(Site::resid_store), d, g.to);
}

}  // namespace plumb
