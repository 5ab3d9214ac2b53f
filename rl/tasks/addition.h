// `a+b=`, or another question, with numbers of `digits` digits: 1 for exactly the digits of the sum and then EOS, else 0.
// Reversed: every number, the sum too, has its least significant digit first. Zero-padded: a and b have `digits` digits and
// the sum one more. 12 + 9 with three digits: "210+900=" and "1200".
#pragma once
#include "rl/tasks/generated_task.h"

namespace plumb {

class Addition final : public GeneratedTask {
 public:
  /// Throws UsageError for settings out of range.
  Addition(const TaskConfig&, std::uint64_t seed);

  Reward reward(const Problem&, const std::vector<std::string>& pieces, bool finished) const override;
  std::string alphabet() const override;
  std::optional<std::string> solve(std::string_view prompt) const override;

 private:
  Draw draw(const RandomKey& key, std::uint64_t first) const override;
  void each_problem(const std::function<bool(const Identity&)>& visit) const override;
  int longest_prompt() const override { return 2 * digits_ + int(before_.size() + between_.size() + after_.size()); }
  int longest_answer() const override { return digits_ + 1; }
  /// a+b and b+a stay together: knowing one is knowing the other.
  static Identity identity_of(std::uint64_t a, std::uint64_t b);
  std::string written(std::uint64_t number) const;
  void read_question(const std::string& question);

  int digits_;
  bool reversed_;
  bool zero_pad_;
  std::string before_;       // the question's text before a
  std::string between_;      // between a and b
  std::string after_;        // behind b
  std::uint64_t limit_ = 1;  // numbers are below
};

}  // namespace plumb
