// What the tasks share: problems that are generated without end, or listed in files.
#pragma once
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/rng.h"
#include "rl/tasks/task.h"

namespace plumb {

class GeneratedTask : public Task {
 public:
  Problem problem(Split split, std::uint64_t index) const final;
  std::uint64_t size(Split split) const final { return listed(split).size(); }
  std::uint64_t different(Split split, std::uint64_t enough) const final;
  int max_prompt_chars() const final;
  int max_answer_chars() const final;

  /// The answer to a prompt of this task; nothing when it is not one.
  virtual std::optional<std::string> solve(std::string_view prompt) const = 0;

 protected:
  explicit GeneratedTask(std::uint64_t seed) : seed_(seed) {}
  /// Reads both files when they are set. Throws UsageError when only one is, Error with file and line for bad lines.
  void read_files(const TaskConfig& config);

  /// What a problem is made of: the same for all problems that must stay in one split together.
  using Identity = std::array<std::uint64_t, 2>;
  struct Draw {
    std::string prompt;
    Identity identity;
  };
  /// A problem from the random numbers of `key` at positions first, first + 1, ... (at most 8).
  virtual Draw draw(const RandomKey& key, std::uint64_t first) const = 0;
  /// Calls `visit` for every problem there is, each once, until it returns false.
  virtual void each_problem(const std::function<bool(const Identity&)>& visit) const = 0;
  virtual int longest_prompt() const = 0;
  virtual int longest_answer() const = 0;

 private:
  const std::vector<Problem>& listed(Split split) const { return split == Split::train ? train_ : held_out_; }

  std::uint64_t seed_;
  std::vector<Problem> train_;
  std::vector<Problem> held_out_;
};

/// Lines {"prompt", "answer"}; the prompt is text or a chat of one message. Without an answer `task` solves the prompt.
std::vector<Problem> read_problems(const std::string& file, const GeneratedTask& task);

/// Leading characters of a response that are right, and what each piece contributes; EOS counts as a character.
struct LeadingRight {
  int total = 0;
  std::vector<int> per_piece;
};
LeadingRight leading_right(std::string_view answer, const std::vector<std::string>& pieces, bool finished);

}  // namespace plumb
