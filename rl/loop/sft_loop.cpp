#include "rl/loop/sft_loop.h"

#include <fmt/format.h>

#include "engine/metrics/interrupt.h"

namespace plumb {

namespace {

constexpr int kInterrupted = 130;

/// One step and its line of metrics, names prefixed.
MetricSet logged_step(TrainingRun& run, const SftConfig& config, std::int64_t number, const std::string& prefix) {
  Stopwatch watch;
  const auto examples = run.sft_source->next(run.state, config.batch);
  const SftStep s = sft_step(*run.ctx, *run.trainer, examples);
  run.refresh_rollout_weights();
  run.log_update(number, s.step);

  MetricSet m;
  m.mean(prefix + "loss", s.loss * double(s.tokens), double(s.tokens));
  m.set(prefix + "entropy", s.entropy);
  m.set(prefix + "grad_norm", s.step.grad_norm);
  m.set(prefix + "lr", s.step.lr);
  m.set(prefix + "update_ratio", s.step.update_ratio);
  m.sum(prefix + "tokens", double(s.tokens));
  const double seconds = watch.lap();
  double rows = 0;
  for (const SftExample& e : examples) rows += double(e.tokens.size());
  m.set("time/total", seconds);
  run.log_speed(m, seconds, double(s.tokens), 3 * run.forward_flops(rows, double(s.tokens)));
  return m;
}

}  // namespace

SftStep sft_step(Context& ctx, Trainer& trainer, std::span<const SftExample> examples) {
  std::vector<TrainSequence> sequences;
  SftStep result;
  for (const SftExample& e : examples) {
    sequences.push_back({.tokens = e.tokens, .prompt_len = e.prompt_len});
    result.tokens += sequences.back().response_len();
  }
  const float gradient = float(-1.0 / double(result.tokens));
  trainer.accumulate(ctx, sequences, 1.0f,
                     [&](std::size_t, std::size_t, std::span<const float> logprob, std::span<const float> entropy,
                         std::span<const std::int32_t>, std::span<float> d_logprob, std::span<float> d_entropy) {
                       for (std::size_t i = 0; i < logprob.size(); ++i) {
                         result.loss -= logprob[i];
                         result.entropy += entropy[i];
                         d_logprob[i] = gradient;
                         d_entropy[i] = 0;
                       }
                     });
  result.loss /= double(result.tokens);
  result.entropy /= double(result.tokens);
  result.step = trainer.step(ctx);
  return result;
}

bool run_warm_start(TrainingRun& run) {
  const SftConfig& config = run.config.warm_start;
  while (run.warm_start_left()) {
    if (interrupt_requested()) return false;
    const std::int64_t number = run.state.warm_start_steps - config.steps;
    const MetricSet metrics = logged_step(run, config, number, "warm_start/");
    ++run.state.warm_start_steps;
    run.output.step(number, metrics);
    if (!run.warm_start_left()) run.trainer->reset_optimizer(run.config.optimizer);
  }
  return true;
}

int run_sft(TrainingRun& run) {
  while (run.state.steps < run.config.run.steps) {
    if (interrupt_requested()) return kInterrupted;
    const std::int64_t step = run.state.steps + 1;
    MetricSet metrics = logged_step(run, run.config.sft, step, "");
    run.state.steps = step;
    run.evaluate_if_due(step, metrics);
    run.output.step(step, metrics);
    run.save_if_due(step, metrics);
  }
  return 0;
}

}  // namespace plumb
