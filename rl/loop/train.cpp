#include "rl/loop/train.h"

#include <utility>

#include "engine/metrics/interrupt.h"
#include "rl/loop/grpo_loop.h"
#include "rl/loop/run.h"
#include "rl/loop/sft_loop.h"

namespace plumb {

namespace {

int run_algorithm(TrainingRun& run) {
  switch (run.config.run.algorithm) {
    case Algorithm::sft: return run_sft(run);
    case Algorithm::grpo: return run_warm_start(run) ? run_grpo(run) : kInterrupted;
  }
  return 0;
}

}  // namespace

int run_training(std::unique_ptr<RunInputs> inputs, const TrainOptions& options) {
  TrainingRun run(std::move(inputs), options);
  if (options.resume && run.finished()) return 0;
  const int code = run_algorithm(run);
  if (code == kInterrupted) {
    run.save_interrupted();
    return code;
  }
  run.evaluate_end();
  return code;
}

}  // namespace plumb
