#include "rl/rollout/recorded.h"

#include <algorithm>
#include <optional>

#include "engine/data/jsonl.h"

namespace plumb {

namespace {

Rollout rollout_of(RecordedRollout&& line) {
  Rollout r;
  r.tokens = std::move(line.prompt);
  r.prompt_len = std::int64_t(r.tokens.size());
  r.tokens.insert(r.tokens.end(), line.response.begin(), line.response.end());
  r.logprobs = std::move(line.logprobs);
  r.finish = line.finished ? FinishReason::eos : FinishReason::length;
  r.reward.total = line.reward.value_or(0.0);
  r.advantages.assign(line.advantages.begin(), line.advantages.end());
  return r;
}

}  // namespace

RecordedRollouts::RecordedRollouts(const std::filesystem::path& file, std::int64_t vocab_size, std::int64_t max_tokens) {
  std::optional<std::int64_t> last_group;
  for (RecordedRollout& line : read_rollouts_jsonl(file, vocab_size, max_tokens)) {
    if (last_group != line.group) groups_.emplace_back();
    last_group = line.group;
    Rollout r = rollout_of(std::move(line));
    longest_ = std::max(longest_, std::int64_t(r.tokens.size()));
    groups_.back().push_back(std::move(r));
  }
}

RolloutBatch RecordedRollouts::batch(std::uint64_t first, std::int64_t count) const {
  RolloutBatch batch;
  batch.groups = std::uint32_t(count);
  for (std::uint32_t group = 0; group < batch.groups; ++group) {
    for (const Rollout& r : groups_[(first + group) % groups_.size()]) {
      batch.rollouts.push_back(r);
      batch.rollouts.back().group = group;
    }
  }
  return batch;
}

}  // namespace plumb
