#include "rl/loop/run_parts.h"

#include <algorithm>

namespace plumb {
namespace {

bool reinforces(const RunConfig& c) { return c.run.algorithm != Algorithm::sft; }

}  // namespace

const SftConfig* supervised_phase(const RunConfig& c) {
  if (!reinforces(c)) return &c.sft;
  return c.warm_start.steps > 0 ? &c.warm_start : nullptr;
}

bool samples(const RunConfig& c) { return reinforces(c) && c.rollout.source == RolloutSource::sampler; }

bool reads_rollouts(const RunConfig& c) { return reinforces(c) && c.rollout.source == RolloutSource::recorded; }

bool has_reference(const RunConfig& c) { return reinforces(c) && c.grpo.kl != KlEstimator::none; }

bool evaluates(const RunConfig& c) {
  const bool from_file = reinforces(c) ? reads_rollouts(c) : !c.sft.data.empty();
  return c.eval.problems > 0 && (!from_file || c.eval.every > 0);
}

std::int64_t held_out_answers(const EvalConfig& c) { return std::int64_t(c.problems) * c.k; }

std::int64_t most_answers(const RunConfig& c) {
  const std::int64_t step = samples(c) ? std::int64_t(c.rollout.prompts) * c.rollout.samples : 0;
  const std::int64_t held_out = evaluates(c) ? held_out_answers(c.eval) : 0;
  const SftConfig* phase = supervised_phase(c);
  const std::int64_t look = phase && phase->stop_reward > 0 ? kStopProblems : 0;
  return std::max({step, held_out, look});
}

}  // namespace plumb
