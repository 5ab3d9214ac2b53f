// The one place where QK norm and the rotary embedding round.
#pragma once
#include "kernels/numerics/site_dispatch.h"
#include "kernels/rmsnorm/rmsnorm_math.h"

namespace plumb {

template <class S, class V>
[[gnu::always_inline]] inline V qk_norm_xhat(S sites, V q, V rstd) {
  return round_if(sites.rounded(Site::qk_norm_xhat), q * rstd, sites.to);
}
template <class S, class V>
[[gnu::always_inline]] inline V qk_norm_out(S sites, V q, V rstd, V w) {
  return round_if(sites.rounded(Site::qk_norm_out), qk_norm_xhat(sites, q, rstd) * w, sites.to);
}

/// A pair of elements that one rotation mixes: index j of the first and of the second half.
template <class V>
struct RopePair {
  V x;
  V y;
};

/// Products and sums are separate operations (no FMA), as in every stack that was compared with.
template <class S, class V>
[[gnu::always_inline]] inline RopePair<V> rotate_step(S sites, V x, V y, V c, V s) {
  const auto product = [&](V a, V b) { return round_if(sites.rounded(Site::rope_products), a * b, sites.to); };
  const auto copy = [&](V a) { return round_if(sites.rounded(Site::rope_rotated), a, sites.to); };
  const auto out = [&](V a) { return round_if(sites.rounded(Site::rope_out), a, sites.to); };
  return {.x = out(product(x, c) - product(copy(y), s)), .y = out(product(y, c) + product(copy(x), s))};
}

/// The sites of the backward: rope.cos_sin_table as in the forward. Mode mirror: a BF16 head vector (there is no norm, or
/// qk_norm.out is `b`) receives two gradients, each rounded, whatever the products were; products and rotated are set then.
/// qk_norm.xhat is set when its gradient is a tensor of its own; qk_norm.out when the gradient that goes from the rotation into
/// the norm is one: in mode fused it is wherever rope.out is rounded, as in Inductor's code.
inline Sites rope_gradient_sites(Sites sites, bool norm, BackwardMode rope, BackwardMode qk_norm) {
  Sites g{sites.mask & (make_sites({Site::rope_cos_sin_table}).mask | kRunTimeSites), sites.to};
  const bool mirror = rope == BackwardMode::mirror;
  const bool bf16_heads = !norm || sites.rounded(Site::qk_norm_out);
  const bool rounds = sites.rounded(Site::rope_out);  // false in FP32
  g.set(Site::rope_products, mirror && rounds && (bf16_heads || sites.rounded(Site::rope_products)));
  g.set(Site::rope_rotated, mirror && rounds && (bf16_heads || sites.rounded(Site::rope_rotated)));
  g.set(Site::qk_norm_out, sites.rounded(mirror ? Site::qk_norm_out : Site::rope_out));
  g.set(Site::qk_norm_xhat, qk_norm == BackwardMode::mirror && sites.rounded(Site::qk_norm_xhat));
  return g;
}

/// d of what the rotation read; u: d of what it gave.
template <class G, class V>
[[gnu::always_inline]] inline RopePair<V> rotate_gradient_step(G g, V ux, V uy, V c, V s) {
  const auto direct = [&](V a) { return round_if(g.rounded(Site::rope_products), a * c, g.to); };
  const auto rotated = [&](V a) { return round_if(g.rounded(Site::rope_products) || g.rounded(Site::rope_rotated), a * s, g.to); };
  return {.x = direct(ux) + rotated(uy), .y = direct(uy) - rotated(ux)};
}

/// The gradient that passes from the rotation into the norm.
template <class G, class V>
[[gnu::always_inline]] inline V rope_d_normed(G g, V d) {
  return round_if(g.rounded(Site::qk_norm_out), d, g.to);
}
template <class G, class V>
[[gnu::always_inline]] inline V qk_norm_d_xhat(G g, V d_normed, V w) {
  return round_if(g.rounded(Site::qk_norm_xhat), d_normed * w, g.to);
}
/// One head's term of dL/dw: a product of two BF16 tensors is one.
template <class G, class V>
[[gnu::always_inline]] inline V qk_norm_d_weight_term(G g, V d_normed, V q, V rstd) {
  return round_if(g.rounded(Site::qk_norm_xhat) && g.rounded(Site::qk_norm_out), d_normed * qk_norm_xhat(g, q, rstd), g.to);
}

}  // namespace plumb
