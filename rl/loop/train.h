// A training run from its configuration: what the command line starts.
#pragma once
#include <filesystem>
#include <memory>

#include "rl/loop/run_inputs.h"

namespace plumb {

struct TrainOptions {
  std::filesystem::path folder;  // the run folder: exists, is locked and holds config.yaml
  bool resume = false;           // continue from the newest whole checkpoint in `folder`; from the start when there is none
  bool fresh_optimizer = false;  // resume without the optimizer's moments
  bool quiet = false;            // no progress on the terminal
};

/// Trains to the configured number of steps: metrics, samples and checkpoints go to the folder. Returns 0 when done, 130 when
/// interrupted (interrupt_requested()), after a checkpoint. Throws Error for what fails on the way.
///
/// Steps are counted from 1. Those of a warm start have the numbers up to 0 and metrics of their own (warm_start/...), so that
/// step 1 is the first of the algorithm whatever came before it.
int run_training(std::unique_ptr<RunInputs>, const TrainOptions&);

}  // namespace plumb
