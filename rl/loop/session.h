// The parts of a run, built from its configuration: tokenizer, model, task, trainer, sampler.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>

#include "engine/sampler/sampler.h"
#include "engine/trainer/scorer.h"
#include "engine/trainer/trainer.h"
#include "kernels/core/context.h"
#include "model/tokenizer/tokenizer.h"
#include "rl/loop/run_state.h"
#include "rl/run_config.h"
#include "rl/tasks/task.h"

namespace plumb {

/// What is known of the model before any of its memory is allocated.
struct ModelSetup {
  Tokenizer tokenizer;
  ModelConfig model;  // vocabulary and EOS filled in from the tokenizer where the model leaves them open
};

/// A Hugging Face folder, or configs/models with the tokenizer of `model.tokenizer` or of the task's characters.
/// `folder` overrides model.path unless it is empty. Throws UsageError when tokenizer and model do not fit.
ModelSetup set_up_model(const RunConfig&, const Task&, const std::filesystem::path& folder = {});

/// Sets a buffer of zeros to the FP32 parameters that the run starts from: the folder's, or the seeded random ones.
void starting_parameters(const RunConfig&, const ParameterList&, const ModelConfig&, Buffer& flat,
                         const std::filesystem::path& folder = {});

struct NumericsSetup {
  Numerics rollout;
  Numerics update;
  Numerics reference;
};
/// What each side computes at a step (1-based; 0: before the first).
NumericsSetup set_up_numerics(const NumericsSection&, std::int64_t step);

/// The context that execution.threads and execution.isa ask for. Throws UsageError when this machine lacks the ISA.
std::unique_ptr<Context> make_context(const ExecutionConfig&);

/// The longest prompt of a task in tokens, and that plus the longest answer that may be sampled. Throws UsageError when the
/// latter is more than the model's window.
struct SequenceLengths {
  std::int64_t prompt = 0;
  std::int64_t sequence = 0;
};
SequenceLengths task_lengths(const RunConfig&, const ModelSetup&, const Task&);

/// Throws UsageError when eval.problems is more than the task has different held-out problems (those of a file are simply all taken).
void check_held_out(const RunConfig&, const Task&);

/// Throws UsageError when the tokenizer cannot write a character that the task's problems are made of.
void check_alphabet(const Tokenizer&, const Task&, const std::string& task_name);

/// The sizes of a sampler for at most `sequences` answers at a time of this configuration's lengths.
SamplerOptions sampler_sizes(const RunConfig&, SequenceLengths, std::int64_t sequences);
/// That sampler.
std::unique_ptr<Sampler> make_sampler(const RunConfig&, const ModelSetup&, const Numerics& rollout, SequenceLengths,
                                      std::int64_t sequences);

/// The weights that the sampler reads: the trainer's own where the dtypes agree (nothing to copy after an update), else a
/// second copy, which refresh() rounds from the masters.
class RolloutWeights {
 public:
  RolloutWeights(Trainer&, const Numerics& rollout);
  const Weights& get() const { return own_ ? *own_ : trainer_.weights(); }
  void refresh(Context&);

 private:
  Trainer& trainer_;
  std::unique_ptr<Weights> own_;
};

/// The frozen copy of the weights at the first step, under the numerics of the reference.
class Reference {
 public:
  Reference(const RunConfig&, const ModelConfig&, const Numerics&, std::int64_t max_sequence);
  /// From now on: other sites, the same compute dtype.
  void set_numerics(const Numerics&);
  ReferenceState& state() { return state_; }
  /// Takes the trainer's weights as they are now.
  void freeze(Context&, Trainer&);
  /// After state() was loaded.
  void refresh(Context&);
  TokenScores score(Context&, std::span<const TrainSequence>, float temperature);

 private:
  ExecutionConfig execution_;
  std::int64_t max_sequence_;
  std::optional<Scorer> scorer_;  // always there but while its numerics change
  Weights weights_;
  ReferenceState state_;
};

}  // namespace plumb
