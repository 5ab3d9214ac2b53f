#include "rl/loop/train.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "engine/checkpoint/history.h"
#include "engine/config/config.h"
#include "engine/metrics/interrupt.h"
#include "engine/metrics/run_folder.h"
#include "kernels/core/error.h"
#include "rl/cli/commands.h"
#include "rl/cli/estimate.h"
#include "rl/cli/options.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;

struct TrainArguments {
  std::string config;
  std::string out;
  std::string resume;
  std::vector<std::string> sets;
  bool quiet = false;
  bool dry_run = false;
  bool fresh_optimizer = false;
};

/// Refuses to go on with another run's settings.
void refuse_differences(const RunConfig& saved, const RunConfig& wanted, const fs::path& folder) {
  std::string keys;
  for (const ConfigDifference& d : differing_keys(saved, wanted)) {
    if (d.scope == KeyScope::execution) continue;
    keys += fmt::format("{}{} ({} there, {} now)", keys.empty() ? "" : ", ", d.key, d.a, d.b);
  }
  if (keys.empty()) return;
  throw UsageError(
      fmt::format("{}: this run has other settings: {}; only execution, logging, checkpoint, eval.every and run.steps may change on resume",
                  folder.string(), keys));
}

RunConfig config_of(const TrainArguments& a) {
  if (a.resume.empty()) {
    if (a.config.empty()) throw UsageError("train: a configuration file is missing (or --resume and a run folder)");
    return read_run_config(a.config, a.sets);
  }
  const fs::path saved_file = fs::path(a.resume) / "config.yaml";
  std::error_code ignored;
  if (!fs::exists(saved_file, ignored)) throw UsageError(fmt::format("{}: is not a run folder (it has no config.yaml)", a.resume));
  const auto saved = load_config<RunConfig>(saved_file);
  auto wanted = read_run_config(a.config.empty() ? saved_file.string() : a.config, a.sets);
  refuse_differences(saved, wanted, a.resume);
  wanted.run.out = a.resume;
  return wanted;
}

int train(const TrainArguments& a) {
  if (!a.resume.empty() && !a.out.empty())
    throw UsageError("train: --out and --resume exclude each other: a resumed run stays in its folder");
  if (a.fresh_optimizer && a.resume.empty()) throw UsageError("train: --fresh-optimizer is for --resume");
  RunConfig config = config_of(a);
  if (!a.out.empty()) config.run.out = a.out;
  if (config.run.out.empty()) config.run.out = "runs/" + fs::path(a.config).stem().string();
  auto inputs = std::make_unique<RunInputs>(std::move(config));
  const RunEstimate estimate = estimate_run(*inputs);
  if (a.dry_run) {
    fmt::print("{}", describe(estimate));
    return 0;
  }
  check_memory(estimate);
  const RunFolder folder(inputs->config.run.out, a.resume.empty() ? RunFolder::Mode::create : RunFolder::Mode::resume);
  if (!a.resume.empty()) require_checkpoints(folder.path(), load_config<RunConfig>(folder.config_file()).checkpoint);
  folder.write_config(print_config(inputs->config));
  if (!a.quiet) fmt::print("{}", describe(estimate));
  if (!a.quiet) fmt::print("run folder {}\n", folder.path().string());
  std::fflush(stdout);
  install_interrupt_handlers();
  const TrainOptions options{.folder = folder.path(), .resume = !a.resume.empty(), .fresh_optimizer = a.fresh_optimizer, .quiet = a.quiet};
  const int code = run_training(std::move(inputs), options);
  if (!a.quiet) {
    fmt::print("peak memory {} (estimate {})\n", format_bytes(double(peak_resident_bytes())), format_bytes(double(estimate.total_bytes())));
  }
  return code;
}

}  // namespace

Command add_train_command(CLI::App& app) {
  auto a = std::make_shared<TrainArguments>();
  CLI::App* sub = app.add_subcommand("train", "Train a model: supervised fine-tuning or GRPO, as a YAML file says");
  sub->add_option("config", a->config, "configuration of the run (YAML)")->type_name("CONFIG");
  add_set_option(*sub, a->sets);
  sub->add_option("--out", a->out, "run folder: new or empty; default runs/NAME of the file")->type_name("DIR");
  sub->add_option("--resume", a->resume, "continue the run in DIR from its newest whole checkpoint")->type_name("DIR");
  sub->add_flag("--fresh-optimizer", a->fresh_optimizer, "with --resume: start with new optimizer moments, e.g. when their file is lost");
  sub->add_flag("--quiet", a->quiet, "no progress on the terminal; everything is still in the run folder");
  sub->add_flag("--dry-run", a->dry_run, "check the configuration, print sizes, work and memory, and stop");
  sub->footer(
      "Examples:\n"
      "  plumb train configs/runs/addition-grpo.yaml --set run.steps=50 --out runs/a\n"
      "  plumb train --resume runs/a --set run.steps=100\n"
      "  plumb train configs/runs/addition-grpo.yaml --dry-run\n\n"
      "The run folder holds config.yaml (every setting), metrics.jsonl, TensorBoard events, samples.jsonl, log.txt and\n"
      "checkpoints/; latest/model in it is a Hugging Face folder. Ctrl-C saves a checkpoint and exits with 130; a second one\n"
      "exits at once. On --resume only execution, logging, checkpoint, eval.every and run.steps may differ.\n"
      "plumb config CONFIG prints all keys with their meaning.");
  return {sub, [a] { return train(*a); }};
}

}  // namespace plumb
