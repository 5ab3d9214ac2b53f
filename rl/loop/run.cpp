#include "rl/loop/run.h"

#include <fmt/format.h>

#include <utility>

#include "kernels/matmul/peak.h"
#include "rl/loop/run_parts.h"

namespace plumb {
namespace {

constexpr double kPeakProbeSeconds = 5e-4;

const OptimizerConfig& first_optimizer(const RunConfig& c) {
  const SftConfig* phase = supervised_phase(c);
  return phase ? phase->optimizer : c.optimizer;
}

}  // namespace

TrainingRun::TrainingRun(std::unique_ptr<RunInputs> in, const TrainOptions& options)
    : inputs(std::move(in)),
      config(inputs->config),
      numerics(set_up_numerics(config.numerics, 0)),
      ctx(make_context(config.execution)),
      output(config, options, numerics),
      peak_([this] { return measure_peak_flops(*ctx, kPeakProbeSeconds); }) {
  const ModelConfig& model = inputs->setup.model;
  const std::int64_t longest = inputs->longest_sequence;
  trainer = std::make_unique<Trainer>(model, numerics.update, config.execution, first_optimizer(config), longest);
  rollout_weights_ = std::make_unique<RolloutWeights>(*trainer, numerics.rollout);
  if (has_reference(config)) reference = std::make_unique<Reference>(config, model, numerics.reference, longest);
  sampler = new_sampler();
  if (!options.resume || !resume(options.fresh_optimizer)) start();
  if (const std::string text = inputs->sft ? inputs->sft->left_out() : ""; !text.empty()) output.message(text);
  begin_step(state.steps);  // a run resumed behind a change of the schedule
  refresh_rollout_weights();
}

/// Null when nothing is sampled.
std::unique_ptr<Sampler> TrainingRun::new_sampler() const {
  const std::int64_t answers = most_answers(config);
  if (answers == 0) return nullptr;
  return make_sampler(config, inputs->setup, numerics.rollout, task_lengths(config, inputs->setup, *inputs->task), answers);
}

void TrainingRun::begin_step(std::int64_t number) {
  if (config.numerics.schedule.empty()) return;
  const NumericsSetup next = set_up_numerics(config.numerics, number);
  const bool rollout = next.rollout != numerics.rollout;
  const bool update = next.update != numerics.update;
  const bool other_reference = next.reference != numerics.reference;
  numerics = next;
  if (!rollout && !update && !other_reference) return;
  output.set_numerics(numerics);
  if (update) trainer->set_numerics(numerics.update);
  if (other_reference && reference) reference->set_numerics(numerics.reference);
  if (rollout && sampler) {
    sampler.reset();
    sampler = new_sampler();
  }
  output.message(fmt::format("step {}: numerics are now {:016x} (rollout), {:016x} (update)", number, numerics.rollout.hash(),
                             numerics.update.hash()));
}

void TrainingRun::start() {
  starting_parameters(config, trainer->parameters(), inputs->setup.model, trainer->state().master);
  trainer->refresh_weights(*ctx);
}

bool TrainingRun::resume(bool fresh_optimizer) {
  std::set<std::string> skip;
  if (fresh_optimizer) skip.insert("optimizer");
  const auto checkpoint = output.newest_checkpoint(skip);
  const std::int64_t before_anything = -1 - config.warm_start.steps;
  if (!checkpoint) {
    output.continue_after(before_anything);
    output.message(fmt::format("there is no checkpoint yet: the run starts from its beginning{}",
                               fresh_optimizer ? ", where the optimizer is fresh anyway: --fresh-optimizer changes nothing" : ""));
    return false;
  }
  checkpoint->load("run", state);
  if (!warm_start_left() && config.run.algorithm != Algorithm::sft) trainer->reset_optimizer(config.optimizer);
  checkpoint->load("trainer", trainer->state());
  if (fresh_optimizer) trainer->state().optimizer_steps = 0;  // moments of nothing correct their bias from the first step
  trainer->refresh_weights(*ctx);
  if (reference && checkpoint->has("reference")) {
    checkpoint->load("reference", reference->state());
    reference->refresh(*ctx);
  }
  output.continue_after(state.steps > 0 ? state.steps : before_anything + state.warm_start_steps);
  if (state.steps > 0) output.mark_saved(state.steps);
  message_resumed(checkpoint->path().filename().string(), fresh_optimizer);
  return true;
}

void TrainingRun::message_resumed(const std::string& checkpoint, bool fresh_optimizer) {
  if (finished()) {
    output.message(fmt::format("already at step {}, run.steps is {}: nothing to do{}", state.steps, config.run.steps,
                               fresh_optimizer ? " (--fresh-optimizer changes nothing)" : ""));
    return;
  }
  output.message(fmt::format("resumed from {}{}", checkpoint, fresh_optimizer ? " with a fresh optimizer" : ""));
}

EvalReport TrainingRun::evaluate_now() {
  return evaluate(*ctx, *sampler, rollout_weights(),
                  evaluation_of(config, *inputs->task, inputs->setup, inputs->problems.held_out(config.eval.problems)));
}

bool TrainingRun::evaluation_due(std::int64_t step) const {
  return evaluates(config) && (step == 0 || (config.eval.every > 0 && step % config.eval.every == 0));
}

void TrainingRun::evaluate_if_due(std::int64_t step, MetricSet& metrics) {
  if (!evaluation_due(step)) return;
  Stopwatch watch;
  const EvalReport report = evaluate_now();
  metrics.merge(metrics_of(report));
  metrics.set("time/eval", watch.lap());
  output.message(fmt::format("step {}: {}", step, summary_of(report)));
}

void TrainingRun::evaluate_start() {
  MetricSet metrics;
  evaluate_if_due(0, metrics);
  if (!metrics.empty()) output.step(0, metrics);
}

void TrainingRun::evaluate_end() {
  if (!evaluates(config) || evaluation_due(state.steps)) return;
  output.message(fmt::format("step {}: {}", state.steps, summary_of(evaluate_now())));
}

std::optional<double> TrainingRun::best_metric(const MetricSet& metrics) const {
  const Metric* found = config.checkpoint.keep_best.empty() ? nullptr : metrics.find(config.checkpoint.keep_best);
  return found ? std::optional(found->value()) : std::nullopt;
}

void TrainingRun::save_if_due(std::int64_t step, const MetricSet& metrics) {
  const int every = config.checkpoint.save_every;
  if ((every > 0 && step % every == 0) || step == config.run.steps) {
    output.save(step, state, *trainer, reference.get(), inputs->setup.tokenizer, best_metric(metrics));
  }
}

void TrainingRun::save_interrupted() {
  Reference* frozen = state.steps > 0 ? reference.get() : nullptr;
  output.message(fmt::format("interrupted after step {}", state.steps));
  output.set_numerics(set_up_numerics(config.numerics, state.steps));  // not those of the step that was given up
  output.save(state.steps, state, *trainer, frozen, inputs->setup.tokenizer, std::nullopt);
}

void TrainingRun::log_update(std::int64_t step, const StepResult& result) {
  if (!result.skipped) return;
  const std::string scaled = result.loss_scale ? fmt::format(" (loss scale {})", *result.loss_scale) : "";
  output.message(fmt::format("step {}: the gradient of {} is not finite{}: the update was skipped", step, result.nonfinite, scaled));
}

double TrainingRun::forward_flops(double rows, double head_rows) const {
  const ModelConfig& m = inputs->setup.model;
  const double head = double(m.vocab_size) * m.hidden_size;
  const double embedding = m.tied ? head : 2 * head;
  return 2 * (rows * (double(trainer->parameters().parameter_count()) - embedding) + head_rows * head);
}

void TrainingRun::log_speed(MetricSet& metrics, double seconds, double tokens, double flops) {
  metrics.set("time/tokens_per_s", tokens / seconds);
  peak_.probe_if_due(std::chrono::steady_clock::now());
  if (peak_.flops() > 0) metrics.set("time/peak_percent", 100 * flops / seconds / peak_.flops());
}

}  // namespace plumb
