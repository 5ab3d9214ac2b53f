// What a run reads before anything large is allocated: its task, what is known of its model, its data. Built once: an estimate
// looks at it (rl/cli/estimate.h), and the run that follows owns it.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "rl/loop/session.h"
#include "rl/loop/sft_data.h"
#include "rl/rollout/problem_stream.h"
#include "rl/rollout/recorded.h"
#include "rl/run_config.h"
#include "rl/tasks/task.h"

namespace plumb {

struct RunInputs {
  /// Of a validated configuration (rl/validate_config.h). Throws UsageError when task, model and data do not go together, Error with
  /// file and line for bad data.
  explicit RunInputs(RunConfig);
  RunInputs(const RunInputs&) = delete;  // the parts refer to each other: they stay where they are
  RunInputs& operator=(const RunInputs&) = delete;

  const RunConfig config;
  const std::unique_ptr<const Task> task;
  const ModelSetup setup;
  ProblemStream problems;
  std::optional<SftSource> sft;  // of the algorithm or of the warm start
  std::optional<RecordedRollouts> recorded;
  std::int64_t longest_sequence = 0;  // tokens, of what the run trains on
};

}  // namespace plumb
