#include "rl/loop/run_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/core/error.h"
#include "rl/loop/run_parts.h"

namespace plumb {
namespace {

/// Tokens of the longest sequence to train on. Throws UsageError when the model's window is shorter.
std::int64_t longest_of(const RunInputs& in) {
  std::int64_t longest = 2;
  if (in.sft) longest = std::max(longest, in.sft->longest());
  if (in.recorded) longest = std::max(longest, in.recorded->longest());
  if (samples(in.config)) longest = std::max(longest, task_lengths(in.config, in.setup, *in.task).sequence);
  const std::int64_t window = in.setup.model.max_positions;
  if (longest > window) throw UsageError(fmt::format("the longest sequence has {} tokens, but the model's window is {}", longest, window));
  return longest;
}

}  // namespace

RunInputs::RunInputs(RunConfig c)
    : config(std::move(c)),
      task(make_task(config.task, config.run.seed)),
      setup(set_up_model(config, *task)),
      problems(*task, config.run.seed) {
  check_held_out(config, *task);
  if (most_answers(config) > 0 && task->size(Split::train) == 0) check_alphabet(setup.tokenizer, *task, config.task.name);
  if (const SftConfig* phase = supervised_phase(config)) sft.emplace(*phase, setup, *task, problems, config.run.seed);
  if (reads_rollouts(config)) recorded.emplace(config.rollout.file, setup.model.vocab_size, setup.model.max_positions);
  longest_sequence = longest_of(*this);
}

}  // namespace plumb
