#include "rl/rollout/problem_stream.h"

#include <algorithm>
#include <unordered_set>

namespace plumb {

ProblemStream::ProblemStream(const Task& task, std::uint64_t seed) : task_(task) {
  const std::uint64_t n = task.size(Split::train);
  if (n > 0) order_.emplace(seed, std::uint32_t(n), true);
}

std::vector<Problem> ProblemStream::train(std::uint64_t first, std::int64_t count, const Stop& stop) {
  std::vector<Problem> problems;
  for (std::uint64_t at = first; at < first + std::uint64_t(count); ++at) {
    if (stop && stop()) break;
    problems.push_back(task_.problem(Split::train, order_ ? order_->at(at) : at));
  }
  return problems;
}

std::vector<Problem> ProblemStream::held_out(std::int64_t count, const Stop& stop) const {
  const std::uint64_t n = task_.different(Split::held_out, std::uint64_t(count));
  const bool listed = task_.size(Split::held_out) > 0;
  std::vector<Problem> problems;
  std::unordered_set<std::string> seen;
  for (std::uint64_t i = 0; problems.size() < n; ++i) {
    if (stop && stop()) break;
    Problem problem = task_.problem(Split::held_out, i);
    // A file says what it says; what is drawn comes again now and then.
    if (listed || seen.insert(problem.prompt).second) problems.push_back(std::move(problem));
  }
  return problems;
}

}  // namespace plumb
