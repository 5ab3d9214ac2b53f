// What a configuration amounts to, before anything large is allocated: sizes, work per step, memory.
#pragma once
#include <cstdint>
#include <string>

#include "rl/loop/run_inputs.h"

namespace plumb {

struct RunEstimate {
  std::int64_t parameters = 0;
  std::int64_t longest_sequence = 0;  // tokens, of what the run trains on
  std::int64_t answers_per_step = 0;  // 0: nothing is sampled
  std::int64_t tokens_per_step = 0;   // at most: prompts and answers that a step trains on
  std::int64_t updates_per_batch = 1;
  double flops_per_step = 0;  // matmuls of sampling, scoring and training, at the most tokens
  std::size_t trainer_bytes = 0;
  std::size_t sampler_bytes = 0;
  std::size_t reference_bytes = 0;
  std::size_t weights_bytes = 0;  // a second copy of the weights, when the sides' storage differs
  std::size_t saving_bytes = 0;   // the BF16 copy that a checkpoint's model is written from
  std::size_t total_bytes() const { return trainer_bytes + saving_bytes + sampler_bytes + reference_bytes + weights_bytes; }
};

/// Throws UsageError when the run does not fit its settings of Execution (micro batch, sampler).
RunEstimate estimate_run(const RunInputs&);
/// A few lines for people.
std::string describe(const RunEstimate&);

/// "1.5 GiB", "512 KiB".
std::string format_bytes(double bytes);
/// Throws UsageError when the run needs more memory than this machine has.
void check_memory(const RunEstimate&);
/// Most memory this process has had resident, in bytes.
std::size_t peak_resident_bytes();

}  // namespace plumb
