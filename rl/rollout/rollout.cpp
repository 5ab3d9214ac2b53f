#include "rl/rollout/rollout.h"

#include <algorithm>
#include <cmath>
#include <exception>

namespace plumb {

namespace {

Rollout rollout_of(const std::vector<std::int32_t>& prompt, GeneratedSample&& sample, std::uint32_t group) {
  Rollout r;
  r.tokens = prompt;
  r.tokens.insert(r.tokens.end(), sample.tokens.begin(), sample.tokens.end());
  r.prompt_len = std::int64_t(prompt.size());
  r.logprobs = std::move(sample.logprobs);
  r.argmax = std::move(sample.argmax);
  r.finish = sample.finish;
  r.group = group;
  return r;
}

bool contains(std::span<const std::int32_t> ids, std::int32_t id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

/// The text of each response token; EOS has none.
std::vector<std::string> pieces_of(const Rollout& r, const Tokenizer& tokenizer, std::span<const std::int32_t> eos_ids) {
  std::vector<std::string> pieces;
  for (const std::int32_t id : r.response()) {
    pieces.push_back(contains(eos_ids, id) ? std::string() : std::string(tokenizer.token_bytes(id)));
  }
  return pieces;
}

bool is_finite(const Reward& reward) {
  return std::isfinite(reward.total) &&
         std::all_of(reward.per_token.begin(), reward.per_token.end(), [](double x) { return std::isfinite(x); });
}

Reward reward_or_error(const Task& task, const Problem& problem, const std::vector<std::string>& pieces, bool finished) {
  try {
    Reward reward = task.reward(problem, pieces, finished);
    if (is_finite(reward)) return reward;
  } catch (const std::exception&) {  // one answer that cannot be scored must not end a run: it is counted in a metric
  }
  return {.status = RewardStatus::error};
}

}  // namespace

std::int64_t RolloutBatch::response_tokens() const {
  std::int64_t n = 0;
  for (const Rollout& r : rollouts) n += r.response_len();
  return n;
}

std::int64_t RolloutBatch::prompt_tokens() const {
  std::int64_t n = 0;
  for (std::size_t i = 0; i < rollouts.size(); ++i) {
    if (i == 0 || rollouts[i].group != rollouts[i - 1].group) n += rollouts[i].prompt_len;
  }
  return n;
}

std::vector<std::int32_t> prompt_ids(const Tokenizer& tokenizer, const Problem& problem) { return tokenizer.encode(problem.prompt, true); }

RolloutBatch sample_rollouts(Context& ctx, Sampler& sampler, const Weights& weights, const Tokenizer& tokenizer,
                             std::vector<Problem> problems, const SampleSettings& settings) {
  std::vector<GenerationRequest> requests;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    GenerationRequest request{.prompt = prompt_ids(tokenizer, problems[i]),
                              .key = settings.key,
                              .samples = settings.samples,
                              .max_new_tokens = settings.max_new_tokens,
                              .params = settings.params};
    request.key.draw = std::uint32_t(i);
    requests.push_back(std::move(request));
  }
  std::function<bool(std::int64_t, std::int64_t, std::int64_t)> progress;
  if (settings.stop_requested) {
    progress = [&](std::int64_t, std::int64_t, std::int64_t) { return !settings.stop_requested(); };
  }
  auto answers = sampler.generate(ctx, weights, requests, progress);

  RolloutBatch batch;
  batch.interrupted = sampler.interrupted();
  batch.groups = std::uint32_t(problems.size());
  batch.problems = std::move(problems);
  for (std::uint32_t group = 0; group < batch.groups; ++group) {
    for (GeneratedSample& sample : answers[group]) batch.rollouts.push_back(rollout_of(requests[group].prompt, std::move(sample), group));
  }
  return batch;
}

void score_rewards(const Task& task, const Tokenizer& tokenizer, std::span<const std::int32_t> eos_ids, RolloutBatch& batch) {
  for (Rollout& r : batch.rollouts) {
    r.reward = reward_or_error(task, batch.problems[r.group], pieces_of(r, tokenizer, eos_ids), r.finish == FinishReason::eos);
  }
}

}  // namespace plumb
