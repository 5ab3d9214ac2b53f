// Continuous batching: prompts are prefilled once per group, samples join the decode batch as room appears and leave at
// EOS, a stop string or the length limit. What is sampled depends on (seed, purpose, step, draw, sample, position) and the
// prompt only: not on the batch, the order of admission, the chunk of prefill, threads or instruction set.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/core/context.h"
#include "kernels/core/rng.h"
#include "kernels/sampling/sampling.h"
#include "model/kv_cache.h"
#include "model/qwen.h"
#include "model/weights.h"

namespace plumb {

/// One prompt and the samples wanted of it.
struct GenerationRequest {
  std::vector<std::int32_t> prompt;  // at least one token
  RandomKey key;                     // sample i draws token t at (key with sample = first_sample + i, position = t)
  int samples = 1;
  int first_sample = 0;
  int max_new_tokens = 1;
  SamplingParams params;
};

enum class FinishReason : std::uint8_t { eos, stop, length };
const char* name_of(FinishReason);

struct GeneratedSample {
  std::vector<std::int32_t> tokens;  // the EOS that was sampled included
  std::vector<float> logprobs;       // raw, of each token
  std::vector<float> logprobs_kept;  // renormalised over what top-k/top-p kept
  std::vector<std::int32_t> argmax;  // of the logits at each token
  FinishReason finish = FinishReason::length;
};

struct SamplerOptions {
  int max_sequences = 256;             // decoded together at most
  std::int64_t prefill_tokens = 2048;  // prompt rows of one forward at most; a longer prompt is computed in chunks
  std::int64_t kv_positions = 0;       // capacity of the cache; 0: max_sequences * max_positions. A full cache makes requests wait
  std::int64_t max_positions = 0;      // longest prompt + answer
  std::vector<std::int32_t> eos_ids;
  /// Makes the stop-string matcher of one sample: fed its token ids in order, true ends it. Null: no stop strings.
  std::function<std::function<bool(std::int32_t)>()> make_stop_matcher;
};

/// Numerics that depend on a sequence's length are taken without it (without_sequence_end).
class Sampler {
 public:
  Sampler(const ModelConfig&, const Numerics&, const ModelExecution&, const SamplerOptions&);
  ~Sampler();

  /// Results in the order of the requests, samples of a request together: out[i][s]. Throws Error when a prompt with its
  /// answer does not fit max_positions or the cache. `progress(done_samples, total_samples, tokens)` may be null, is called
  /// after every decode step; when it returns false before the end, generation stops, interrupted() is true and the results
  /// are incomplete.
  std::vector<std::vector<GeneratedSample>> generate(
      Context&, const Weights&, std::span<const GenerationRequest>,
      const std::function<bool(std::int64_t, std::int64_t, std::int64_t)>& progress = nullptr);
  bool interrupted() const;
  std::size_t memory_bytes() const;
  static std::size_t memory_bytes(const ModelConfig&, const Numerics&, const ModelExecution&, const SamplerOptions&);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace plumb
