#include "rl/tasks/task.h"

#include <fmt/format.h>

#include "kernels/core/error.h"
#include "kernels/core/nearest.h"
#include "model/files/files.h"
#include "rl/tasks/addition.h"
#include "rl/tasks/digit_completion.h"

namespace plumb {

std::unique_ptr<Task> make_task(const TaskConfig& config, std::uint64_t seed) {
  if (config.name == "addition") return std::make_unique<Addition>(config, seed);
  if (config.name == "digit_completion") return std::make_unique<DigitCompletion>(config, seed);
  throw UsageError(
      fmt::format("task.name: unknown task {}{}", in_quotes(config.name), suggestion(config.name, {"addition", "digit_completion"})));
}

}  // namespace plumb
