// Supervised examples by position: the task's problems with their answers, or the lines of a JSONL file.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/jsonl.h"
#include "engine/data/order.h"
#include "rl/loop/run_state.h"
#include "rl/loop/session.h"
#include "rl/rollout/problem_stream.h"

namespace plumb {

class SftSource {
 public:
  /// Reads the file, if there is one, at once. Throws Error with file and line.
  SftSource(const SftConfig&, const ModelSetup&, const Task&, ProblemStream&, std::uint64_t seed);
  /// The next `count` examples; advances the position in `state` that belongs to this source.
  std::vector<SftExample> next(RunState& state, std::int64_t count);
  /// Tokens of the longest example there can be.
  std::int64_t longest() const { return longest_; }
  /// For people: what of the file is not used as it stands. Empty: all of it is.
  std::string left_out() const;

 private:
  SftExample example_of(const Problem&) const;

  const ModelSetup& setup_;
  ProblemStream& problems_;
  SftData file_;
  std::optional<ExampleOrder> order_;  // of the file's examples
  std::int64_t longest_ = 0;
};

}  // namespace plumb
