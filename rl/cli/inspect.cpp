#include <fmt/format.h>

#include <memory>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/history.h"
#include "engine/config/config.h"
#include "kernels/core/error.h"
#include "model/config.h"
#include "model/safetensors/safetensors.h"
#include "model/tokenizer/tokenizer.h"
#include "rl/cli/commands.h"
#include "rl/cli/estimate.h"
#include "rl/run_config.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;

bool has(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// 0 when all is well. Throws Error for the first fault of a model.
int inspect_model(const fs::path& folder) {
  const ModelConfig model = read_hf_config(folder);
  const ParameterList parameters(model);
  fmt::print("{}: a {} model of {} parameters\n", folder.string(), name_of(model.family), parameters.parameter_count());
  fmt::print("  vocabulary {}, width {}, feed-forward {}, layers {}, heads {} of {}, kv heads {}, window {}, {} head\n", model.vocab_size,
             model.hidden_size, model.intermediate_size, model.layers, model.heads, model.head_dim, model.kv_heads, model.max_positions,
             model.tied ? "tied" : "separate");
  const ShardedSafetensors weights(folder);
  std::size_t bytes = 0;
  for (const std::string& name : weights.names()) bytes += weights.get(name).data.size();
  for (const Parameter& p : parameters.all()) {
    const StoredTensor& t = weights.get(p.name);
    if (t.elements() != p.size())
      throw Error(fmt::format("{}: {} is {}; the configuration asks for {} elements", folder.string(), p.name, describe(t), p.size()));
  }
  fmt::print("  weights: {} tensors in {} file{}, {}\n", weights.names().size(), weights.files().size(),
             weights.files().size() == 1 ? "" : "s", format_bytes(double(bytes)));
  if (Tokenizer::present(folder)) {
    fmt::print("  tokenizer: {} tokens\n", Tokenizer::load(folder).vocab_size());
  } else {
    fmt::print("  no tokenizer\n");
  }
  return 0;
}

int inspect_checkpoint(const fs::path& folder) {
  const CheckpointManifest manifest = read_manifest(folder);
  fmt::print("{}: checkpoint after step {}\n", folder.string(), manifest.step);
  fmt::print("  config {}, numerics {} (rollout) {} (update), arithmetic version {}{}\n", hash_text(manifest.identity.config_hash),
             hash_text(manifest.identity.rollout_numerics), hash_text(manifest.identity.update_numerics), manifest.arithmetic_version,
             manifest.arithmetic_version == kArithmeticVersion ? "" : fmt::format("; this release has {}", kArithmeticVersion));
  if (!manifest.metric.empty()) fmt::print("  {} {}\n", manifest.metric, manifest.metric_value);
  for (const auto& [name, file] : manifest.files)
    fmt::print("  {:<36} {:>12}  crc32 {:08x}\n", name, format_bytes(double(file.size)), file.crc32);
  const auto faults = check_checkpoint(folder);
  for (const std::string& fault : faults) fmt::print("  DAMAGED {}\n", fault);
  fmt::print("  {}\n", faults.empty() ? "whole" : "damaged");
  if (!faults.empty()) throw Error("damaged checkpoint: " + faults[0]);
  return 0;
}

int inspect_run(const fs::path& folder) {
  const auto config = load_config<RunConfig>(folder / "config.yaml");
  fmt::print("{}: a run, config {}\n", folder.string(), hash_text(config_hash(config)));
  fmt::print("  {} on {}, {} steps, seed {}\n", value_json(config.run.algorithm).get<std::string>(), config.task.name, config.run.steps,
             config.run.seed);
  std::string damaged;
  std::map<std::string, fs::path> checkpoints;
  if (has(folder / "checkpoints")) {
    for (const auto& entry : fs::directory_iterator(folder / "checkpoints")) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("step-")) checkpoints[name] = entry.path();
    }
  }
  for (const auto& [name, path] : checkpoints) {
    std::string state = "whole";
    try {
      if (const auto faults = check_checkpoint(path); !faults.empty()) state = "damaged: " + faults[0];
    } catch (const Error& error) {
      state = std::string("damaged: ") + error.what();
    }
    fmt::print("  {} {}\n", name, state);
    if (state != "whole" && damaged.empty()) damaged = state;
  }
  require_checkpoints(folder, config.checkpoint);
  if (checkpoints.empty()) fmt::print("  no checkpoint yet\n");
  if (!damaged.empty()) throw Error(damaged);
  return 0;
}

int inspect_tensors(const fs::path& path) {
  const SafetensorsFile file(path);
  fmt::print("{}: {} tensors\n", path.string(), file.tensors().size());
  for (const StoredTensor& tensor : file.tensors()) fmt::print("  {:<52} {}\n", tensor.name, describe(tensor));
  return 0;
}

int inspect(const fs::path& path) {
  if (!has(path)) throw Error(fmt::format("{}: there is nothing there", path.string()));
  if (path.extension() == ".safetensors") return inspect_tensors(path);
  if (has(path / "manifest.json") || path.filename().string().starts_with("step-")) return inspect_checkpoint(path);
  if (has(path / "config.json")) return inspect_model(path);
  if (has(path / "config.yaml")) return inspect_run(path);
  throw Error(
      fmt::format("{}: neither a model folder (config.json), a checkpoint (manifest.json), a run (config.yaml) nor a .safetensors file",
                  path.string()));
}

}  // namespace

Command add_inspect_command(CLI::App& app) {
  auto path = std::make_shared<std::string>();
  CLI::App* sub =
      app.add_subcommand("inspect", "Say what a model folder, checkpoint, run or safetensors file holds, and whether it is whole");
  sub->add_option("path", *path, "what to look at")->type_name("PATH")->required();
  sub->footer(
      "Examples:\n  plumb inspect runs/a\n  plumb inspect runs/a/latest\n  plumb inspect runs/a/latest/model\n\nExits with 1 when "
      "something is damaged or missing.");
  return {sub, [path] { return inspect(*path); }};
}

}  // namespace plumb
