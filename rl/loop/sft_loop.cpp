#include "rl/loop/sft_loop.h"

#include <fmt/format.h>

#include "engine/metrics/interrupt.h"
#include "rl/loop/run_parts.h"

namespace plumb {

namespace {

constexpr int kStopInterval = 5;

/// One step and its line of metrics, names prefixed.
MetricSet logged_step(TrainingRun& run, const SftConfig& config, std::int64_t number, const std::string& prefix) {
  Stopwatch watch;
  const auto examples = run.inputs->sft->next(run.state, config.batch);
  const SftStep s = sft_step(*run.ctx, *run.trainer, examples);
  run.refresh_rollout_weights();
  run.log_update(number, s.step);

  MetricSet m;
  m.mean(prefix + "loss", s.loss * double(s.tokens), double(s.tokens));
  m.set(prefix + "entropy", s.entropy);
  m.set(prefix + "grad_norm", s.step.grad_norm);
  m.set(prefix + "lr", s.step.lr);
  if (s.step.loss_scale) m.set(prefix + "loss_scale", *s.step.loss_scale);
  m.set(prefix + "update_ratio", s.step.update_ratio);
  m.sum(prefix + "tokens", double(s.tokens));
  const double seconds = watch.lap();
  double rows = 0;
  for (const SftExample& e : examples) rows += double(e.tokens.size());
  m.set("time/total", seconds);
  run.log_speed(m, seconds, double(s.tokens), 3 * run.forward_flops(rows, double(s.tokens)));
  return m;
}

/// Mean reward of one sampled answer to each of the problems that come next in the stream, which stay where they are.
double reward_of_unseen(TrainingRun& run) {
  const SamplingConfig& s = run.config.sampling;
  const SampleSettings settings{
      .key = {.seed = run.config.run.seed, .purpose = Purpose::eval, .step = std::uint32_t(run.state.warm_start_steps)},
      .max_new_tokens = s.max_new_tokens,
      .params = {.temperature = float(s.temperature), .top_k = s.top_k, .top_p = float(s.top_p)}};
  RolloutBatch batch = sample_rollouts(*run.ctx, *run.sampler, run.rollout_weights(), run.inputs->setup.tokenizer,
                                       run.inputs->problems.train(run.state.problems, kStopProblems), settings);
  score_rewards(*run.inputs->task, run.inputs->setup.tokenizer, run.inputs->setup.model.eos_ids, batch);
  double sum = 0;
  for (const Rollout& r : batch.rollouts) sum += r.reward.total;
  return sum / double(kStopProblems);
}

/// Looks at the reward now and then; true when it is enough.
bool reached_stop_reward(TrainingRun& run, MetricSet& metrics) {
  const double wanted = run.config.warm_start.stop_reward;
  if (wanted <= 0 || run.state.warm_start_steps % kStopInterval != 0) return false;
  const double reward = reward_of_unseen(run);
  metrics.set("warm_start/reward", reward);
  return reward >= wanted;
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
    MetricSet metrics = logged_step(run, config, number, "warm_start/");
    ++run.state.warm_start_steps;
    run.state.warm_start_done = reached_stop_reward(run, metrics);
    run.output.step(number, metrics);
    if (!run.warm_start_left()) run.trainer->reset_optimizer(run.config.optimizer);
  }
  return true;
}

int run_sft(TrainingRun& run) {
  while (run.state.steps < run.config.run.steps) {
    if (interrupt_requested()) return kInterrupted;
    const std::int64_t step = run.state.steps + 1;
    run.begin_step(step);
    MetricSet metrics = logged_step(run, run.config.sft, step, "");
    run.state.steps = step;
    run.evaluate_if_due(step, metrics);
    run.output.step(step, metrics);
    run.save_if_due(step, metrics);
  }
  return 0;
}

}  // namespace plumb
