#include "engine/config/numerics_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>

#include "engine/config/key_errors.h"
#include "engine/config/schema.h"
#include "kernels/core/error.h"
#include "kernels/core/nearest.h"
#include "kernels/numerics/fields.h"
#include "model/files/files.h"

namespace plumb {
namespace {

using Kind = ConfigNode::Kind;
using Key = std::string;
using KeyValues = std::vector<std::pair<std::string, std::string>>;

enum class SiteValue : std::uint8_t { f, b };
constexpr auto enum_names(SiteValue) { return std::array{std::pair{SiteValue::f, "f"}, std::pair{SiteValue::b, "b"}}; }

constexpr int kMostMantissaBits = 23;

/// "bf16", "fp16", "fp32", "e8m1" .. "e8m23" (e8m7 is bf16).
std::optional<DType> dtype_from_name(const std::string& name) {
  if (name == "bf16") return DType::bf16;
  if (name == "fp16") return DType::f16;
  if (name == "fp32") return DType::f32;
  for (int bits = 1; bits <= kMostMantissaBits; ++bits) {
    if (name == name_of(e8_dtype(bits))) return bits == 7 ? DType::bf16 : e8_dtype(bits);
  }
  return std::nullopt;
}

/// `liger`: its kernels' backward is FP32 inside with one rounding per output, whatever the forward rounds: that is `fused`.
enum class BackwardName : std::uint8_t { fused, mirror, liger };
constexpr auto enum_names(BackwardName) {
  using enum BackwardName;
  return std::array{std::pair{fused, "fused"}, std::pair{mirror, "mirror"}, std::pair{liger, "liger"}};
}

const std::vector<std::string_view> kTopKeys = {
    "compute",  "mantissa_bits", "every_site",     "layers",    "input_norm", "post_attention_norm", "final_norm", "head", "softmax",
    "scale_at", "merged_qkv",    "merged_gate_up", "one_graph", "backward",   "reductions"};

bool belongs_to_no_layer(Site s) { return s == Site::embedding || s == Site::lm_head_logits || s == Site::logits_temperature; }

std::vector<std::string_view> site_names() {
  std::vector<std::string_view> names;
  for (int i = 0; i < kSites; ++i) names.push_back(name_of(Site(i)));
  return names;
}

/// "a.b.c: x" as "a: {b.c: x}"
ConfigNode::Entry nested(const ConfigNode::Entry& e, std::size_t dot) {
  ConfigNode inner{.kind = Kind::map, .where = e.where};
  inner.entries.push_back({e.key.substr(dot + 1), e.where, e.value});
  return {e.key.substr(0, dot), e.where, std::move(inner)};
}

/// The same where the first word is one of these.
std::optional<ConfigNode::Entry> split_key(const ConfigNode::Entry& e, const std::vector<std::string_view>& firsts) {
  const auto dot = e.key.find('.');
  if (dot == std::string::npos || std::find(firsts.begin(), firsts.end(), e.key.substr(0, dot)) == firsts.end()) return std::nullopt;
  return nested(e, dot);
}

/// One map of numerics being read.
class Reader {
 public:
  Reader(Numerics& numerics, FactForm form) : n_(numerics), sourced_(form == FactForm::with_source) {}

  std::vector<NumericsFact> read(const ConfigNode& map) {
    const auto is_compute = [](const ConfigNode::Entry& e) { return e.key == "compute"; };
    for (const ConfigNode::Entry& e : entries(map, ""))
      if (is_compute(e)) read_top(e);  // what mantissa_bits and head mean depends on it
    for (const ConfigNode::Entry& e : entries(map, ""))
      if (!is_compute(e)) read_top(e);
    return std::move(facts_);
  }

 private:
  using SiteAction = std::function<void(Site, bool)>;

  const std::vector<ConfigNode::Entry>& entries(const ConfigNode& node, const Key& path) const {
    if (node.kind == Kind::map || node.kind == Kind::null) return node.entries;
    throw UsageError(fmt::format("{}: {} is a section of keys; found {}", node.where, path.empty() ? "numerics" : path, describe(node)));
  }

  [[noreturn]] static void unknown(const ConfigNode::Entry& e, const Key& path, const std::vector<std::string_view>& known) {
    const std::string word = joined(path, e.key);
    std::string_view meant = nearest(word, known);
    if (meant.empty()) meant = nearest(e.key, known);
    std::string list;
    for (std::string_view k : known) list += (list.empty() ? "" : ", ") + std::string(k);
    throw UsageError(fmt::format("{}: unknown key {}{}", e.where, in_quotes(word),
                                 meant.empty() ? "; known: " + list : fmt::format("; did you mean {}?", in_quotes(meant))));
  }

  /// Reads one value and notes the fact. In a preset file it is [value, knowledge, source].
  template <class T>
  T value(const ConfigNode& node, const Key& key) {
    if (sourced_ && (node.kind != Kind::list || node.items.size() != 3)) {
      throw UsageError(fmt::format("{}: {} is {}; [value, knowledge, source] is right in a preset file", node.where, key, describe(node)));
    }
    const ConfigNode& text = sourced_ ? node.items[0] : node;
    T out{};
    with_key_in_errors(key, [&] { read_value(text, out); });
    facts_.push_back({.key = key, .value = text.text, .where = node.where});
    if (sourced_) {
      facts_.back().knowledge = node.items[1].text;
      facts_.back().source = node.items[2].text;
    }
    return out;
  }

  bool read_site_value(const ConfigNode& node, const Key& key) { return value<SiteValue>(node, key) == SiteValue::b; }

  void set_everywhere(Site site, bool rounded) {
    n_.base.set(site, rounded);
    std::erase_if(n_.overrides, [&](const SiteOverride& o) { return o.site == site; });
  }

  void set_at(SiteOverride o) {
    std::erase_if(n_.overrides, [&](const SiteOverride& old) {
      return old.site == o.site && old.place == o.place &&
             (o.place == Place::final_norm || (old.first_layer == o.first_layer && old.last_layer == o.last_layer));
    });
    n_.overrides.push_back(o);
  }

  /// A site by its dotted name, or a map of them: `rope: {products: b}`. False when the key is neither.
  bool read_sites(const ConfigNode::Entry& e, const Key& path, const std::string& prefix, const SiteAction& act) {
    const std::string name = prefix + e.key;
    const auto names = site_names();
    if (const auto it = std::find(names.begin(), names.end(), name); it != names.end() && e.value.kind != Kind::map) {
      act(Site(it - names.begin()), read_site_value(e.value, joined(path, name)));
      return true;
    }
    const bool is_prefix = std::any_of(names.begin(), names.end(), [&](std::string_view n) { return n.starts_with(name + "."); });
    if (!is_prefix || e.value.kind != Kind::map) return false;
    for (const ConfigNode::Entry& inner : e.value.entries) {
      if (!read_sites(inner, path, name + ".", act)) unknown(inner, joined(path, name), names);
    }
    return true;
  }

  void require_place(const std::string& where, Site site, Place place) const {
    if (belongs_to_no_layer(site))
      throw UsageError(fmt::format("{}: {} belongs to no layer: give it beside `layers`", where, name_of(site)));
    if (is_norm_site(site) == (place != Place::block)) return;
    throw UsageError(fmt::format("{}: {} has no value at {}; {} is right", where, name_of(site), enum_name(place),
                                 is_norm_site(site) ? "input_norm, post_attention_norm or final_norm" : "block, or no place at all"));
  }

  void read_place(const ConfigNode::Entry& e, const Key& path, Place place, int first, int last) {
    for (const ConfigNode::Entry& inner : entries(e.value, path)) {
      const bool known = read_sites(inner, path, "", [&](Site site, bool rounded) {
        require_place(inner.where, site, place);
        set_at({.first_layer = first, .last_layer = last, .place = place, .site = site, .rounded = rounded});
      });
      if (!known) unknown(inner, path, site_names());
    }
  }

  static std::pair<int, int> read_range(const ConfigNode::Entry& e) {
    if (e.key == "first") return {0, 0};
    if (e.key == "last") return {-1, -1};
    if (e.key == "all") return {0, -1};
    const char* end = e.key.data() + e.key.size();
    int first = 0;
    const auto one = std::from_chars(e.key.data(), end, first);
    if (one.ec == std::errc() && one.ptr == end) return {first, first};
    int last = 0;
    if (one.ec == std::errc() && *one.ptr == '-') {
      const auto two = std::from_chars(one.ptr + 1, end, last);
      const bool ordered = last < 0 || (first >= 0 && first <= last);
      if (two.ec == std::errc() && two.ptr == end && ordered) return {first, last};
    }
    throw UsageError(
        fmt::format("{}: {} names no layers; a number, a range such as 2-4, 2--1, first, last or all is right", e.where, in_quotes(e.key)));
  }

  void read_layer(const ConfigNode::Entry& layer, const Key& path) {
    if (const auto dot = layer.key.find('.'); dot != std::string::npos) {
      return read_layer(nested(layer, dot), path.substr(0, path.size() - layer.key.size()) + layer.key.substr(0, dot));
    }
    const auto [first, last] = read_range(layer);
    for (const ConfigNode::Entry& given : entries(layer.value, path)) {
      const ConfigNode::Entry e = split_key(given, {"block", "input_norm", "post_attention_norm"}).value_or(given);
      bool known = false;
      for (Place place : {Place::block, Place::input_norm, Place::post_attention_norm}) {
        if (e.key != enum_name(place)) continue;
        read_place(e, joined(path, e.key), place, first, last);
        known = true;
      }
      known = known || read_sites(e, path, "", [&](Site site, bool rounded) {
                require_place(e.where, site, is_norm_site(site) ? Place::input_norm : Place::block);
                SiteOverride o{.first_layer = first, .last_layer = last, .place = Place::block, .site = site, .rounded = rounded};
                if (is_norm_site(site)) o.place = Place::input_norm;
                set_at(o);
                if (!is_norm_site(site)) return;
                o.place = Place::post_attention_norm;
                set_at(o);
              });
      if (known) continue;
      auto names = site_names();
      names.insert(names.begin(), {"block", "input_norm", "post_attention_norm"});
      unknown(e, path, names);
    }
  }

  void read_backward(const ConfigNode::Entry& e) {
    const auto mode = [&](const ConfigNode& node, const Key& key) {
      return value<BackwardName>(node, key) == BackwardName::mirror ? BackwardMode::mirror : BackwardMode::fused;
    };
    if (e.value.kind != Kind::map) {
      const BackwardMode all = mode(e.value, "backward");
      for_each_backward_mode([&](const char*, auto member) { n_.backward.*member = all; });
      return;
    }
    for (const ConfigNode::Entry& inner : e.value.entries) {
      bool known = false;
      std::vector<std::string_view> names;
      for_each_backward_mode([&](const char* name, auto member) {
        names.emplace_back(name);
        if (inner.key != name) return;
        known = true;
        n_.backward.*member = mode(inner.value, "backward." + inner.key);
      });
      if (!known) unknown(inner, "backward", names);
    }
  }

  void read_reductions(const ConfigNode::Entry& e) {
    for (const ConfigNode::Entry& inner : entries(e.value, "reductions")) {
      bool known = false;
      std::vector<std::string_view> names;
      for_each_reduction([&](const char* name, auto member) {
        names.emplace_back(name);
        if (inner.key != name) return;
        known = true;
        auto& target = n_.reductions.*member;
        target = value<std::remove_reference_t<decltype(target)>>(inner.value, "reductions." + inner.key);
      });
      if (!known) unknown(inner, "reductions", names);
    }
  }

  void read_compute(const ConfigNode::Entry& e) {
    const auto name = value<std::string>(e.value, "compute");
    const auto dtype = dtype_from_name(name);
    if (!dtype)
      throw UsageError(fmt::format("{}: compute: found {}; bf16, fp16, fp32 or e8mN (BF16's exponent, N = 1..23 mantissa bits) is right{}",
                                   e.where, in_quotes(name), suggestion(name, {"bf16", "fp16", "fp32"})));
    n_.compute = *dtype;
  }

  /// Of BF16's exponent range; what another dtype has can only be restated.
  void read_mantissa_bits(const ConfigNode::Entry& e) {
    const int bits = value<int>(e.value, "mantissa_bits");
    if (n_.compute == DType::f16 || n_.compute == DType::f32) {
      if (bits == mantissa_bits_of(n_.compute)) return;
      throw UsageError(
          fmt::format("{}: mantissa_bits {} with compute {}: it belongs to compute bf16", e.where, bits, compute_name(n_.compute)));
    }
    if (bits < 1 || bits > kMostMantissaBits)
      throw UsageError(fmt::format("{}: mantissa_bits is {}; 1 to {} is right (7 is BF16)", e.where, bits, kMostMantissaBits));
    n_.compute = bits == 7 ? DType::bf16 : e8_dtype(bits);
  }

  void read_head(const ConfigNode::Entry& e) {
    const auto name = value<std::string>(e.value, "head");
    const auto dtype = dtype_from_name(name);
    if (!dtype || (*dtype != DType::f32 && n_.compute != DType::f32 && *dtype != n_.compute))
      throw UsageError(fmt::format("{}: head: found {}; {} or fp32 is right", e.where, in_quotes(name),
                                   n_.compute == DType::f32 ? "bf16" : compute_name(n_.compute)));
    for (Site s : {Site::lm_head_logits, Site::logits_temperature}) set_everywhere(s, *dtype != DType::f32);
  }

  void read_top(const ConfigNode::Entry& e) {
    const std::string& key = e.key;
    if (const auto inner = split_key(e, kTopKeys)) return read_top(*inner);
    if (key == "compute") return read_compute(e);
    if (key == "head") return read_head(e);
    if (key == "backward") return read_backward(e);
    if (key == "reductions") return read_reductions(e);
    if (key == "mantissa_bits") return read_mantissa_bits(e);
    if (key == "softmax") return void(n_.softmax = value<Softmax>(e.value, key));
    if (key == "scale_at") return void(n_.scale_at = value<ScaleAt>(e.value, key));
    if (key == "merged_qkv") return void(n_.backward.merged_qkv = value<bool>(e.value, key));
    if (key == "merged_gate_up") return void(n_.backward.merged_gate_up = value<bool>(e.value, key));
    if (key == "one_graph") return void(n_.backward.one_graph = value<bool>(e.value, key));
    if (key == "every_site") {
      const bool rounded = read_site_value(e.value, key);
      for (int i = 0; i < kSites; ++i) set_everywhere(Site(i), rounded);
      return;
    }
    if (key == "layers") {
      for (const ConfigNode::Entry& layer : entries(e.value, key)) read_layer(layer, joined(key, layer.key));
      return;
    }
    for (Place place : {Place::input_norm, Place::post_attention_norm, Place::final_norm}) {
      if (key == enum_name(place)) return read_place(e, key, place, 0, -1);
    }
    if (read_sites(e, "", "", [&](Site site, bool rounded) { set_everywhere(site, rounded); })) return;
    auto names = site_names();
    names.insert(names.begin(), kTopKeys.begin(), kTopKeys.end());
    unknown(e, "", names);
  }

  Numerics& n_;
  bool sourced_;
  std::vector<NumericsFact> facts_;
};

std::string range_name(const SiteOverride& o) {
  if (o.first_layer == 0 && o.last_layer == -1) return "all";
  if (o.first_layer == o.last_layer) return o.first_layer == -1 ? "last" : fmt::format("{}", o.first_layer);
  return fmt::format("{}-{}", o.first_layer, o.last_layer);
}

std::string override_key(const SiteOverride& o) {
  if (o.place == Place::final_norm) return fmt::format("final_norm.{}", name_of(o.site));
  return fmt::format("layers.{}.{}.{}", range_name(o), enum_name(o.place), name_of(o.site));
}

const char* flag_name(bool value) { return value ? "true" : "false"; }
const char* site_value(bool rounded) { return rounded ? "b" : "f"; }

}  // namespace

const char* compute_name(DType t) {
  if (t == DType::f32) return "fp32";
  return t == DType::f16 ? "fp16" : name_of(t);
}

int mantissa_bits_of(DType t) {
  if (t == DType::f16) return 10;
  return is_emulated(t) ? e8_mantissa_bits(t) : 7;
}

std::vector<NumericsFact> apply_numerics(const ConfigNode& map, Numerics& numerics, FactForm form) {
  return Reader(numerics, form).read(map);
}

void apply_fact(const std::string& key, const std::string& value, Numerics& numerics) {
  apply_numerics(parse_override(key + "=" + value), numerics);
}

KeyValues numerics_facts(const Numerics& n) {
  KeyValues out;
  out.emplace_back("compute", compute_name(n.compute));
  out.emplace_back("mantissa_bits", fmt::format("{}", mantissa_bits_of(n.compute)));
  for (int i = 0; i < kSites; ++i) out.emplace_back(name_of(Site(i)), site_value(n.base.rounded(Site(i))));
  out.emplace_back("softmax", enum_name(n.softmax));
  out.emplace_back("scale_at", enum_name(n.scale_at));
  const BackwardModes& b = n.backward;
  for_each_backward_mode([&](const char* name, auto member) { out.emplace_back(fmt::format("backward.{}", name), enum_name(b.*member)); });
  out.emplace_back("merged_qkv", flag_name(b.merged_qkv));
  out.emplace_back("merged_gate_up", flag_name(b.merged_gate_up));
  out.emplace_back("one_graph", flag_name(b.one_graph));
  for_each_reduction(
      [&](const char* name, auto member) { out.emplace_back(fmt::format("reductions.{}", name), value_text(n.reductions.*member)); });
  for (const SiteOverride& o : n.overrides) out.emplace_back(override_key(o), site_value(o.rounded));
  return out;
}

}  // namespace plumb
