#include "rl/loop/evaluate.h"

#include <fmt/format.h>

#include "engine/metrics/interrupt.h"
#include "rl/algorithm/pass_at_k.h"
#include "rl/loop/run_parts.h"
#include "rl/rollout/problem_stream.h"
#include "rl/rollout/rollout.h"

namespace plumb {

namespace {

constexpr double kFullReward = 1.0;

RolloutBatch answer(Context& ctx, Sampler& sampler, const Weights& weights, const Evaluation& e, int samples, double temperature) {
  const SampleSettings settings{.key = {.seed = e.seed, .purpose = Purpose::eval},
                                .samples = samples,
                                .max_new_tokens = e.max_new_tokens,
                                .params = {.temperature = float(temperature)},
                                .stop_requested = e.stop_requested};
  RolloutBatch batch = sample_rollouts(ctx, sampler, weights, e.tokenizer, e.problems, settings);
  if (!batch.interrupted) score_rewards(e.task, e.tokenizer, e.eos_ids, batch);
  return batch;
}

void add_greedy(EvalReport& report, const RolloutBatch& batch) {
  const double n = double(batch.rollouts.size());
  for (const Rollout& r : batch.rollouts) {
    report.greedy += r.reward.total / n;
    report.greedy_correct += (r.reward.total >= kFullReward) / n;
    report.response_length += double(r.response_len()) / n;
    report.truncated_frac += (r.finish == FinishReason::length) / n;
  }
}

void add_sampled(EvalReport& report, const RolloutBatch& batch) {
  std::vector<std::int64_t> right(batch.groups, 0);
  for (const Rollout& r : batch.rollouts) {
    report.avg_at_k += r.reward.total / double(batch.rollouts.size());
    right[r.group] += r.reward.total >= kFullReward;
  }
  for (int k = 1; k <= report.k; ++k) {
    double mean = 0;
    for (const std::int64_t c : right) mean += pass_at_k(report.k, c, k) / double(batch.groups);
    report.pass_at_k.push_back(mean);
  }
}

}  // namespace

MetricSet metrics_of(const EvalReport& report) {
  MetricSet m;
  m.set("eval/greedy", report.greedy);
  m.set("eval/correct", report.greedy_correct);
  m.set("eval/length", report.response_length);
  m.set("eval/truncated_frac", report.truncated_frac);
  if (report.k == 1) return m;
  m.set(fmt::format("eval/avg@{}", report.k), report.avg_at_k);
  for (int k = 1; k < report.k; k *= 2) m.set(fmt::format("eval/pass@{}", k), report.pass_at_k[std::size_t(k) - 1]);
  m.set(fmt::format("eval/pass@{}", report.k), report.pass_at_k.back());
  return m;
}

std::string summary_of(const EvalReport& report) {
  std::string text = fmt::format("held-out: greedy {:.3f}", report.greedy);
  if (report.greedy_correct != report.greedy) text += fmt::format(", right {:.3f}", report.greedy_correct);
  if (report.k > 1) text += fmt::format(", avg@{0} {1:.3f}, pass@{0} {2:.3f}", report.k, report.avg_at_k, report.pass_at_k.back());
  return text + fmt::format(" ({} problems)", report.problems);
}

Evaluation evaluation_of(const RunConfig& config, const Task& task, const ModelSetup& setup, std::vector<Problem> problems,
                         std::function<bool()> stop_requested) {
  return {.config = config.eval,
          .max_new_tokens = config.sampling.max_new_tokens,
          .seed = config.run.seed,
          .task = task,
          .tokenizer = setup.tokenizer,
          .eos_ids = setup.model.eos_ids,
          .problems = std::move(problems),
          .stop_requested = std::move(stop_requested)};
}

EvalReport evaluate(Context& ctx, Sampler& sampler, const Weights& weights, const Evaluation& e) {
  EvalReport report{.problems = std::int64_t(e.problems.size()), .k = e.config.k};
  const RolloutBatch greedy = answer(ctx, sampler, weights, e, 1, 0);
  report.interrupted = greedy.interrupted;
  if (report.interrupted) return report;
  add_greedy(report, greedy);
  if (report.k == 1) return report;
  const RolloutBatch sampled = answer(ctx, sampler, weights, e, report.k, e.config.temperature);
  report.interrupted = sampled.interrupted;
  if (!report.interrupted) add_sampled(report, sampled);
  return report;
}

EvalReport run_evaluation(const RunConfig& config, const std::filesystem::path& folder) {
  const auto task = make_task(config.task, config.run.seed);
  check_held_out(config, *task);
  const ModelSetup setup = set_up_model(config, *task, folder);
  if (task->size(Split::held_out) == 0) check_alphabet(setup.tokenizer, *task, config.task.name);
  const Numerics numerics = set_up_numerics(config.numerics, 0).rollout;
  const auto ctx = make_context(config.execution);
  Weights weights(setup.model, numerics.compute);
  Buffer flat(std::size_t(weights.parameters().flat_size()) * sizeof(float));
  starting_parameters(config, weights.parameters(), setup.model, flat, folder);
  set_weights(*ctx, weights, flat);

  ProblemStream stream(*task, config.run.seed);
  const Evaluation evaluation =
      evaluation_of(config, *task, setup, stream.held_out(config.eval.problems, interrupt_requested), interrupt_requested);
  if (interrupt_requested()) return {.interrupted = true};
  const auto sampler = make_sampler(config, setup, numerics, task_lengths(config, setup, *task), held_out_answers(config.eval));
  return evaluate(*ctx, *sampler, weights, evaluation);
}

}  // namespace plumb
