// Supervised fine-tuning: the algorithm `sft`, and the warm start before another algorithm.
#pragma once
#include "rl/loop/run.h"

namespace plumb {

struct SftStep {
  double loss = 0;     // mean negative log-likelihood over the trained tokens
  double entropy = 0;  // mean
  std::int64_t tokens = 0;
  StepResult step;
};
/// One optimizer step on the token mean of the negative log-likelihood.
SftStep sft_step(Context&, Trainer&, std::span<const SftExample>);

/// warm_start.steps steps with their own optimizer, then a fresh optimizer for what follows. False: interrupted.
bool run_warm_start(TrainingRun&);
/// run.steps steps. Returns 0, or 130 when interrupted.
int run_sft(TrainingRun&);

}  // namespace plumb
