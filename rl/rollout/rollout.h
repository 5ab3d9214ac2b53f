// What was answered to a prompt, with everything that training on it needs: token ids (never text), the sampler's raw
// log-probs, the reward. Rollouts come from our sampler or from a file (recorded.h); a training loop cannot tell.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/sampler/sampler.h"
#include "engine/trainer/trainer.h"
#include "model/tokenizer/tokenizer.h"
#include "rl/tasks/task.h"

namespace plumb {

struct Rollout {
  std::vector<std::int32_t> tokens;  // prompt, then response
  std::int64_t prompt_len = 0;
  std::vector<float> logprobs;       // (response) raw, at the sampling temperature
  std::vector<std::int32_t> argmax;  // (response) of the sampler's logits; empty: not known
  FinishReason finish = FinishReason::eos;
  std::uint32_t group = 0;  // index of the prompt draw within the step
  Reward reward;
  std::vector<double> advantages;  // (response) when the rollout brought its own; else empty

  std::int64_t response_len() const { return std::int64_t(tokens.size()) - prompt_len; }
  std::span<const std::int32_t> response() const { return std::span(tokens).subspan(std::size_t(prompt_len)); }
  TrainSequence sequence() const { return {.tokens = tokens, .prompt_len = prompt_len}; }
};

/// The prompts of a step and their answers, group after group.
struct RolloutBatch {
  std::vector<Problem> problems;  // by group; empty for recorded rollouts
  std::vector<Rollout> rollouts;
  std::uint32_t groups = 0;
  bool interrupted = false;  // sampling was stopped: the rollouts are incomplete
  std::int64_t response_tokens() const;
  std::int64_t prompt_tokens() const;  // each group's prompt once
};

/// How a batch of prompts is answered.
struct SampleSettings {
  RandomKey key;  // draw and sample are filled in
  int samples = 1;
  int max_new_tokens = 1;
  SamplingParams params;
  std::function<bool()> stop_requested;  // may be null
};

/// The ids of a task's prompt, with what the tokenizer puts in front of a sequence (BOS).
std::vector<std::int32_t> prompt_ids(const Tokenizer&, const Problem&);

/// `samples` answers to each problem; rewards are not yet there.
RolloutBatch sample_rollouts(Context&, Sampler&, const Weights&, const Tokenizer&, std::vector<Problem> problems, const SampleSettings&);

/// Asks the task for the reward of every rollout. A reward that throws, or is not finite, has status error and total 0.
void score_rewards(const Task&, const Tokenizer&, std::span<const std::int32_t> eos_ids, RolloutBatch&);

}  // namespace plumb
