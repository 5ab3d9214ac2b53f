#include "kernels/numerics/inert.h"

#include <bit>

namespace plumb {
namespace {

/// 1 / sqrt(head_dim) is a power of two: multiplying by it rounds nothing.
bool scale_is_exact(int head_dim) { return std::has_single_bit(unsigned(head_dim)) && std::countr_zero(unsigned(head_dim)) % 2 == 0; }

bool has_overrides(const Numerics& n, Site site) {
  for (const SiteOverride& o : n.overrides) {
    if (o.site == site) return true;
  }
  return false;
}

/// `b` wherever it has a value.
bool always_rounded(const Numerics& n, Site site) { return n.base.rounded(site) && !has_overrides(n, site); }

}  // namespace

std::vector<InertSite> inert_sites(const Numerics& n, const InertContext& c) {
  std::vector<InertSite> out;
  const auto inert = [&](Site site, const char* reason) { out.push_back({site, reason}); };
  if (n.compute == DType::f32) {
    for (int i = 0; i < kSites; ++i) inert(Site(i), "compute fp32 rounds nowhere");
    return out;
  }
  inert(Site::embedding, "the parameters are of the compute dtype, so its rows are");
  if (!c.qk_norm) {
    inert(Site::qk_norm_xhat, "the model has no QK norm");
    inert(Site::qk_norm_out, "the model has no QK norm");
    inert(Site::rope_rotated, "its input is a linear's output, which is stored");
  } else if (always_rounded(n, Site::qk_norm_out)) {
    inert(Site::rope_rotated, "its input, qk_norm.out, is b");
  }
  if (n.scale_at == ScaleAt::query) {
    if (always_rounded(n, Site::attn_scores)) inert(Site::attn_scaled, "the query was scaled, and attn.scores is b");
    if (always_rounded(n, Site::attn_scaled)) inert(Site::attn_scores, "the query was scaled, and attn.scaled is b");
  } else if (c.head_dim > 0 && scale_is_exact(c.head_dim)) {
    if (always_rounded(n, Site::attn_scores)) inert(Site::attn_scaled, "the scale is a power of two, and attn.scores is b");
    if (always_rounded(n, Site::attn_scaled)) inert(Site::attn_scores, "the scale is a power of two, and attn.scaled is b");
  }
  if (c.temperature_one) inert(Site::logits_temperature, "the temperature is 1: nothing is divided");
  return out;
}

}  // namespace plumb
