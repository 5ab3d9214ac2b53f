// Log-probs of fixed tokens under many numerics, each computed once.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/trainer/scorer.h"
#include "kernels/core/context.h"
#include "model/weights.h"

namespace plumb {

/// A model whose weights are there in whatever compute dtype is asked for.
class DriftModel {
 public:
  /// master: (flat_size) f32.
  DriftModel(Context& ctx, const ModelConfig& config, Buffer master) : ctx_(ctx), config_(config), master_(std::move(master)) {}
  Context& ctx() const { return ctx_; }
  const ModelConfig& config() const { return config_; }
  const Weights& weights(DType);

 private:
  Context& ctx_;
  ModelConfig config_;
  Buffer master_;
  std::map<DType, std::unique_ptr<Weights>> weights_;
};

/// Thrown out of a long computation that was asked to stop.
struct DriftInterrupted {};

/// What one side computes.
struct SideScores {
  std::vector<float> logprob;        // of each response token, in order
  std::vector<std::int32_t> argmax;  // the same
  std::uint64_t bits = 0;            // hash of the log-probs
};

class Evaluator {
 public:
  /// `keep_going` is asked between micro-batches; when it says no, DriftInterrupted is thrown. Nothing here outlives sequences' tokens.
  Evaluator(DriftModel&, std::vector<TrainSequence> sequences, float temperature, std::function<bool()> keep_going = {});
  const std::vector<TrainSequence>& sequences() const { return sequences_; }
  float temperature() const { return temperature_; }
  DriftModel& model() { return model_; }
  std::int64_t tokens() const { return tokens_; }  // response tokens
  std::int64_t longest() const { return longest_; }
  std::int64_t micro_batch_rows() const { return micro_batch_; }
  void stop_if_asked() const;
  /// Backward modes do not matter. Throws UsageError for what no kernel does.
  const SideScores& of(const Numerics&);
  std::int64_t computed() const { return std::int64_t(known_.size()); }

 private:
  DriftModel& model_;
  std::vector<TrainSequence> sequences_;
  float temperature_;
  std::function<bool()> keep_going_;
  std::int64_t tokens_ = 0;
  std::int64_t longest_ = 0;
  std::int64_t micro_batch_ = 0;
  std::unordered_map<std::string, SideScores> known_;  // by Numerics::describe()
};

}  // namespace plumb
