// Everything of a run's loops that changes (the trainer has its own state): one visit serves save and load.
#pragma once
#include <cstdint>

#include "kernels/core/buffer.h"

namespace plumb {

struct RunState {
  std::int64_t warm_start_steps = 0;   // done
  bool warm_start_done = false;        // it reached its reward before its steps were over
  std::int64_t steps = 0;              // of the algorithm, done
  std::uint64_t problems = 0;          // train problems drawn so far: the position in the task's stream
  std::uint64_t examples = 0;          // of the SFT data, drawn so far
  double last_reward = 0;              // mean of the last step
  std::int64_t same_reward_steps = 0;  // steps in a row with that mean
};
template <class V>
void visit_state(V& v, RunState& s) {
  v.value("warm_start_steps", s.warm_start_steps);
  v.value("warm_start_done", s.warm_start_done);
  v.value("steps", s.steps);
  v.value("problems", s.problems);
  v.value("examples", s.examples);
  v.value("last_reward", s.last_reward);
  v.value("same_reward_steps", s.same_reward_steps);
}

/// The frozen starting weights that a KL pulls towards.
struct ReferenceState {
  Buffer master;  // (flat_size) f32
};
template <class V>
void visit_state(V& v, ReferenceState& s) {
  v.buffer("reference/parameters", s.master, std::int64_t(s.master.size() / sizeof(float)), DType::f32);
}

}  // namespace plumb
