#include "rl/drift/changes.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/numerics/fields.h"
#include "kernels/numerics/presets.h"
#include "rl/drift/mix.h"

namespace plumb {
namespace {

/// The other values of an enumerated fact.
template <class E>
void add_values(std::vector<FactChange>& out, const Numerics& from, const std::string& fact, E& (*member)(Numerics&)) {
  Numerics n = from;
  E& value = member(n);
  const E before = value;
  for (const auto& [other, text] : enum_names(E{})) {
    if (other == before) continue;
    value = other;
    out.push_back({fact, enum_name(before), text, n});
  }
}

void add_reductions(std::vector<FactChange>& out, const Numerics& from) {
  for_each_reduction([&](const char* name, auto member) {
    using E = std::remove_cvref_t<decltype(from.reductions.*member)>;
    if constexpr (std::is_enum_v<E>) {
      const E before = from.reductions.*member;
      for (const auto& [other, text] : enum_names(E{})) {
        if (other == before) continue;
        Numerics n = from;
        n.reductions.*member = other;
        out.push_back({fmt::format("reductions.{}", name), enum_name(before), text, n});
      }
    }
  });
}

void add_site(std::vector<FactChange>& out, const Numerics& from, Site site) {
  const bool before = from.base.rounded(site);
  const char* const names[] = {"f", "b"};
  for (const bool rounded : {false, true}) {
    Numerics n = from;
    n.base.set(site, rounded);
    const bool in_places = std::erase_if(n.overrides, [&](const SiteOverride& o) { return o.site == site; }) > 0;
    if (!in_places && before == rounded) continue;
    const std::string value = in_places ? fmt::format("{}, in places {}", names[before], names[!before]) : names[before];
    out.push_back({std::string(name_of(site)), value, names[rounded], n});
  }
}

}  // namespace

std::vector<FactChange> single_changes(const Numerics& from, const ModelConfig& config) {
  std::vector<FactChange> out;
  for (int s = 0; s < kSites; ++s) {
    const Site site = Site(s);
    const bool absent = !config.qk_norm && (site == Site::qk_norm_xhat || site == Site::qk_norm_out);
    if (absent || site == Site::logits_temperature || region_of(site) == Region::storage) continue;
    add_site(out, from, site);
  }
  add_values<Softmax>(out, from, "softmax", [](Numerics& n) -> Softmax& { return n.softmax; });
  add_values<ScaleAt>(out, from, "scale_at", [](Numerics& n) -> ScaleAt& { return n.scale_at; });
  add_reductions(out, from);
  for (const Preset& p : presets()) {
    if (p.numerics.compute != from.compute || p.numerics.reductions == from.reductions) continue;
    Numerics n = from;
    n.reductions = p.numerics.reductions;
    out.push_back({fmt::format("the reductions of {}", p.name), "", "", n});
  }
  std::erase_if(out, [](const FactChange& c) { return !unsupported(c.numerics).empty(); });
  return out;
}

}  // namespace plumb
