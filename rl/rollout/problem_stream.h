// Which problems a run sees, by position: numbers 0, 1, 2, ... of a generated task, or endless passes over a list from a file,
// each in a new order. A pure function of (seed, position).
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "engine/data/order.h"
#include "rl/tasks/task.h"

namespace plumb {

class ProblemStream {
 public:
  ProblemStream(const Task&, std::uint64_t seed);
  /// Asked between problems; true: no more are wanted, those so far are returned. May be null.
  using Stop = std::function<bool()>;

  /// Train problems at positions first .. first + count - 1.
  std::vector<Problem> train(std::uint64_t first, std::int64_t count, const Stop& stop = nullptr);
  /// The first `count` held-out problems, all different, or all when there are fewer.
  std::vector<Problem> held_out(std::int64_t count, const Stop& stop = nullptr) const;

 private:
  const Task& task_;
  std::optional<ExampleOrder> order_;  // of a finite list
};

}  // namespace plumb
