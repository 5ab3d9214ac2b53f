// The model and its head over packed micro-batches: scores of response tokens and, for training, their gradients.
// Bits do not depend on micro_batch_tokens, threads, isa, recompute, merged_matmuls or logits_rows.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/config/sections.h"
#include "engine/trainer/packing.h"
#include "kernels/core/buffer.h"
#include "kernels/core/context.h"
#include "kernels/numerics/numerics.h"
#include "model/qwen.h"
#include "model/weights.h"

namespace plumb {

/// Per response token of a run of sequences, concatenated in order.
struct TokenScores {
  std::vector<float> logprob;
  std::vector<float> entropy;
  std::vector<std::int32_t> argmax;
};

/// Called once per micro-batch with the scores of sequences [first, first + count): fills dL/dlogprob and dL/dentropy of
/// every response token (same order). Denominators are the caller's business and global over the step.
using TokenObjective =
    std::function<void(std::size_t first, std::size_t count, std::span<const float> logprob, std::span<const float> entropy,
                       std::span<const std::int32_t> argmax, std::span<float> d_logprob, std::span<float> d_entropy)>;

class Scorer {
 public:
  /// max_sequence: longest sequence in tokens. Throws UsageError when micro_batch_tokens cannot hold one. Allocates
  /// everything here; `training` adds what accumulate() needs.
  Scorer(const ModelConfig&, const Numerics&, const ExecutionConfig&, std::int64_t max_sequence, bool training = false);

  const ModelConfig& model_config() const { return model_.config(); }
  const Numerics& numerics() const { return model_.numerics(); }

  /// Scores of all response tokens, by the weights handed in (of this shape, in the compute dtype).
  /// logits: when given, (response tokens, V), the logits before the temperature.
  TokenScores score(Context&, const Weights&, std::span<const TrainSequence>, float temperature, Mat logits = {});
  /// Forward and backward over all sequences, in micro-batches of consecutive sequences; adds to the gradients, those of the objective
  /// times loss_scale.
  void accumulate(Context&, const Weights&, std::span<const TrainSequence>, float temperature, const TokenObjective&, Gradients&,
                  float loss_scale = 1.0f);

  std::size_t memory_bytes() const;
  static std::size_t memory_bytes(const ModelConfig&, const Numerics&, const ExecutionConfig&, std::int64_t max_sequence,
                                  bool training = false);

 private:
  void check(const Weights&, std::span<const TrainSequence>, float temperature) const;
  void forward(Context&, const Weights&, float temperature, bool save, Mat logits);
  void backward(Context&, const Weights&, float temperature, Gradients&);
  Mat head_rows_of(const Buffer&) const;

  std::int64_t max_sequence_;
  std::int64_t max_rows_;
  std::int64_t logits_rows_;
  bool training_;
  Qwen model_;
  MicroBatch micro_batch_;
  Buffer head_hidden_;  // (max_rows, D) compute dtype: the rows that the head sees
  // of each head row
  std::vector<float> row_logprob_;
  std::vector<float> row_entropy_;
  std::vector<std::int32_t> row_argmax_;
  // of each response token
  std::vector<float> logprob_;
  std::vector<float> entropy_;
  std::vector<std::int32_t> argmax_;
  // training only
  Buffer d_head_hidden_;  // (max_rows, D) compute dtype
  Buffer d_hidden_;       // (max_rows, D) compute dtype
  std::vector<float> row_d_logprob_;
  std::vector<float> row_d_entropy_;
  std::vector<float> d_logprob_;
  std::vector<float> d_entropy_;
};

}  // namespace plumb
