#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "engine/config/numerics_facts.h"
#include "engine/metrics/interrupt.h"
#include "engine/metrics/progress.h"
#include "kernels/core/error.h"
#include "model/files/files.h"
#include "rl/cli/commands.h"
#include "rl/cli/options.h"
#include "rl/drift/report.h"
#include "rl/drift/tokens.h"
#include "rl/loop/session.h"

namespace plumb {
namespace {

struct DriftArguments {
  std::string model;
  std::string a;
  std::string b;
  std::string tokens;
  std::string prompts;
  std::string recorded;
  std::string logprobs_key = "logprobs";
  std::string out;
  std::string metric = "abs_logp_diff_mean";
  std::string by = "regions,sites,layers";
  std::int64_t max_tokens = 0;
  int orders = 8;
  std::uint64_t seed = 0;
  int threads = 0;
  double temperature = 1;
  bool explain = false;
  bool no_refine = false;
  bool json = false;
};

void check(const DriftArguments& a) {
  const auto refuse = [](bool wrong, const std::string& what) {
    if (wrong) throw UsageError("drift: " + what);
  };
  const int sources = int(!a.tokens.empty()) + int(!a.prompts.empty()) + int(!a.recorded.empty());
  refuse(sources == 0, "what to compare on is missing: --tokens, --prompts or --recorded");
  refuse(sources > 1, "--tokens, --prompts and --recorded exclude each other");
  refuse(a.recorded.empty() && (a.a.empty() || a.b.empty()), "--a and --b are needed: two presets");
  refuse(a.explain && a.recorded.empty(), "--explain needs --recorded: it is the record that is explained");
  refuse(a.temperature <= 0, fmt::format("--temperature is {}; more than 0 is right", a.temperature));
  refuse(a.max_tokens < 0, fmt::format("--max-tokens is {}; at least 0 (all) is right", a.max_tokens));
}

/// `{preset: hf_eager, rope.products: f}`: the keys of a configuration's numerics.
Numerics numerics_of_map(const std::string& text) {
  ConfigNode map = parse_yaml(text, "drift: " + text);
  const auto named = std::find_if(map.entries.begin(), map.entries.end(), [](const auto& e) { return e.key == "preset"; });
  if (named == map.entries.end()) throw UsageError(fmt::format("drift: {}: the key preset is missing", in_quotes(text)));
  Numerics n = preset(named->value.text);
  map.entries.erase(named);
  apply_numerics(map, n);
  n.preset = text;
  return n;
}

/// A preset, `hf_eager,rope.products=f,reductions.matmul=natural`, or a map.
Numerics numerics_of(const std::string& text) {
  if (text.starts_with('{')) return numerics_of_map(text);
  std::size_t comma = std::min(text.find(','), text.size());
  Numerics n = preset(text.substr(0, comma));
  while (comma < text.size()) {
    const std::size_t begin = comma + 1;
    comma = std::min(text.find(',', begin), text.size());
    const std::string assignment = text.substr(begin, comma - begin);
    const std::size_t equals = assignment.find('=');
    if (equals == std::string::npos) {
      throw UsageError(
          fmt::format("drift: {} in {}: KEY=VALUE is right, as in hf_eager,rope.products=f", in_quotes(assignment), in_quotes(text)));
    }
    apply_numerics(parse_yaml(fmt::format("{}: {}", assignment.substr(0, equals), assignment.substr(equals + 1)), "drift: " + text), n);
    n.preset += "," + assignment;
  }
  return n;
}

std::vector<PlayersBy> players_of(const std::string& text) {
  std::vector<PlayersBy> out;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    begin = end + 1;
    bool known = word == "none";
    for (const auto& [by, name] : enum_names(PlayersBy{})) {
      if (word != name) continue;
      known = true;
      out.push_back(by);
    }
    if (!known) throw UsageError(fmt::format("drift: --by {}: regions, sites, layers or none are right", in_quotes(word)));
  }
  return out;
}

/// What is computed, how far it is and how long it will take, on standard error: one line that redraws itself on a terminal, a line
/// every few seconds elsewhere.
class Counter {
 public:
  void show(const std::string& what, std::int64_t done, std::int64_t total) {
    const auto now = Clock::now();
    if (what != what_) {
      what_ = what;
      start_ = shown_ = now;
    }
    if (now - shown_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(5000))) return;
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    std::string text = fmt::format("{} {}/{}", what, done, total);
    if (done > 1 && done < total) text += "  ETA " + format_duration(seconds / double(done) * double(total - done));
    fmt::print(stderr, "{}{}{}", terminal_ ? "\r\x1b[K" : "", text, terminal_ ? "" : "\n");
    open_ = terminal_;
  }
  void clear() {
    if (open_) fmt::print(stderr, "\r\x1b[K");
    open_ = false;
  }

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool open_ = false;
  std::string what_;
  Clock::time_point start_{};
  Clock::time_point shown_{};
};

DriftTokens read_input(const DriftArguments& a, const ModelConfig& model) {
  if (!a.tokens.empty()) return read_token_file(a.tokens, model);
  if (!a.prompts.empty()) return read_prompts(a.prompts, a.model, model);
  return read_recorded(a.recorded, model, a.logprobs_key);
}

void write_report(const DriftArguments& a, const DriftReport& report, const ModelConfig& config, const Evaluator& evaluator) {
  const std::filesystem::path folder = a.out;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw Error(fmt::format("{}: the folder cannot be made: {}", folder.string(), error.message()));
  write_file(folder / "drift.json", drift_json(report, config).dump(1) + "\n");
  write_file(folder / "tokens.jsonl", drift_tokens_jsonl(report, evaluator.sequences()));
  write_file(folder / "drift.html", drift_html(report, config));
}

/// The record alone: who made it.
int explain_only(const DriftArguments& a, const Forensics& forensics) {
  if (a.json) {
    fmt::print("{}\n", forensics_json(forensics).dump(1));
  } else {
    fmt::print("{}", forensics_table(forensics));
  }
  if (!a.out.empty()) {
    std::filesystem::create_directories(a.out);
    write_file(std::filesystem::path(a.out) / "forensics.json", forensics_json(forensics).dump(1) + "\n");
  }
  return 0;
}

int run_drift(const DriftArguments& a) {
  const ModelConfig config = read_hf_config(a.model);
  const DriftTokens tokens = read_input(a, config);
  const std::vector<PlayersBy> by = players_of(a.by);
  Numerics from = numerics_of(a.a.empty() ? "fused" : a.a);
  const auto ctx = make_context(ExecutionConfig{.threads = a.threads});
  DriftModel model(*ctx, config, load_hf_parameters(a.model, ParameterList(config), config));
  Evaluator evaluator(model, tokens.sequences(a.max_tokens), float(a.temperature), [] { return !interrupt_requested(); });

  Counter counter;
  Record record;
  std::optional<Forensics> forensics;
  if (!a.recorded.empty()) {
    const auto n = std::size_t(evaluator.tokens());
    record.logprob.assign(tokens.recorded.begin(), tokens.recorded.begin() + std::ptrdiff_t(n));
    record.tolerance = recording_tolerance(record.logprob, tokens.quantum, config.vocab_size);
    if (a.explain || a.b.empty()) {
      forensics = explain_recorded(evaluator, record.logprob, record.tolerance, {.refine = !a.no_refine},
                                   [&](std::int64_t done, std::int64_t total) { counter.show("candidates", done, total); });
      counter.clear();
    }
    if (a.explain) return explain_only(a, *forensics);
  }
  const Numerics to = a.b.empty() ? forensics->ranking.front().numerics : numerics_of(a.b);
  const DriftOptions options{.metric = a.metric, .attribute_by = by, .attribution = {.orders = a.orders, .seed = a.seed}};
  DriftReport report = explain_drift(evaluator, from, to, a.recorded.empty() ? nullptr : &record, options,
                                     [&](const char* what, std::int64_t done, std::int64_t total) { counter.show(what, done, total); });
  counter.clear();
  report.model = a.model;
  report.forensics = std::move(forensics);
  if (a.json) {
    fmt::print("{}\n", drift_json(report, config).dump(1));
  } else {
    if (report.forensics) fmt::print("{}\n", report.forensics->sentence);
    fmt::print("{}", drift_table(report, config));
  }
  if (!a.out.empty()) write_report(a, report, config, evaluator);
  return 0;
}

int drift(const DriftArguments& a) {
  check(a);
  install_interrupt_handlers();
  try {
    return run_drift(a);
  } catch (const DriftInterrupted&) {
    fmt::print(stderr, "plumb: drift: interrupted; nothing was written\n");
    return kInterrupted;
  }
}

}  // namespace

Command add_drift_command(CLI::App& app) {
  auto a = std::make_shared<DriftArguments>();
  CLI::App* sub = app.add_subcommand("drift", "Explain the mismatch between two numerics, or between a model and recorded log-probs");
  sub->add_option("--model", a->model, "Hugging Face folder")->type_name("DIR")->required();
  sub->add_option(
         "--a", a->a,
         "numerics to start from (the trainer's): a preset, with changes as in hf_eager,rope.products=f; with --recorded default fused")
      ->type_name("PRESET");
  sub->add_option("--b", a->b, "numerics to explain (the sampler's); with --recorded default the preset that fits the record best")
      ->type_name("PRESET");
  sub->add_option("--tokens", a->tokens, "safetensors file with `ids` (I64 [B, T])")->type_name("IN");
  sub->add_option("--prompts", a->prompts, "text file, one prompt a line")->type_name("FILE");
  sub->add_option("--recorded", a->recorded,
                  "JSONL with prompt_ids, response_ids, logprobs as another engine reported them; or safetensors with ids and log-probs")
      ->type_name("FILE");
  sub->add_option("--logprobs-key", a->logprobs_key, "key of the record's log-probs; default logprobs")->type_name("KEY");
  sub->add_flag("--explain", a->explain, "only find which preset made the record");
  sub->add_flag("--no-refine", a->no_refine, "do not try changes of single sites and reductions where no preset fits");
  sub->add_option("--metric", a->metric, "what is attributed: a mismatch metric, default abs_logp_diff_mean")->type_name("NAME");
  sub->add_option("--by", a->by, "what it is attributed to: any of regions,sites,layers, or none; default all three")->type_name("LIST");
  add_number(*sub, "--orders", a->orders, {.low = 4}, "sampled orders where there are too many players for an exact value; default 8")
      ->type_name("N");
  add_number(*sub, "--seed", a->seed, {}, "of the sampled orders")->type_name("S");
  sub->add_option("--max-tokens", a->max_tokens, "compare on the first so many response tokens; 0: all")->type_name("N");
  sub->add_option("--temperature", a->temperature, "divides the logits; default 1")->type_name("T");
  add_threads_option(*sub, a->threads);
  sub->add_option("--out", a->out, "folder for drift.json, tokens.jsonl and drift.html (one page with plots)")->type_name("DIR");
  sub->add_flag("--json", a->json, "print JSON instead of tables");
  sub->footer(
      "Examples:\n"
      "  plumb drift --model DIR --a hf_eager --b vllm_cpu_compiled --tokens in.safetensors --out drift\n"
      "  plumb drift --model DIR --a hf_eager --recorded rollouts.jsonl --out drift\n"
      "  plumb drift --model DIR --recorded rollouts.jsonl --explain\n\n"
      "Log-probs are those of the next token; a difference is B - A. docs/drift.md explains the tables.");
  return {sub, [a] { return drift(*a); }};
}

}  // namespace plumb
