#include "kernels/numerics/align.h"

namespace plumb {
namespace {

bool includes(AlignGroup group, AlignGroup part) {
  return group == part || group == AlignGroup::all || (group == AlignGroup::rope_path && part == AlignGroup::rope);
}

void fuse_backward(BackwardModes& b, AlignGroup group) {
  const auto fuse = [&](AlignGroup part, BackwardMode& mode) {
    if (includes(group, part)) mode = BackwardMode::fused;
  };
  fuse(AlignGroup::rope, b.rope);
  fuse(AlignGroup::rope_path, b.qk_norm);
  fuse(AlignGroup::swiglu, b.swiglu);
  fuse(AlignGroup::resid_norm, b.norm);
  fuse(AlignGroup::attention, b.attention);
}

}  // namespace

Sites sites_of(AlignGroup group) {
  using enum Site;
  switch (group) {
    case AlignGroup::rope: return make_sites({rope_cos_sin_table, rope_rotated, rope_products});
    case AlignGroup::rope_path: return make_sites({rope_cos_sin_table, rope_rotated, rope_products, qk_norm_xhat, qk_norm_out});
    case AlignGroup::swiglu: return make_sites({swiglu_silu});
    case AlignGroup::resid_norm: return make_sites({resid_store, resid_sum_to_var, resid_sum_to_scale, norm_xhat});
    case AlignGroup::attention: return make_sites({attn_scores, attn_scaled, attn_probs, attn_out});
    case AlignGroup::head: return make_sites({lm_head_logits, logits_temperature});
    case AlignGroup::reductions: return {};
    case AlignGroup::all: break;
  }
  return Sites{(1u << kSites) - 1u};
}

void align(Numerics& n, const Numerics& anchor, AlignGroup group) {
  const Sites sites = sites_of(group);
  n.base.mask = (n.base.mask & ~sites.mask) | (anchor.base.mask & sites.mask);
  std::erase_if(n.overrides, [&](const SiteOverride& o) { return sites.rounded(o.site); });
  for (const SiteOverride& o : anchor.overrides) {
    if (sites.rounded(o.site)) n.overrides.push_back(o);
  }
  if (includes(group, AlignGroup::attention)) {
    n.softmax = anchor.softmax;
    n.scale_at = anchor.scale_at;
    n.reductions.attention_exp = anchor.reductions.attention_exp;
  }
  if (group == AlignGroup::reductions) {
    const int shards = n.reductions.shards;  // of gradients
    n.reductions = anchor.reductions;
    n.reductions.shards = shards;
  }
  fuse_backward(n.backward, group);
}

}  // namespace plumb
