#include "kernels/numerics/numerics.h"

#include "kernels/core/error.h"
#include "kernels/core/nearest.h"
#include "kernels/numerics/fields.h"

namespace plumb {

namespace {

constexpr std::array<std::string_view, kSites> kSiteNames = {
    "embedding",   "resid.store",        "resid.sum_to_var", "resid.sum_to_scale", "norm.xhat",  "norm.out",       "qk_norm.xhat",
    "qk_norm.out", "rope.cos_sin_table", "rope.rotated",     "rope.products",      "rope.out",   "attn.scores",    "attn.scaled",
    "attn.probs",  "attn.out",           "swiglu.silu",      "swiglu.out",         "linear.out", "lm_head.logits", "logits.temperature"};

constexpr const char* name_of(bool rounded) { return rounded ? "b" : "f"; }

bool covers(const SiteOverride& o, int layer, int n_layers, Place place) {
  if (o.place != place) return false;
  if (place == Place::final_norm) return true;
  const auto absolute = [&](int l) { return l < 0 ? l + n_layers : l; };
  return layer >= absolute(o.first_layer) && layer <= absolute(o.last_layer);
}

void describe_override(const SiteOverride& o, std::string& out) {
  out += std::string(name_of(o.site)) + " at " + enum_name(o.place);
  if (o.place != Place::final_norm) out += " of layers " + std::to_string(o.first_layer) + ".." + std::to_string(o.last_layer);
  out += std::string(": ") + name_of(o.rounded) + "\n";
}

void describe_sites(const Numerics& n, std::string& out) {
  for (int i = 0; i < kSites; ++i) {
    out += std::string(kSiteNames[std::size_t(i)]) + ": " + name_of(n.base.rounded(Site(i))) + "\n";
  }
  for (int i = 0; i < kSites; ++i) {  // those of different sites do not meet, so their order is no fact
    for (const SiteOverride& o : n.overrides) {
      if (o.site == Site(i)) describe_override(o, out);
    }
  }
}

void describe_reductions(const Reductions& r, std::string& out) {
  for_each_reduction([&](const char* name, auto member) { out += std::string("reduction.") + name + ": " + value_text(r.*member) + "\n"; });
}

void describe_backward(const BackwardModes& b, std::string& out) {
  for_each_backward_mode(
      [&](const char* name, auto member) { out += std::string("backward.") + name + ": " + enum_name(b.*member) + "\n"; });
  out += std::string("backward.merged_qkv: ") + (b.merged_qkv ? "true" : "false") + "\n";
  out += std::string("backward.merged_gate_up: ") + (b.merged_gate_up ? "true" : "false") + "\n";
  out += std::string("backward.one_graph: ") + (b.one_graph ? "true" : "false") + "\n";
}

}  // namespace

bool needs_whole_sequences(const Reductions& r) {
  return r.attention_exp == AttentionExp::torch_fast || r.attention_sum == AttentionSum::lanes16_tail;
}

Reductions without_sequence_end(Reductions r) {
  if (r.attention_exp == AttentionExp::torch_fast) r.attention_exp = AttentionExp::torch_fast_all;
  r.attention_sum = AttentionSum::lanes16;
  return r;
}

std::string_view name_of(Site site) { return kSiteNames[std::size_t(site)]; }

Site site_from_name(std::string_view name) {
  for (int i = 0; i < kSites; ++i) {
    if (kSiteNames[std::size_t(i)] == name) return Site(i);
  }
  throw UsageError("unknown rounding site '" + std::string(name) + "'" + suggestion(name, {kSiteNames.begin(), kSiteNames.end()}));
}

Sites Numerics::sites(int layer, int n_layers, Place place) const {
  if (compute == DType::f32) return {};
  Sites s = base;
  s.to = compute;
  for (const SiteOverride& o : overrides) {
    if (covers(o, layer, n_layers, place)) s.set(o.site, o.rounded);
  }
  return s;
}

std::string Numerics::describe() const {
  std::string out = std::string("compute: ") + plumb::name_of(compute) + "\n";
  if (compute != DType::f32) describe_sites(*this, out);
  out += std::string("attention.softmax: ") + enum_name(softmax) + "\n";
  out += std::string("attention.scale_at: ") + enum_name(scale_at) + "\n";
  describe_reductions(reductions, out);
  describe_backward(backward, out);
  return out;
}

std::uint64_t Numerics::hash() const {
  std::uint64_t h = 0xCBF29CE484222325u;  // FNV-1a
  for (char c : describe()) h = (h ^ std::uint8_t(c)) * 0x100000001B3u;
  return h;
}

bool operator==(const Numerics& a, const Numerics& b) { return a.describe() == b.describe(); }

}  // namespace plumb
