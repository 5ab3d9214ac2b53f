#include "rl/loop/grpo_loop.h"

#include <fmt/format.h>

#include "engine/metrics/interrupt.h"
#include "rl/loop/grpo_step.h"

namespace plumb {

namespace {

constexpr int kSameRewardWarning = 20;

class GrpoLoop {
 public:
  explicit GrpoLoop(TrainingRun& run) : run_(run), config_(run.config.grpo) {}

  /// False: interrupted before anything changed.
  bool step(std::int64_t number) {
    metrics_ = {};
    updates_.clear();
    scores_ = {};
    flops_ = 0;
    Stopwatch whole;
    Stopwatch phase;

    if (!sample(number)) return false;
    metrics_.set("time/sample", phase.lap());
    reward();
    metrics_.set("time/reward", phase.lap());
    advantage();
    old_logprobs();
    metrics_.set("time/old", phase.lap());
    update(number);
    metrics_.set("time/update", phase.lap());

    const double seconds = whole.lap();
    metrics_.set("time/total", seconds);
    run_.log_speed(metrics_, seconds, double(batch_.response_tokens()), flops_);
    run_.output.samples(number, batch_, run_.inputs->setup.tokenizer);
    advance(number);
    return true;
  }
  MetricSet& metrics() { return metrics_; }

 private:
  bool sample(std::int64_t number) {
    const RolloutConfig& rollout = run_.config.rollout;
    if (run_.inputs->recorded) {
      batch_ = run_.inputs->recorded->batch(std::uint64_t(number - 1) * std::uint64_t(rollout.prompts), rollout.prompts);
      return true;
    }
    const SamplingConfig& s = run_.config.sampling;
    const SampleSettings settings{.key = {.seed = run_.config.run.seed, .purpose = Purpose::sampling, .step = std::uint32_t(number)},
                                  .samples = rollout.samples,
                                  .max_new_tokens = s.max_new_tokens,
                                  .params = {.temperature = float(s.temperature), .top_k = s.top_k, .top_p = float(s.top_p)},
                                  .stop_requested = interrupt_requested};
    auto problems = run_.inputs->problems.train(run_.state.problems, rollout.prompts, interrupt_requested);
    if (interrupt_requested()) return false;
    batch_ = sample_rollouts(*run_.ctx, *run_.sampler, run_.rollout_weights(), run_.inputs->setup.tokenizer, std::move(problems), settings);
    flops_ += run_.forward_flops(double(batch_.prompt_tokens() + batch_.response_tokens()), double(batch_.response_tokens()));
    return !batch_.interrupted;
  }

  void reward() {
    if (!run_.inputs->recorded) score_rewards(*run_.inputs->task, run_.inputs->setup.tokenizer, run_.inputs->setup.model.eos_ids, batch_);
    report_rewards(batch_, metrics_);
    report_responses(batch_, metrics_);
  }

  void advantage() {
    tokens_ = make_step_tokens(batch_, config_);
    fill_advantages(batch_, config_, tokens_);
  }

  /// The denominator of the ratio. With a single update per batch the trainer's own log-probs are those of its forward.
  void old_logprobs() {
    std::vector<TrainSequence> sequences;
    for (const Rollout& r : batch_.rollouts) sequences.push_back(r.sequence());
    if (run_.reference) {
      tokens_.ref_logprob = run_.reference->score(*run_.ctx, sequences, temperature()).logprob;
      flops_ += forward_flops();
    }
    if (config_.old_logprobs == OldLogprobs::rollout) {
      for (const Rollout& r : batch_.rollouts) tokens_.old_logprob.insert(tokens_.old_logprob.end(), r.logprobs.begin(), r.logprobs.end());
    } else if (config_.epochs * config_.mini_batches > 1) {
      scores_ = run_.trainer->score(*run_.ctx, run_.trainer->weights(), sequences, temperature());
      tokens_.old_logprob = scores_.logprob;
      flops_ += forward_flops();
    }
  }

  void update(std::int64_t number) {
    const UpdateSettings settings{
        .objective = objective_settings(config_),
        .aggregation = config_.aggregation,
        .constant_length = config_.constant_length > 0 ? config_.constant_length : run_.config.sampling.max_new_tokens,
        .temperature = temperature()};
    const auto bounds = mini_batch_bounds(batch_, config_.mini_batches);
    for (int epoch = 0; epoch < config_.epochs; ++epoch) {
      for (std::size_t m = 0; m + 1 < bounds.size(); ++m) {
        const auto sequences = update_sequences(batch_, tokens_, bounds[m], bounds[m + 1] - bounds[m]);
        // The first forward is by the weights that sampled: where nothing was recomputed the mismatch is measured on it.
        TokenScores* scores = updates_.empty() && scores_.logprob.empty() ? &scores_ : nullptr;
        updates_.push_back(policy_update(*run_.ctx, *run_.trainer, sequences, settings, scores));
        run_.log_update(number, updates_.back().step);
      }
    }
    flops_ += 3 * config_.epochs * forward_flops();
    run_.refresh_rollout_weights();
    report_updates(updates_, config_, metrics_);
    report_mismatch(batch_, tokens_, scores_, config_, metrics_);
  }

  /// The position after the step; a reward that never moves is worth a warning.
  void advance(std::int64_t number) {
    RunState& state = run_.state;
    state.steps = number;
    if (!run_.inputs->recorded) state.problems += std::uint64_t(run_.config.rollout.prompts);
    if (!metrics_.find("reward/mean")) return;
    const double reward = metrics_.value("reward/mean");
    state.same_reward_steps = reward == state.last_reward ? state.same_reward_steps + 1 : 1;
    state.last_reward = reward;
    if (state.same_reward_steps % kSameRewardWarning == 0) {
      run_.output.message(fmt::format("step {}: the mean reward has been {} for {} steps", number, reward, state.same_reward_steps));
    }
  }

  float temperature() const { return float(run_.config.sampling.temperature); }

  double forward_flops() const {
    double rows = 0;
    for (const Rollout& r : batch_.rollouts) rows += double(r.tokens.size());
    return run_.forward_flops(rows, double(batch_.response_tokens()));
  }

  TrainingRun& run_;
  const GrpoConfig& config_;
  RolloutBatch batch_;
  StepTokens tokens_;
  TokenScores scores_;  // the trainer's, by the weights that sampled
  std::vector<UpdateResult> updates_;
  MetricSet metrics_;
  double flops_ = 0;
};

}  // namespace

int run_grpo(TrainingRun& run) {
  if (run.state.steps == 0) {
    if (run.reference) run.reference->freeze(*run.ctx, *run.trainer);
    run.evaluate_start();
  }
  GrpoLoop loop(run);
  for (std::int64_t number = run.state.steps + 1; number <= run.config.run.steps; ++number) {
    if (interrupt_requested()) return kInterrupted;
    run.begin_step(number);
    if (!loop.step(number)) return kInterrupted;
    run.evaluate_if_due(number, loop.metrics());
    run.output.step(number, loop.metrics());
    run.save_if_due(number, loop.metrics());
  }
  return 0;
}

}  // namespace plumb
