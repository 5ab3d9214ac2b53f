// Build tool: configs/numerics/*.yaml -> preset_table.cpp and preset_masks.h, which kernels/numerics compiles.
// usage: plumb_preset_table OUT_TABLE OUT_MASKS FILE.yaml...
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>

#include "engine/config/numerics_facts.h"
#include "kernels/core/error.h"
#include "kernels/core/nearest.h"
#include "kernels/numerics/fields.h"
#include "kernels/numerics/presets.h"
#include "model/files/files.h"

namespace plumb {
namespace {

struct PresetFile {
  std::string name;
  std::string stack;
  std::string summary;
  Numerics numerics;
  std::vector<NumericsFact> facts;
};

std::string take_text(ConfigNode& document, const std::string& key, const std::string& file) {
  const auto it = std::find_if(document.entries.begin(), document.entries.end(), [&](const auto& e) { return e.key == key; });
  if (it == document.entries.end() || it->value.kind != ConfigNode::Kind::scalar) {
    throw UsageError(fmt::format("{}: {} is missing: one line of text", file, key));
  }
  std::string text = it->value.text;
  document.entries.erase(it);
  return text;
}

bool is_site_name(std::string_view key) {
  for (int i = 0; i < kSites; ++i) {
    if (name_of(Site(i)) == key) return true;
  }
  return false;
}

/// Every fact is stated, with how it is known.
void check_complete(const PresetFile& p, const std::string& file) {
  std::vector<std::string_view> knowledge;
  for (const auto& [_, name] : enum_names(Knowledge{})) knowledge.emplace_back(name);
  for (const NumericsFact& f : p.facts) {
    if (std::find(knowledge.begin(), knowledge.end(), f.knowledge) == knowledge.end())
      throw UsageError(
          fmt::format("{}: {}: '{}' is no kind of knowledge{}", f.where, f.key, f.knowledge, suggestion(f.knowledge, knowledge)));
    if (f.source.empty()) throw UsageError(fmt::format("{}: {} has no source", f.where, f.key));
  }
  const auto stated = [&](std::string_view key) {
    return std::any_of(p.facts.begin(), p.facts.end(), [&](const NumericsFact& f) { return f.key == key; });
  };
  for (const auto& [key, value] : numerics_facts(p.numerics)) {
    const bool by_default = key == "mantissa_bits" && e8_mantissa_bits(p.numerics.compute) == 0;
    const bool by_every = (key.starts_with("backward.") && stated("backward")) || (stated("every_site") && is_site_name(key));
    if (!by_default && !by_every && !stated(key)) throw UsageError(fmt::format("{}: {} is not stated", file, key));
  }
}

PresetFile read_preset(const std::filesystem::path& path) {
  const std::string file = path.string();
  ConfigNode document = parse_yaml(read_file(path), file);
  PresetFile p{.name = path.stem().string()};
  p.stack = take_text(document, "stack", file);
  p.summary = take_text(document, "summary", file);
  p.numerics.preset = p.name;
  p.facts = apply_numerics(document, p.numerics, FactForm::with_source);
  check_complete(p, file);
  return p;
}

std::string literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

template <class E>
std::string enumerator(const char* type, E value) {
  return fmt::format("{}::{}", type, enum_name(value));
}

std::string override_code(const SiteOverride& o) {
  return fmt::format("{{.first_layer = {}, .last_layer = {}, .place = {}, .site = site_from_name({}), .rounded = {}}}", o.first_layer,
                     o.last_layer, enumerator("Place", o.place), literal(name_of(o.site)), o.rounded);
}

std::string code_of(int value) { return fmt::format("{}", value); }
std::string code_of(MatmulOrder value) { return enumerator("MatmulOrder", value); }
std::string code_of(RowSumOrder value) { return enumerator("RowSumOrder", value); }
std::string code_of(AttentionSum value) { return enumerator("AttentionSum", value); }
std::string code_of(AttentionExp value) { return enumerator("AttentionExp", value); }

std::string reductions_code(const Reductions& r) {
  std::string out;
  for_each_reduction(
      [&](const char* name, auto member) { out += fmt::format("{}.{} = {}", out.empty() ? "" : ", ", name, code_of(r.*member)); });
  return "{" + out + "}";
}

std::string backward_code(const BackwardModes& b) {
  std::string modes;
  for_each_backward_mode(
      [&](const char* name, auto member) { modes += fmt::format(".{} = {}, ", name, enumerator("BackwardMode", b.*member)); });
  return fmt::format("{{{}.merged_qkv = {}, .merged_gate_up = {}, .one_graph = {}}}", modes, b.merged_qkv, b.merged_gate_up, b.one_graph);
}

std::string preset_code(const PresetFile& p) {
  const Numerics& n = p.numerics;
  std::string overrides;
  for (const SiteOverride& o : n.overrides) overrides += (overrides.empty() ? "" : ", ") + override_code(o);
  std::string facts;
  for (const NumericsFact& f : p.facts) {
    facts += fmt::format("           {{{}, {}, Knowledge::{}, {}}},\n", literal(f.key), literal(f.value), f.knowledge, literal(f.source));
  }
  return fmt::format(
      "      {{.name = {0},\n       .stack = {1},\n       .summary = {2},\n       .numerics = {{.preset = {0}, .compute = DType({3}), "
      ".base = {{{4:#x}u}}, .overrides = {{{5}}},\n                    .softmax = {6}, .scale_at = {7},\n                    "
      ".reductions = "
      "{8},\n                    .backward = {9}}},\n       .facts = {{\n{10}       }}}},\n",
      literal(p.name), literal(p.stack), literal(p.summary), int(n.compute), n.base.mask, overrides, enumerator("Softmax", n.softmax),
      enumerator("ScaleAt", n.scale_at), reductions_code(n.reductions), backward_code(n.backward), facts);
}

constexpr const char* kHeading = "// Written by the build from configs/numerics/*.yaml: edit those.\n";

std::string table_code(const std::vector<PresetFile>& files) {
  std::string body;
  for (const PresetFile& p : files) body += preset_code(p);
  return fmt::format(
      "{}#include \"kernels/numerics/presets.h\"\n\nnamespace plumb {{\n\nconst std::vector<Preset>& presets() {{\n  static const "
      "std::vector<Preset> table = {{\n{}  }};\n  return table;\n}}\n\n}}  // namespace plumb\n",
      kHeading, body);
}

/// hf_eager -> kHfEagerSites
std::string mask_name(std::string_view preset) {
  std::string out = "k";
  bool upper = true;
  for (const char c : preset) {
    if (c != '_') out += upper && c >= 'a' && c <= 'z' ? char(c - 'a' + 'A') : c;
    upper = c == '_';
  }
  return out + "Sites";
}

std::string masks_code(const std::vector<PresetFile>& files) {
  std::string body;
  for (const PresetFile& p : files) body += fmt::format("inline constexpr Sites {}{{{:#x}u}};\n", mask_name(p.name), p.numerics.base.mask);
  return fmt::format("{}#pragma once\n#include \"kernels/numerics/numerics.h\"\n\nnamespace plumb {{\n\n{}\n}}  // namespace plumb\n",
                     kHeading, body);
}

/// An unchanged file keeps its time, so that nothing that includes it is compiled again.
void write_if_changed(const std::filesystem::path& path, const std::string& text) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && read_file(path) == text) return;
  std::filesystem::create_directories(path.parent_path());
  write_file(path, text);
}

void generate(int argc, char** argv) {
  if (argc < 4) throw UsageError("usage: plumb_preset_table OUT_TABLE OUT_MASKS FILE.yaml...");
  std::vector<PresetFile> files;
  for (int i = 3; i < argc; ++i) files.push_back(read_preset(argv[i]));
  const auto rank = [](const PresetFile& p) { return std::pair(p.name == "fused" ? 0 : p.name == "fp32" ? 1 : 2, p.name); };
  std::sort(files.begin(), files.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  write_if_changed(argv[2], masks_code(files));
  std::filesystem::create_directories(std::filesystem::path(argv[1]).parent_path());
  write_file(argv[1], table_code(files));
}

}  // namespace
}  // namespace plumb

int main(int argc, char** argv) {
  try {
    plumb::generate(argc, argv);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
