// Groups of sites that one side may take from the other (docs/numerics.md, "Aligning").
#pragma once
#include "kernels/numerics/numerics.h"

namespace plumb {

enum class AlignGroup : std::uint8_t {
  rope,        // rope.cos_sin_table, rope.rotated, rope.products
  rope_path,   // rope, qk_norm.xhat, qk_norm.out
  swiglu,      // swiglu.silu
  resid_norm,  // resid.store, resid.sum_to_var, resid.sum_to_scale, norm.xhat, at every layer and place
  attention,   // attn.*, softmax, scale_at, and the exp
  head,        // lm_head.logits, logits.temperature
  all,         // every site
  reductions,  // the order of every sum of the forward; no site, so not in `all`
};
constexpr auto enum_names(AlignGroup) {
  using enum AlignGroup;
  return std::array{std::pair{rope, "rope"},
                    std::pair{rope_path, "rope_path"},
                    std::pair{swiglu, "swiglu"},
                    std::pair{resid_norm, "resid_norm"},
                    std::pair{attention, "attention"},
                    std::pair{head, "head"},
                    std::pair{all, "all"},
                    std::pair{reductions, "reductions"}};
}

Sites sites_of(AlignGroup);
/// Copies the group's sites, overrides by layer included, from the anchor. The backward of its regions becomes `fused`. Compute dtype
/// and gradient chains stay; the order of reductions too, but for the group of that name, which copies nothing else.
void align(Numerics&, const Numerics& anchor, AlignGroup);

}  // namespace plumb
