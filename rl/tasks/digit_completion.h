// `first,second:max,n`: continue the arithmetic sequence modulo `max` for n numbers, comma separated, then EOS.
// "8,3:9,4" has the step 3 - 8 and goes on "7,2,6,1". With n = 0 the answer is EOS alone.
// Reward: leading right characters, EOS included, over length + 1.
#pragma once
#include "rl/tasks/generated_task.h"

namespace plumb {

class DigitCompletion final : public GeneratedTask {
 public:
  /// Throws UsageError for settings out of range.
  DigitCompletion(const TaskConfig&, std::uint64_t seed);

  /// With task.per_token_reward also what each token earned; their sum is the total.
  Reward reward(const Problem&, const std::vector<std::string>& pieces, bool finished) const override;
  std::string alphabet() const override { return "0123456789,:"; }
  std::optional<std::string> solve(std::string_view prompt) const override;

 private:
  Draw draw(const RandomKey& key, std::uint64_t first) const override;
  void each_problem(const std::function<bool(const Identity&)>& visit) const override;
  static Identity identity_of(std::uint64_t max, std::uint64_t terms, std::uint64_t a, std::uint64_t b) {
    return {(max << 32) | terms, (a << 32) | b};
  }
  int longest_prompt() const override;
  int longest_answer() const override;

  int min_modulus_;
  int max_modulus_;
  int min_terms_;
  int max_terms_;
  bool per_token_;
};

}  // namespace plumb
