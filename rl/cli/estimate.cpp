#include "rl/cli/estimate.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "engine/trainer/model_execution.h"
#include "engine/trainer/scorer.h"
#include "kernels/core/error.h"
#include "rl/loop/run_parts.h"

namespace plumb {
namespace {

/// Forward passes over every trained token of a step, in units of 2 * parameters FLOPs: sampling and old log-probs 1 each, the
/// reference 1, an update 3 (4 with recomputation).
double passes(const RunConfig& c) {
  const double update = c.execution.recompute ? 4 : 3;
  if (c.run.algorithm == Algorithm::sft) return update;
  const bool recomputed = c.grpo.old_logprobs == OldLogprobs::recompute;
  return update * c.grpo.epochs + (samples(c) ? 1 : 0) + (recomputed ? 1 : 0) + (has_reference(c) ? 1 : 0);
}

/// Memory under the numerics of a step; the largest of all steps and of both phases counts.
void add_bytes(const RunInputs& in, const std::optional<SamplerOptions>& sampler, const NumericsSetup& numerics, RunEstimate& e) {
  const RunConfig& c = in.config;
  const ModelConfig& model = in.setup.model;
  const auto raise = [](std::size_t& most, std::size_t bytes) { most = std::max(most, bytes); };
  const auto raise_trainer = [&](const OptimizerConfig& optimizer) {
    raise(e.trainer_bytes, Trainer::memory_bytes(model, numerics.update, c.execution, optimizer, in.longest_sequence));
  };
  if (const SftConfig* phase = supervised_phase(c)) raise_trainer(phase->optimizer);
  if (c.run.algorithm != Algorithm::sft) raise_trainer(c.optimizer);
  if (sampler) raise(e.sampler_bytes, Sampler::memory_bytes(model, numerics.rollout, model_execution(c.execution), *sampler));
  if (has_reference(c)) {
    raise(e.reference_bytes, Scorer::memory_bytes(model, numerics.reference, c.execution, in.longest_sequence) +
                                 Weights::memory_bytes(model, numerics.reference.compute) +
                                 std::size_t(ParameterList(model).flat_size()) * sizeof(float));
  }
  if (numerics.rollout.compute != numerics.update.compute) e.weights_bytes = Weights::memory_bytes(model, numerics.rollout.compute);
}

}  // namespace

RunEstimate estimate_run(const RunInputs& in) {
  const RunConfig& c = in.config;
  const bool sft = c.run.algorithm == Algorithm::sft;
  RunEstimate e;
  e.parameters = ParameterList(in.setup.model).parameter_count();
  e.longest_sequence = in.longest_sequence;
  e.answers_per_step = samples(c) ? std::int64_t(c.rollout.prompts) * c.rollout.samples : 0;
  const std::int64_t sequences = sft ? c.sft.batch : std::int64_t(c.rollout.prompts) * c.rollout.samples;
  e.tokens_per_step = sequences * in.longest_sequence;
  e.updates_per_batch = sft ? 1 : std::int64_t(c.grpo.epochs) * c.grpo.mini_batches;
  e.flops_per_step = 2.0 * double(e.parameters) * double(e.tokens_per_step) * passes(c);

  e.saving_bytes = std::size_t(e.parameters) * bytes_of(DType::bf16);
  std::optional<SamplerOptions> sampler;
  if (const std::int64_t answers = most_answers(c); answers > 0) sampler = sampler_sizes(c, task_lengths(c, in.setup, *in.task), answers);
  for (std::int64_t step : numerics_steps(c.numerics)) add_bytes(in, sampler, set_up_numerics(c.numerics, step), e);
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
