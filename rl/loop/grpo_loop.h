// GRPO (arXiv 2402.03300): sample, reward, advantage, old log-probs, update, evaluate, save. Formulas: rl/algorithm.
#pragma once
#include "rl/loop/run.h"

namespace plumb {

/// From the run's step to run.steps. Returns 0, or 130 when interrupted.
int run_grpo(TrainingRun&);

}  // namespace plumb
