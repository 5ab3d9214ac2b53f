#include "rl/cli/estimate.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "engine/trainer/model_execution.h"
#include "kernels/core/error.h"
#include "rl/loop/run.h"

namespace plumb {
namespace {

bool samples(const RunConfig& c) { return c.run.algorithm == Algorithm::grpo && c.rollout.source == RolloutSource::sampler; }

/// Forward passes over every trained token of a step, in units of 2 * parameters FLOPs: sampling and old log-probs 1 each, the
/// reference 1, an update 3 (4 with recomputation).
double passes(const RunConfig& c) {
  const double update = c.execution.recompute ? 4 : 3;
  if (c.run.algorithm == Algorithm::sft) return update;
  const bool recomputed = c.grpo.old_logprobs == OldLogprobs::recompute;
  return update * c.grpo.epochs + (samples(c) ? 1 : 0) + (recomputed ? 1 : 0) + (c.grpo.kl != KlEstimator::none ? 1 : 0);
}

/// Memory under the numerics of a step; the largest of all steps counts.
void add_bytes(const RunConfig& c, const ModelSetup& setup, std::int64_t longest, const std::optional<SamplerOptions>& sampler,
               const NumericsSetup& numerics, RunEstimate& e) {
  const auto raise = [](std::size_t& most, std::size_t bytes) { most = std::max(most, bytes); };
  const bool sft = c.run.algorithm == Algorithm::sft;
  raise(e.trainer_bytes, Trainer::memory_bytes(setup.model, numerics.update, c.execution, sft ? c.sft.optimizer : c.optimizer, longest));
  if (sampler) raise(e.sampler_bytes, Sampler::memory_bytes(setup.model, numerics.rollout, model_execution(c.execution), *sampler));
  if (!sft && c.grpo.kl != KlEstimator::none) {
    raise(e.reference_bytes, Scorer::memory_bytes(setup.model, numerics.reference, c.execution, longest) +
                                 Weights::memory_bytes(setup.model, numerics.reference.compute) +
                                 std::size_t(ParameterList(setup.model).flat_size()) * sizeof(float));
  }
  if (numerics.rollout.compute != numerics.update.compute) e.weights_bytes = Weights::memory_bytes(setup.model, numerics.rollout.compute);
}

}  // namespace

RunEstimate estimate_run(const RunConfig& c) {
  const auto task = make_task(c.task, c.run.seed);
  const ModelSetup setup = set_up_model(c, *task);
  check_held_out(c, *task);
  if (samples(c) && task->size(Split::train) == 0) check_alphabet(setup.tokenizer, *task, c.task.name);
  const bool sft = c.run.algorithm == Algorithm::sft;

  const bool warm_start = !sft && c.warm_start.steps > 0;
  ProblemStream problems(*task, c.run.seed);
  std::optional<SftSource> supervised;
  if (sft || warm_start) supervised.emplace(sft ? c.sft : c.warm_start, setup, *task, problems, c.run.seed);
  std::optional<RecordedRollouts> recorded;
  if (c.rollout.source == RolloutSource::recorded && !sft) recorded.emplace(c.rollout.file, setup.model.vocab_size);
  const std::int64_t longest = longest_sequence(c, setup, *task, supervised ? &*supervised : nullptr, recorded ? &*recorded : nullptr);

  RunEstimate e;
  e.parameters = ParameterList(setup.model).parameter_count();
  e.longest_sequence = longest;
  e.answers_per_step = samples(c) ? std::int64_t(c.rollout.prompts) * c.rollout.samples : 0;
  const std::int64_t sequences = sft ? c.sft.batch : std::int64_t(c.rollout.prompts) * c.rollout.samples;
  e.tokens_per_step = sequences * longest;
  e.updates_per_batch = sft ? 1 : std::int64_t(c.grpo.epochs) * c.grpo.mini_batches;
  e.flops_per_step = 2.0 * double(e.parameters) * double(e.tokens_per_step) * passes(c);

  e.saving_bytes = std::size_t(e.parameters) * bytes_of(DType::bf16);
  std::optional<SamplerOptions> sampler;
  if (const std::int64_t answers = most_answers(c); answers > 0) sampler = sampler_sizes(c, task_lengths(c, setup, *task), answers);
  for (std::int64_t step : numerics_steps(c.numerics)) {
    add_bytes(c, setup, longest, sampler, set_up_numerics(c.numerics, step), e);
  }
  return e;
}

std::string describe(const RunEstimate& e) {
  std::string text = fmt::format("parameters {}, longest sequence {} tokens\n", e.parameters, e.longest_sequence);
  if (e.answers_per_step > 0) text += fmt::format("answers per step {}, ", e.answers_per_step);
  text += fmt::format("at most {} tokens per step, {} update{} per batch, at most {:.3g} GFLOP per step\n", e.tokens_per_step,
                      e.updates_per_batch, e.updates_per_batch == 1 ? "" : "s", e.flops_per_step / 1e9);
  text += fmt::format("memory {}: trainer {}", format_bytes(double(e.total_bytes())), format_bytes(double(e.trainer_bytes)));
  if (e.saving_bytes > 0) text += ", saving " + format_bytes(double(e.saving_bytes));
  if (e.sampler_bytes > 0) text += ", sampler " + format_bytes(double(e.sampler_bytes));
  if (e.reference_bytes > 0) text += ", reference " + format_bytes(double(e.reference_bytes));
  if (e.weights_bytes > 0) text += ", second weights " + format_bytes(double(e.weights_bytes));
  return text + "\n";
}

std::string format_bytes(double bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

void check_memory(const RunEstimate& e) {
  const auto machine = std::size_t(::sysconf(_SC_PHYS_PAGES)) * std::size_t(::sysconf(_SC_PAGESIZE));
  if (e.total_bytes() <= machine) return;
  throw UsageError(
      fmt::format("configuration: this run takes {} of memory (trainer {}, sampler {}), but this machine has {}: lower "
                  "execution.micro_batch_tokens, sampler_sequences or prefill_tokens, or take a smaller model",
                  format_bytes(double(e.total_bytes())), format_bytes(double(e.trainer_bytes)), format_bytes(double(e.sampler_bytes)),
                  format_bytes(double(machine))));
}

std::size_t peak_resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return std::size_t(usage.ru_maxrss) * 1024;
}

}  // namespace plumb
