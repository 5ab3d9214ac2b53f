// Rollouts from a file, whoever sampled them (engine/data/jsonl.h has the format). Consecutive lines of one group are a group.
#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "rl/rollout/rollout.h"

namespace plumb {

class RecordedRollouts {
 public:
  /// Reads everything. Throws Error with file and line for what is missing or does not fit: ids in the model's vocabulary, at most
  /// max_tokens of prompt and response.
  RecordedRollouts(const std::filesystem::path& file, std::int64_t vocab_size, std::int64_t max_tokens);

  std::int64_t longest() const { return longest_; }  // prompt and response, tokens
  /// The `count` groups from number `first` on, the file read round and round.
  RolloutBatch batch(std::uint64_t first, std::int64_t count) const;

 private:
  std::vector<std::vector<Rollout>> groups_;
  std::int64_t longest_ = 0;
};

}  // namespace plumb
