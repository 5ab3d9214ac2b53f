// What a reward is. A task makes problems from a seed (or reads them) and scores answers; the loops know nothing else of it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rl/run_config.h"

namespace plumb {

enum class Split : std::uint8_t { train, held_out };

struct Problem {
  std::string prompt;
  std::string answer;  // the reference answer, EOS not included
};

enum class RewardStatus : std::uint8_t { ok, error };

struct Reward {
  double total = 0;
  std::vector<double> per_token;  // of each response token when the task scores tokens; else empty
  RewardStatus status = RewardStatus::ok;
};

/// `pieces`: the text of each response token in order (EOS gives an empty piece); `finished`: the answer ended with EOS.
class Task {
 public:
  virtual ~Task() = default;
  /// Problem number `index` of a split: a pure function of (seed, split, index). The splits share no problem.
  virtual Problem problem(Split split, std::uint64_t index) const = 0;
  virtual Reward reward(const Problem&, const std::vector<std::string>& pieces, bool finished) const = 0;
  /// Characters that prompts and answers use, in the order of their token ids.
  virtual std::string alphabet() const = 0;
  /// Longest prompt and answer in characters, for sizing (EOS not included).
  virtual int max_prompt_chars() const = 0;
  virtual int max_answer_chars() const = 0;
  /// Problems in a split when they are a finite list read from a file; 0: generated without end.
  virtual std::uint64_t size(Split) const { return 0; }
  /// Different problems in a split, counted no further than `enough`: less than `enough` is all there are.
  virtual std::uint64_t different(Split, std::uint64_t enough) const = 0;
};

/// The one place that knows tasks by name: addition, digit_completion. Throws UsageError naming the nearest task.
std::unique_ptr<Task> make_task(const TaskConfig&, std::uint64_t seed);

}  // namespace plumb
