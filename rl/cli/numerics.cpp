#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/config/config.h"
#include "engine/config/numerics_facts.h"
#include "engine/config/sections.h"
#include "engine/metrics/progress.h"
#include "kernels/core/error.h"
#include "kernels/numerics/inert.h"
#include "kernels/numerics/presets.h"
#include "model/regions/region_goldens.h"
#include "rl/cli/commands.h"
#include "rl/cli/numerics_probe.h"
#include "rl/cli/options.h"

namespace plumb {
namespace {

using Json = nlohmann::ordered_json;
using Facts = std::vector<std::pair<std::string, std::string>>;

struct NumericsArguments {
  std::string a;
  std::string b;
  std::string folder;
  std::vector<std::string> sets;
  bool json = false;
};

/// Terminal colours, or nothing.
struct Colours {
  const char* bold = "";
  const char* red = "";
  const char* green = "";
  const char* dim = "";
  const char* off = "";
};
Colours colours() {
  if (!has_colours(STDOUT_FILENO)) return {};
  return {.bold = "\033[1m", .red = "\033[31m", .green = "\033[32m", .dim = "\033[2m", .off = "\033[0m"};
}

/// Of one fact: b red, f green.
std::string coloured(const std::string& value, int width, const Colours& c) {
  const char* colour = value == "b" ? c.red : value == "f" ? c.green : "";
  return fmt::format("{}{:<{}}{}", colour, value, width, *colour ? c.off : "");
}

/// A preset with assignments "rope.products=f" on top.
Numerics with_sets(const std::string& name, const std::vector<std::string>& sets) {
  std::vector<std::string> all = {"rollout=" + name};
  for (const std::string& s : sets) all.push_back("rollout." + s);
  return resolve_numerics(parse_config<NumericsSection>("{}", "--set", all), NumericsSide::rollout, 0);
}

int list(const NumericsArguments& a) {
  if (a.json) {
    auto out = Json::array();
    for (const Preset& p : presets()) {
      out.push_back({{"name", p.name},
                     {"stack", p.stack},
                     {"summary", p.summary},
                     {"hash", hash_text(p.numerics.hash())},
                     {"unsupported", unsupported(p.numerics)}});
    }
    fmt::print("{}\n", out.dump(2));
    return 0;
  }
  const Colours c = colours();
  for (const Preset& p : presets()) {
    int proven = 0;
    for (const PresetFact& f : p.facts) proven += f.knowledge == Knowledge::proven;
    fmt::print("{}{:<24}{}{}\n{:<24}{}{}; {} of {} facts proven{}\n", c.bold, p.name, c.off, p.summary, "", c.dim, p.stack, proven,
               p.facts.size(), c.off);
    if (const std::string what = unsupported(p.numerics); !what.empty()) fmt::print("{:<24}no kernel does this yet: {}\n", "", what);
  }
  return 0;
}

const PresetFact* provenance(const Preset& p, std::string_view key) {
  const PresetFact* of_group = nullptr;  // "every_site", "backward"
  for (const PresetFact& f : p.facts) {
    if (f.key == key) return &f;
    if (f.key == "every_site" || key.starts_with(std::string(f.key) + ".")) of_group = &f;
  }
  return of_group;
}

const char* knowledge_of(const PresetFact* known, bool changed) {
  if (changed) return "set";
  return known ? enum_name(known->knowledge) : "default";
}

int show(const NumericsArguments& a) {
  const Preset& p = find_preset(a.a);
  const Numerics n = with_sets(a.a, a.sets);
  const Facts plain = numerics_facts(p.numerics);
  const auto is_changed = [&](const std::pair<std::string, std::string>& fact) {
    return std::find(plain.begin(), plain.end(), fact) == plain.end();
  };
  if (a.json) {
    Json out = {
        {"preset", p.name}, {"stack", p.stack}, {"summary", p.summary}, {"hash", hash_text(n.hash())}, {"unsupported", unsupported(n)}};
    for (const auto& fact : numerics_facts(n)) {
      Json& f = out["facts"][fact.first] = {{"value", fact.second}};
      const PresetFact* known = is_changed(fact) ? nullptr : provenance(p, fact.first);
      f["knowledge"] = knowledge_of(known, is_changed(fact));
      if (known) f["source"] = known->source;
    }
    fmt::print("{}\n", out.dump(2));
    return 0;
  }
  const Colours c = colours();
  fmt::print("{}{}{}: {}\n{}\nhash {}\n\n", c.bold, n.preset, c.off, p.summary, p.stack, hash_text(n.hash()));
  for (const auto& fact : numerics_facts(n)) {
    const PresetFact* known = is_changed(fact) ? nullptr : provenance(p, fact.first);
    fmt::print("{:<44} {} {:<9} {}{}{}\n", fact.first, coloured(fact.second, 14, c), knowledge_of(known, is_changed(fact)), c.dim,
               known              ? known->source
               : is_changed(fact) ? "--set"
                                  : "",
               c.off);
  }
  for (const InertSite& s : inert_sites(n, {})) fmt::print("inert: {} ({})\n", name_of(s.site), s.reason);
  if (const std::string what = unsupported(n); !what.empty()) fmt::print("no kernel does this yet: {}\n", what);
  return 0;
}

/// Facts of both in one order, those of one alone with "-" on the other side.
std::vector<std::array<std::string, 3>> side_by_side(const Numerics& a, const Numerics& b) {
  std::vector<std::array<std::string, 3>> rows;
  for (const auto& [key, value] : numerics_facts(a)) rows.push_back({key, value, "-"});
  for (const auto& [key, value] : numerics_facts(b)) {
    const auto row = std::find_if(rows.begin(), rows.end(), [&, &k = key](const auto& r) { return r[0] == k; });
    if (row == rows.end())
      rows.push_back({key, "-", value});
    else
      (*row)[2] = value;
  }
  return rows;
}

int diff(const NumericsArguments& a) {
  const Numerics left = with_sets(a.a, {});
  const Numerics right = with_sets(a.b, a.sets);
  Json json = {{"a", left.preset}, {"b", right.preset}, {"differences", Json::object()}};
  const Colours c = colours();
  int differences = 0;
  std::string table = fmt::format("{}{:<44} {:<18} {}{}\n", c.bold, "", left.preset, right.preset, c.off);
  for (const auto& [key, x, y] : side_by_side(left, right)) {
    if (x == y) continue;
    ++differences;
    json["differences"][key] = {x, y};
    table += fmt::format("{:<44} {} {}\n", key, coloured(x, 18, c), coloured(y, 0, c));
  }
  if (a.json)
    fmt::print("{}\n", json.dump(2));
  else if (differences == 0)
    fmt::print("{} and {} compute the same\n", left.preset, right.preset);
  else
    fmt::print("{}{} facts differ\n", table, differences);
  return 0;
}

int check(const NumericsArguments& a) {
  constexpr double kAllowed = 1e-4;
  Context ctx(1);
  const Colours c = colours();
  double differ = 0, elements = 0;
  bool ok = true;
  auto rows = Json::array();
  for (const auto& file : region_files(a.folder)) {
    for (const RegionCase& region : region_cases(file)) {
      for (const RegionResult& r : check_region(ctx, file, region)) {
        differ += double(r.differ);
        elements += double(r.elements);
        ok = ok && r.acceptable();
        const std::string name = file.filename().string();
        const double percent = 100.0 * double(r.differ) / double(r.elements);
        rows.push_back({{"file", name},
                        {"mode", region.mode},
                        {"output", r.output},
                        {"preset", region.preset},
                        {"differ", r.differ},
                        {"elements", r.elements},
                        {"percent", percent}});
        if (!a.json) {
          fmt::print("{:<42} {:<9} {:<8} {:<26} {}{:8.4f} %{}  {} of {}\n", name, region.mode, r.output, region.preset,
                     r.acceptable() ? "" : c.red, percent, r.acceptable() ? "" : c.off, r.differ, r.elements);
        }
      }
    }
  }
  ok = ok && differ <= kAllowed * elements;
  if (a.json)
    fmt::print("{}\n", Json{{"results", rows}, {"percent", 100 * differ / elements}, {"ok", ok}}.dump(2));
  else
    fmt::print("in all {:.5f} % of {:.0f} elements differ: {}\n", 100 * differ / elements, elements,
               ok ? "the presets are proven" : "more than 0.01 %");
  return ok ? 0 : 1;
}

void add_preset_set_option(CLI::App& app, std::vector<std::string>& sets) {
  add_set_option(app, sets,
                 "one fact on top, e.g. --set rope.products=f or --set layers.0.post_attention_norm.resid.store=f; may be repeated");
}

/// Adds `probe`; the arguments are shared with the one who runs it.
CLI::App* add_probe_command(CLI::App& numerics, ProbeArguments& a) {
  CLI::App* sub = numerics.add_subcommand("probe", "Where an implementation rounds, told from its outputs; exit code 1 when nothing fits");
  sub->add_option("file", a.file, "recorded outputs and inputs, .safetensors in the format of conformance/regions (docs/probe.md)")
      ->type_name("FILE");
  sub->add_option("--inputs", a.inputs, "the file that holds the inputs, where FILE has outputs alone")->type_name("FILE");
  sub->add_option("--mode", a.mode, "of FILE's modes only this one")->type_name("NAME");
  sub->add_option("--write-inputs", a.write_inputs, "write inputs that tell every choice of sites apart, and end")->type_name("FILE");
  sub->add_option("--library", a.library, "a shared library, called with crafted inputs (or --inputs)")->type_name("FILE");
  sub->add_option("--symbol", a.symbol, "its function, in the C ABI of model/probe/probe_abi.h")->type_name("NAME");
  sub->add_option("--backward", a.backward, "its function that computes gradients")->type_name("NAME");
  sub->add_option("--stream", a.stream, "resid_norm: what the library stores the stream in, bf16 or f32 (bf16)")->type_name("DTYPE");
  sub->add_option("--region", a.region, "of crafted inputs: rope, qk_norm_rope, swiglu or resid_norm")->type_name("NAME");
  add_number(*sub, "--width", a.width, {.low = 1, .high = 65536}, "of crafted inputs: head_dim (64) or columns (256)")->type_name("N");
  add_number(*sub, "--tolerance", a.tolerance, {.low = 0, .high = 5}, "percent of an output's elements that flipped ties may change (0.01)")
      ->type_name("PERCENT");
  add_threads_option(*sub, a.threads);
  sub->add_flag("--json", a.json, "print JSON");
  sub->footer(
      "Examples:\n"
      "  plumb numerics probe recorded.safetensors\n"
      "  plumb numerics probe --region resid_norm --write-inputs in.safetensors\n"
      "  plumb numerics probe out.safetensors --inputs in.safetensors\n"
      "  plumb numerics probe --library ./kernels.so --symbol my_swiglu --region swiglu");
  return sub;
}

}  // namespace

Command add_numerics_command(CLI::App& app) {
  auto a = std::make_shared<NumericsArguments>();
  auto probe = std::make_shared<ProbeArguments>();
  CLI::App* sub =
      app.add_subcommand("numerics",
                         "The rounding presets: list and compare them, see how each fact is known, check them against goldens, probe "
                         "an implementation");
  sub->require_subcommand(1);
  CLI::App* list_app = sub->add_subcommand("list", "All presets");
  CLI::App* show_app = sub->add_subcommand("show", "Every fact of a preset, how it is known, and from where");
  CLI::App* diff_app = sub->add_subcommand("diff", "The facts in which two presets differ");
  CLI::App* probe_app = add_probe_command(*sub, *probe);
  CLI::App* check_app = sub->add_subcommand("check", "Region goldens of a folder under the matching presets; exit code 1 above 0.01 %");
  show_app->add_option("preset", a->a, "name of the preset")->type_name("PRESET")->required();
  add_preset_set_option(*show_app, a->sets);
  diff_app->add_option("a", a->a, "one preset")->type_name("A")->required();
  diff_app->add_option("b", a->b, "the other")->type_name("B")->required();
  add_preset_set_option(*diff_app, a->sets);
  check_app->add_option("folder", a->folder, "folder of .safetensors files in the format of conformance/regions")
      ->type_name("FOLDER")
      ->required();
  for (CLI::App* each : {list_app, show_app, diff_app, check_app}) each->add_flag("--json", a->json, "print JSON");
  sub->footer(
      "Examples:\n"
      "  plumb numerics list\n"
      "  plumb numerics show hf_compiled --set rope.cos_sin_table=b\n"
      "  plumb numerics diff vllm_cpu_compiled hf_eager\n"
      "  plumb numerics check FOLDER\n"
      "  plumb numerics probe FILE\n\n"
      "b: rounded to BF16 there; f: kept in FP32. docs/numerics.md explains the sites. `diff --set` changes B.");
  return {sub, [=] {
            if (list_app->parsed()) return list(*a);
            if (show_app->parsed()) return show(*a);
            if (diff_app->parsed()) return diff(*a);
            if (probe_app->parsed()) return probe_numerics(*probe);
            return check(*a);
          }};
}

}  // namespace plumb
