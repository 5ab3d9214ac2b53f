#include "rl/rollout/problem_stream.h"

#include <algorithm>

namespace plumb {

ProblemStream::ProblemStream(const Task& task, std::uint64_t seed) : task_(task) {
  const std::uint64_t n = task.size(Split::train);
  if (n > 0) order_.emplace(seed, std::uint32_t(n), true);
}

std::vector<Problem> ProblemStream::train(std::uint64_t first, std::int64_t count) {
  std::vector<Problem> problems;
  for (std::uint64_t at = first; at < first + std::uint64_t(count); ++at) {
    problems.push_back(task_.problem(Split::train, order_ ? order_->at(at) : at));
  }
  return problems;
}

std::vector<Problem> ProblemStream::held_out(std::int64_t count) const {
  const std::uint64_t there_are = task_.size(Split::held_out);
  const std::uint64_t n = there_are > 0 ? std::min(there_are, std::uint64_t(count)) : std::uint64_t(count);
  std::vector<Problem> problems;
  for (std::uint64_t i = 0; i < n; ++i) problems.push_back(task_.problem(Split::held_out, i));
  return problems;
}

}  // namespace plumb
