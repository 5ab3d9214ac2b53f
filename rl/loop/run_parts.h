// Which parts a run has, by its configuration.
#pragma once
#include <cstdint>

#include "rl/run_config.h"

namespace plumb {

/// The supervised phase: that of the algorithm sft, or the warm start of another. Null: there is none.
const SftConfig* supervised_phase(const RunConfig&);

/// Its steps train on answers that our sampler gives.
bool samples(const RunConfig&);

/// Its steps train on answers from a file.
bool reads_rollouts(const RunConfig&);

/// It keeps the starting weights, for a KL to them.
bool has_reference(const RunConfig&);

/// Held-out evaluation takes place. The task's held-out problems say nothing of a run on data from a file: there it is asked
/// for by eval.every.
bool evaluates(const RunConfig&);

/// Answers of the larger half of an evaluation: it samples eval.k to each problem.
std::int64_t held_out_answers(const EvalConfig&);

/// Answers by which a warm start with a stop_reward looks how far it is.
constexpr int kStopProblems = 128;

/// Answers that are sampled in one go at most: of a step, of an evaluation, of a look at the stop_reward. 0: nothing is sampled.
std::int64_t most_answers(const RunConfig&);

}  // namespace plumb
