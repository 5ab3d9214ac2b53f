#include "rl/loop/run_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/config/config.h"

namespace plumb {

namespace {

std::string problem_text(const RolloutBatch& batch, const Rollout& r, const Tokenizer& tokenizer) {
  if (!batch.problems.empty()) return batch.problems[r.group].prompt;
  return tokenizer.decode(std::span(r.tokens).first(std::size_t(r.prompt_len)));
}

nlohmann::ordered_json sample_json(const RolloutBatch& batch, const Rollout& r, const Tokenizer& tokenizer) {
  nlohmann::ordered_json out;
  out["prompt"] = problem_text(batch, r, tokenizer);
  out["response"] = tokenizer.decode(r.response());
  if (!batch.problems.empty()) out["answer"] = batch.problems[r.group].answer;
  out["reward"] = r.reward.total;
  out["finish"] = name_of(r.finish);
  out["logprobs"] = r.logprobs;
  return out;
}

}  // namespace

RunOutput::RunOutput(const RunConfig& config, const TrainOptions& options, const NumericsSetup& numerics)
    : config_(config),
      config_hash_(config_hash(config)),
      log_(options.folder, {.config_hash = config_hash_,
                            .tensorboard = config.logging.tensorboard,
                            .quiet = options.quiet,
                            .total_steps = config.run.steps}),
      checkpoints_(options.folder, {}, config.checkpoint) {
  set_numerics(numerics);
}

void RunOutput::set_numerics(const NumericsSetup& numerics) {
  const CheckpointIdentity identity{.config_hash = config_hash_,
                                    .rollout_numerics = numerics.rollout.hash(),
                                    .update_numerics = numerics.update.hash(),
                                    .rollout_resolved = numerics.rollout.describe(),
                                    .update_resolved = numerics.update.describe()};
  log_.set_numerics(identity.rollout_numerics, identity.update_numerics);
  checkpoints_.set_identity(identity);
}

void RunOutput::step(std::int64_t step, const MetricSet& metrics) { log_.step(step, metrics); }

void RunOutput::message(const std::string& text) { log_.message(text); }

void RunOutput::samples(std::int64_t step, const RolloutBatch& batch, const Tokenizer& tokenizer) {
  const int every = config_.logging.samples_every;
  if (every == 0 || (step - 1) % every != 0) return;
  const std::size_t n = std::min(batch.rollouts.size(), std::size_t(config_.logging.samples));
  for (std::size_t i = 0; i < n; ++i) log_.sample(step, sample_json(batch, batch.rollouts[i], tokenizer));
}

void RunOutput::save(std::int64_t step, RunState& run, Trainer& trainer, Reference* reference, const Tokenizer& tokenizer,
                     std::optional<double> metric) {
  if (saved_ == step) return;
  const auto fill = [&](CheckpointWriter& writer) {
    writer.save("run", run);
    writer.save("trainer", trainer.state());
    if (reference) writer.save("reference", reference->state());
    const auto folder = writer.model_folder();
    save_hf_model(folder, trainer.parameters(), trainer.model_config(), static_cast<const float*>(trainer.state().master.data()),
                  trainer.numerics().compute);
    tokenizer.save(folder);
  };
  checkpoints_.save(step, fill, metric);
  saved_ = step;
}

std::optional<CheckpointReader> RunOutput::newest_checkpoint(const std::set<std::string>& skip) {
  const CheckpointStore::Found found = checkpoints_.newest(skip);
  for (const std::string& line : found.refused) message(line);
  if (!found.path) return std::nullopt;
  CheckpointReader reader(*found.path, skip);
  if (const int version = reader.manifest().arithmetic_version; version != kArithmeticVersion) {
    message(fmt::format(
        "{} was written by a release that computes other bits (arithmetic version {}, here {}): the run goes on, but not bit for bit",
        reader.path().filename().string(), version, kArithmeticVersion));
  }
  return reader;
}

void RunOutput::continue_after(std::int64_t step) { log_.truncate_after(step); }

}  // namespace plumb
