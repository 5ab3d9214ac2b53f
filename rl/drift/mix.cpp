#include "rl/drift/mix.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/core/error.h"
#include "kernels/numerics/align.h"
#include "kernels/numerics/fields.h"

namespace plumb {
namespace {

bool is_head_site(Site s) { return s == Site::lm_head_logits || s == Site::logits_temperature; }
bool is_qk_norm_site(Site s) { return s == Site::qk_norm_xhat || s == Site::qk_norm_out; }

const char* value_name(bool rounded) { return rounded ? "b" : "f"; }

/// A place of the model where a site is read. The final norm's layer is the last.
struct Spot {
  int layer = 0;
  Place place = Place::block;
};

/// Where a forward reads the site.
std::vector<Spot> spots_of(Site site, int layers) {
  if (is_head_site(site)) return {{layers - 1, Place::final_norm}};
  if (site == Site::embedding) return {{0, Place::block}};
  std::vector<Spot> out;
  for (int l = 0; l < layers; ++l) {
    if (!is_norm_site(site)) {
      out.push_back({l, Place::block});
      continue;
    }
    out.push_back({l, Place::input_norm});
    out.push_back({l, Place::post_attention_norm});
  }
  if (is_norm_site(site)) out.push_back({layers - 1, Place::final_norm});
  return out;
}

/// The sites as they were set, whatever the compute dtype makes of them.
bool value_at(const Numerics& n, Site site, const Spot& spot, int layers) {
  Numerics plain;
  plain.base = n.base;
  plain.overrides = n.overrides;
  return plain.sites(spot.layer, layers, spot.place).rounded(site);
}

/// A fact that is no site: which region it belongs to, how it reads, how it is copied.
struct FactKind {
  const char* name;
  Region region;
  std::string (*text)(const Numerics&);
  void (*copy)(const Numerics& from, Numerics& to);
};

template <auto member>
constexpr FactKind reduction(const char* name, Region region = Region::reductions) {
  return {name, region, [](const Numerics& n) { return value_text(n.reductions.*member); },
          [](const Numerics& from, Numerics& to) { to.reductions.*member = from.reductions.*member; }};
}

const std::vector<FactKind>& fact_kinds() {
  static const std::vector<FactKind> kinds = {
      {"compute", Region::storage, [](const Numerics& n) { return std::string(name_of(n.compute)); },
       [](const Numerics& from, Numerics& to) { to.compute = from.compute; }},
      {"softmax", Region::attention, [](const Numerics& n) { return std::string(enum_name(n.softmax)); },
       [](const Numerics& from, Numerics& to) { to.softmax = from.softmax; }},
      {"scale_at", Region::attention, [](const Numerics& n) { return std::string(enum_name(n.scale_at)); },
       [](const Numerics& from, Numerics& to) { to.scale_at = from.scale_at; }},
      reduction<&Reductions::attention_exp>("reductions.attention_exp", Region::attention),
      reduction<&Reductions::matmul>("reductions.matmul"),
      reduction<&Reductions::row_sum>("reductions.row_sum"),
      reduction<&Reductions::attention_qk>("reductions.attention_qk"),
      reduction<&Reductions::attention_pv>("reductions.attention_pv"),
      reduction<&Reductions::attention_sum>("reductions.attention_sum"),
      reduction<&Reductions::attention_kv_tile>("reductions.attention_kv_tile"),
      reduction<&Reductions::attention_kv_split>("reductions.attention_kv_split"),
  };
  return kinds;
}

/// Layers in which a site differs, "" when in all of its spots.
std::string where_text(const std::vector<Spot>& differing, std::size_t all) {
  if (differing.size() == all) return "";
  const auto place = [](const Spot& s) { return s.place == Place::block ? std::string() : std::string(" ") + enum_name(s.place); };
  if (differing.size() == 1) return fmt::format(" in layer {}{}", differing[0].layer, place(differing[0]));
  return fmt::format(" in {} of {} places", differing.size(), all);
}

}  // namespace

Region region_of(Site site) {
  constexpr Sites kStores = make_sites({Site::norm_out, Site::rope_out, Site::attn_out, Site::swiglu_out, Site::linear_out});
  if (kStores.rounded(site)) return Region::storage;
  if (site == Site::embedding) return Region::embedding;
  for (const auto& [group, region] :
       {std::pair{AlignGroup::rope_path, Region::rope_path}, std::pair{AlignGroup::swiglu, Region::swiglu},
        std::pair{AlignGroup::resid_norm, Region::resid_norm}, std::pair{AlignGroup::attention, Region::attention}}) {
    if (sites_of(group).rounded(site)) return region;
  }
  return Region::head;
}

NumericsMix::NumericsMix(const Numerics& a, const Numerics& b, const ModelConfig& config, PlayersBy by, float temperature)
    : a_(a), b_(b), config_(config) {
  add_facts(by);
  add_cells(by, temperature);
}

int NumericsMix::player(const std::string& name, Region region, const std::string& difference) {
  for (std::size_t i = 0; i < players_.size(); ++i) {
    Player& p = players_[i];
    if (p.name != name) continue;
    if (p.differs.find(difference) == std::string::npos) p.differs += ", " + difference;
    return int(i);
  }
  require(players_.size() < 63, "internal: more players than a mask has bits");
  players_.push_back({name, difference, region});
  return int(players_.size()) - 1;
}

std::string NumericsMix::layer_name(int layer) const {
  const int per = (config_.layers + kMaxLayerPlayers - 1) / kMaxLayerPlayers;
  const int first = layer / per * per;
  const int last = std::min(first + per, config_.layers) - 1;
  return first == last ? fmt::format("layer {}", first) : fmt::format("layers {}-{}", first, last);
}

void NumericsMix::add_facts(PlayersBy by) {
  for (const FactKind& kind : fact_kinds()) {
    const std::string before = kind.text(a_), after = kind.text(b_);
    if (before == after) continue;
    const std::string name = by == PlayersBy::sites    ? (kind.region == Region::storage ? "storage" : kind.name)
                             : by == PlayersBy::layers ? "whole model"
                                                       : enum_name(kind.region);
    facts_.push_back({kind.copy, player(name, kind.region, fmt::format("{} {} > {}", kind.name, before, after))});
  }
}

void NumericsMix::add_cells(PlayersBy by, float temperature) {
  struct Difference {
    Site site;
    Spot spot;
    int own_layer;  // whose player moves it; config_.layers where no layer's does
    std::string text;
  };
  std::vector<Difference> all;
  for (int s = 0; s < kSites; ++s) {
    const Site site = Site(s);
    const std::vector<Spot> spots = spots_of(site, config_.layers);
    std::vector<Spot> differing;
    for (const Spot& spot : spots) {
      if (value_at(a_, site, spot, config_.layers) != value_at(b_, site, spot, config_.layers)) differing.push_back(spot);
    }
    if (differing.empty()) continue;
    const auto moves = [&](const Spot& spot) {
      const bool before = value_at(a_, site, spot, config_.layers);
      return fmt::format("{} {} > {}", name_of(site), value_name(before), value_name(!before));
    };
    const std::string everywhere = moves(differing[0]) + where_text(differing, spots.size());
    const bool no_qk_norm = is_qk_norm_site(site) && !config_.qk_norm;
    if (no_qk_norm || (site == Site::logits_temperature && temperature == 1)) {
      const char* reason = no_qk_norm ? "the model has no QK norm" : "the temperature is 1";
      absent_.push_back({std::string(name_of(site)), fmt::format("{}: {}", everywhere, reason), region_of(site)});
      continue;
    }
    for (const Spot& spot : differing) {
      const bool in_layer = by == PlayersBy::layers && spot.place != Place::final_norm && site != Site::embedding;
      all.push_back({site, spot, in_layer ? spot.layer : config_.layers, in_layer ? moves(spot) : everywhere});
    }
  }
  // The layers' own players come first, in the order of the layers.
  std::stable_sort(all.begin(), all.end(), [](const Difference& x, const Difference& y) { return x.own_layer < y.own_layer; });
  for (const Difference& d : all) {
    cells_.push_back({d.spot.layer, d.spot.place, d.site, player(player_name(by, d.site, d.own_layer), region_of(d.site), d.text)});
  }
}

std::string NumericsMix::player_name(PlayersBy by, Site site, int own_layer) const {
  const Region region = region_of(site);
  if (by == PlayersBy::sites && region != Region::storage) return std::string(name_of(site));
  if (by != PlayersBy::layers) return enum_name(region);
  if (region == Region::storage) return "whole model";
  if (own_layer < config_.layers) return layer_name(own_layer);
  return site == Site::embedding ? "embedding" : "final norm, head";
}

Numerics NumericsMix::mix(std::uint64_t moved) const {
  const auto has = [&](int p) { return (moved >> p & 1u) != 0; };
  Numerics n = a_;
  n.preset = fmt::format("{} with {}", a_.preset, b_.preset);
  n.backward = {};
  n.reductions.shards = 1;
  n.overrides.clear();
  for (const Fact& f : facts_) {
    if (has(f.player)) f.copy(b_, n);
  }
  for (int s = 0; s < kSites; ++s) {
    const Site site = Site(s);
    const std::vector<Spot> spots = spots_of(site, config_.layers);
    const auto value = [&](const Spot& spot) {
      bool v = value_at(a_, site, spot, config_.layers);
      for (const Cell& c : cells_) {
        if (c.site == site && c.layer == spot.layer && c.place == spot.place && has(c.player)) v = !v;
      }
      return v;
    };
    n.base.set(site, value(spots[0]));
    for (const Spot& spot : spots) {
      const bool v = value(spot);
      if (v == n.base.rounded(site)) continue;
      n.overrides.push_back({.first_layer = spot.layer, .last_layer = spot.layer, .place = spot.place, .site = site, .rounded = v});
    }
  }
  return n;
}

std::vector<std::string> forward_differences(const Numerics& a, const Numerics& b, const ModelConfig& config) {
  std::vector<std::string> out;
  const NumericsMix mix(a, b, config, PlayersBy::sites);
  for (const Player& p : mix.players()) out.push_back(p.differs);
  return out;
}

}  // namespace plumb
