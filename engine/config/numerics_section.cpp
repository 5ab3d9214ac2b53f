#include "engine/config/numerics_section.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/config/key_errors.h"
#include "engine/config/numerics_facts.h"
#include "engine/config/schema.h"
#include "kernels/core/error.h"
#include "kernels/core/nearest.h"
#include "kernels/numerics/inert.h"
#include "kernels/numerics/presets.h"
#include "model/files/files.h"

namespace plumb {
namespace {

using Kind = ConfigNode::Kind;

/// The side that one without a preset starts from.
NumericsSide followed(NumericsSide side) { return side == NumericsSide::update ? NumericsSide::rollout : NumericsSide::update; }
NumericsSide anchor_of(const NumericsSection& section, NumericsSide side) {
  return section.of(side).anchor.value_or(side == NumericsSide::rollout ? NumericsSide::update : NumericsSide::rollout);
}

const std::vector<AlignGroup>& groups_at(const NumericsSection& section, NumericsSide side, std::int64_t step) {
  const std::vector<AlignGroup>* groups = &section.of(side).align;
  std::int64_t since = -1;
  for (const NumericsChange& c : section.schedule) {
    if (c.side != side || c.step > step || c.step < since) continue;
    groups = &c.align;
    since = c.step;
  }
  return *groups;
}

class Resolver {
 public:
  Resolver(const NumericsSection& section, std::int64_t step) : section_(section), step_(step) {}

  Numerics side(NumericsSide s) {
    if (std::find(open_.begin(), open_.end(), s) != open_.end()) {
      std::string path;
      for (NumericsSide o : open_) path += fmt::format("numerics.{} needs ", enum_name(o));
      throw UsageError(
          fmt::format("{}numerics.{}: sides lead back to each other; give one of them a preset and no align", path, enum_name(s)));
    }
    open_.push_back(s);
    const NumericsSideConfig& c = section_.of(s);
    Numerics n = !c.preset.empty() ? preset(c.preset) : s == NumericsSide::rollout ? preset("fused") : side(followed(s));
    const std::string start = n.preset;
    const Numerics before = n;
    if (const auto& groups = groups_at(section_, s, step_); !groups.empty()) {
      const Numerics anchor = side(anchor_of(section_, s));
      for (AlignGroup g : groups) align(n, anchor, g);
    }
    const auto apply = [&](bool compute) {
      for (const auto& [key, value] : c.facts)
        if ((key == "compute") == compute) apply_fact(key, value, n);
    };
    apply(true);  // however the keys came together, what mantissa_bits and head mean depends on it
    apply(false);
    n.preset = n == before || start.ends_with(" changed") ? start : start + " changed";
    open_.pop_back();
    return n;
  }

 private:
  const NumericsSection& section_;
  std::int64_t step_;
  std::vector<NumericsSide> open_;
};

template <class T>
void read_key(const ConfigNode& node, const std::string& key, T& value) {
  with_key_in_errors(key, [&] { read_value(node, value); });
}

std::string read_preset(const ConfigNode& node, const std::string& key) {
  std::string name;
  read_key(node, key, name);
  if (name.empty()) return name;
  try {
    find_preset(name);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}: {}", node.where, key, error.what()));
  }
  return name;
}

std::vector<NumericsFact> read_facts(const ConfigNode& map, const std::string& key) {
  Numerics scratch;
  try {
    return apply_numerics(map, scratch);
  } catch (const UsageError& error) {
    // "file:line: what" becomes "file:line: numerics.update: what"
    const std::string what = error.what();
    const auto end = what.find(": ");
    throw UsageError(fmt::format("{}: {}{}", what.substr(0, end), key, what.substr(end)));
  }
}

void read_side(NumericsSection& section, NumericsSide which, const ConfigNode& node) {
  NumericsSideConfig& side = section.sides[std::size_t(which)];
  const std::string key = fmt::format("numerics.{}", enum_name(which));
  if (node.kind == Kind::list) {
    throw UsageError(fmt::format("{}: {} is the name of a preset or a section of keys; found a list", node.where, key));
  }
  if (node.kind != Kind::map) {  // a name alone is the whole side
    side = {};
    if (node.kind == Kind::scalar) side.preset = read_preset(node, key);
    return;
  }
  ConfigNode facts{.kind = Kind::map, .where = node.where};
  for (const ConfigNode::Entry& e : node.entries) {
    if (e.key == "preset") {
      side.preset = read_preset(e.value, key + ".preset");
    } else if (e.key == "align") {
      read_key(e.value, key + ".align", side.align);
    } else if (e.key == "anchor") {
      read_key(e.value, key + ".anchor", side.anchor);
      if (side.anchor == which) throw UsageError(fmt::format("{}: {}.anchor is the side itself", e.where, key));
    } else {
      facts.entries.push_back(e);
    }
  }
  if (facts.entries.empty()) return;
  for (NumericsFact& f : read_facts(facts, key)) {
    std::erase_if(side.facts, [&](const auto& old) { return old.first == f.key; });
    side.facts.emplace_back(std::move(f.key), std::move(f.value));
  }
}

NumericsChange read_change(const ConfigNode& node) {
  if (node.kind != Kind::map) {
    throw UsageError(fmt::format("{}: found {}; {{step: 200, side: update, align: [rope]}} is right", node.where, describe(node)));
  }
  NumericsChange change;
  const std::string section = "numerics.schedule";
  bool seen[3] = {};
  for (const ConfigNode::Entry& e : node.entries) {
    const std::string key = section + "." + e.key;
    if (e.key == "step")
      read_key(e.value, key, change.step);
    else if (e.key == "side")
      read_key(e.value, key, change.side);
    else if (e.key == "align")
      read_key(e.value, key, change.align);
    else
      throw UsageError(
          fmt::format("{}: unknown key {} in {}{}", e.where, in_quotes(e.key), section, suggestion(e.key, {"step", "side", "align"})));
    seen[e.key == "step" ? 0 : e.key == "side" ? 1 : 2] = true;
  }
  const char* names[] = {"step", "side", "align"};
  for (int i = 0; i < 3; ++i) {
    if (!seen[i]) throw UsageError(fmt::format("{}: a change of {} has no {}", node.where, section, names[i]));
  }
  if (change.step < 1) throw UsageError(fmt::format("{}: {}.step is {}; at least 1 is right", node.where, section, change.step));
  return change;
}

std::string list_of(const std::vector<AlignGroup>& groups) {
  std::string out;
  for (AlignGroup g : groups) out += (out.empty() ? "" : ", ") + std::string(enum_name(g));
  return "[" + out + "]";
}

std::string join(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& w : words) out += (out.empty() ? "" : ", ") + w;
  return out;
}

/// "# " lines that say all of it.
std::string comment(const Numerics& n, const std::string& indent) {
  std::vector<std::string> rounded, kept, elsewhere, backward, reductions, inert;
  for (const auto& [key, value] : numerics_facts(n)) {
    if (key.starts_with("reductions."))
      reductions.push_back(fmt::format("{} {}", key.substr(11), value));
    else if (key.starts_with("backward."))
      backward.push_back(fmt::format("{} {}", key.substr(9), value));
    else if ((key.starts_with("merged_") || key == "one_graph"))
      backward.push_back(fmt::format("{} {}", key, value));
    else if (key.starts_with("layers.") || key.starts_with("final_norm."))
      elsewhere.push_back(fmt::format("{} {}", key, value));
    else if (value == "b")
      rounded.push_back(key);
    else if (value == "f")
      kept.push_back(key);
  }
  for (const InertSite& s : inert_sites(n, {})) inert.push_back(fmt::format("{} ({})", name_of(s.site), s.reason));
  std::string out = fmt::format("{}# {}: compute {}, hash {:016x}\n", indent, n.preset, compute_name(n.compute), n.hash());
  const auto line = [&](const char* what, const std::vector<std::string>& words) {
    if (!words.empty()) out += fmt::format("{}#   {}: {}\n", indent, what, join(words));
  };
  if (n.compute != DType::f32) {
    line("b", rounded);
    line("f", kept);
    line("elsewhere", elsewhere);
    line("inert", inert);
  }
  line("attention", {fmt::format("softmax {}", enum_name(n.softmax)), fmt::format("scale_at {}", enum_name(n.scale_at))});
  line("backward", backward);
  line("reductions", reductions);
  return out;
}

std::string print_side(const NumericsSection& section, NumericsSide which, const std::string& doc, const std::string& indent) {
  const NumericsSideConfig& side = section.of(which);
  std::string out = fmt::format("{}# {}\n", indent, doc) + comment(resolve_numerics(section, which, 0), indent);
  if (side.preset.empty() && side.align.empty() && !side.anchor && side.facts.empty()) {
    const std::string line = fmt::format("{}{}:", indent, enum_name(which));
    return out +
           fmt::format("{:<34}  # {}\n", line, which == NumericsSide::rollout ? "fused" : fmt::format("as {}", enum_name(followed(which))));
  }
  out += fmt::format("{}{}:\n", indent, enum_name(which));
  const auto line = [&](const std::string& key, const std::string& value) { out += fmt::format("{}  {}: {}\n", indent, key, value); };
  if (!side.preset.empty()) line("preset", side.preset);
  if (!side.align.empty()) line("align", list_of(side.align));
  if (side.anchor) line("anchor", enum_name(*side.anchor));
  for (const auto& [key, value] : side.facts) line(key, value);
  return out;
}

/// The facts as keys for comparison, hash and JSON. Overrides by layer are one key: two configurations have the same keys.
ConfigSection fact_fields(const NumericsSection& section, NumericsSide which) {
  ConfigSection fields;
  const auto facts = [&section, which] { return numerics_facts(resolve_numerics(section, which, 0)); };
  const auto read_only = [](const ConfigNode&) {};
  const std::size_t plain = numerics_facts(Numerics{}).size();
  for (std::size_t i = 0; i < plain; ++i) {
    fields.push_back(
        {.name = numerics_facts(Numerics{})[i].first, .doc = "", .set = read_only, .get = [facts, i] { return facts()[i].second; }});
  }
  const auto overrides = [facts, plain] {
    auto object = nlohmann::ordered_json::object();
    const auto all = facts();
    for (std::size_t i = plain; i < all.size(); ++i) object[all[i].first] = all[i].second;
    return object;
  };
  fields.push_back({.name = "layers", .doc = "", .set = read_only, .get = overrides});
  return fields;
}

const char* doc_of(NumericsSide side) {
  switch (side) {
    case NumericsSide::rollout: return "the sampler: a preset (plumb numerics list), or a map of preset, align, anchor and single facts";
    case NumericsSide::update: return "the trainer; empty: the rollout's, and then the two agree bit for bit";
    case NumericsSide::reference: return "the reference model of the KL; empty: the update's";
    case NumericsSide::critic: return "the critic of PPO; empty: the update's";
    case NumericsSide::count: break;
  }
  return "";
}

}  // namespace

Numerics resolve_numerics(const NumericsSection& section, NumericsSide side, std::int64_t step) {
  return Resolver(section, step).side(side);
}

std::vector<std::int64_t> numerics_steps(const NumericsSection& section) {
  std::vector<std::int64_t> steps = {0};
  for (const NumericsChange& c : section.schedule) steps.push_back(c.step);
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

void validate(const NumericsSection& section) {
  for (std::int64_t step : numerics_steps(section)) {
    for (int s = 0; s < kNumericsSides; ++s) {
      const Numerics n = resolve_numerics(section, NumericsSide(s), step);
      const std::string what = unsupported(n);
      if (what.empty()) continue;
      throw UsageError(fmt::format("configuration: numerics.{}: {}{}: no kernel does this yet: {}", enum_name(NumericsSide(s)), n.preset,
                                   step == 0 ? "" : fmt::format(" from step {}", step), what));
    }
  }
}

ConfigField numerics_side_field(NumericsSection& section, NumericsSide side) {
  ConfigField field{.name = enum_name(side), .doc = doc_of(side), .section = fact_fields(section, side)};
  field.set = [&section, side](const ConfigNode& node) { read_side(section, side, node); };
  field.print = [&section, side](const std::string& indent) { return print_side(section, side, doc_of(side), indent); };
  return field;
}

ConfigField numerics_schedule_field(NumericsSection& section) {
  ConfigField field{.name = "schedule", .doc = "changes of align: a list of {step, side, align}; from that step on"};
  field.set = [&section](const ConfigNode& node) {
    std::vector<NumericsChange> changes;
    for (const ConfigNode& item : read_list(node)) changes.push_back(read_change(item));
    section.schedule = std::move(changes);
  };
  field.get = [&section] {
    auto list = nlohmann::ordered_json::array();
    for (const NumericsChange& c : section.schedule) {
      // With what it comes to: two configurations may look alike until a change uncovers their difference.
      nlohmann::ordered_json change = {{"step", c.step}, {"side", enum_name(c.side)}, {"align", value_json(c.align)}};
      for (int s = 0; s < kNumericsSides; ++s) {
        change["then"][enum_name(NumericsSide(s))] = fmt::format("{:016x}", resolve_numerics(section, NumericsSide(s), c.step).hash());
      }
      list.push_back(std::move(change));
    }
    return list;
  };
  field.print = [&section, doc = field.doc](const std::string& indent) {
    std::string out = fmt::format("{}# {}\n", indent, doc);
    if (section.schedule.empty()) return out + fmt::format("{}schedule: []\n", indent);
    out += fmt::format("{}schedule:\n", indent);
    for (const NumericsChange& c : section.schedule) {
      out += fmt::format("{}  - {{step: {}, side: {}, align: {}}}\n", indent, c.step, enum_name(c.side), list_of(c.align));
    }
    return out;
  };
  return field;
}

}  // namespace plumb
