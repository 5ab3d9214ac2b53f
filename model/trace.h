// The forward of qwen.h with every op's output shown to a watcher, to find the first place where two numerics part. Same ops, same
// bits; what differs is that nothing is overwritten before it was seen.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string_view>

#include "model/qwen.h"

namespace plumb {

/// What a block computes, in order; then what comes once.
enum class Stage : std::uint8_t {
  embedding,    // (N, D) once, layer 0
  input_store,  // (N, D) the stream that the input norm stored; not in layer 0
  input_norm,   // (N, D) its output
  qkv,          // (N, q + 2 kv) before QK norm and rotation
  q,            // (N, q) rotated
  k,            // (N, kv) rotated
  attention,    // (N, q)
  o,            // (N, D) the attention's linear
  post_store,   // (N, D) the stream that the post-attention norm stored
  post_norm,    // (N, D) its output
  gate_up,      // (N, 2 F)
  swiglu,       // (N, F)
  down,         // (N, D)
  final_norm,   // (N, D) once, layer = layers - 1
  count
};
inline constexpr int kStages = int(Stage::count);
constexpr auto enum_names(Stage) {
  using enum Stage;
  return std::array{std::pair{embedding, "embedding"},      std::pair{input_store, "input stream"},
                    std::pair{input_norm, "input norm"},    std::pair{qkv, "q, k, v linear"},
                    std::pair{q, "rotation of q"},          std::pair{k, "rotation of k"},
                    std::pair{attention, "attention"},      std::pair{o, "o linear"},
                    std::pair{post_store, "middle stream"}, std::pair{post_norm, "middle norm"},
                    std::pair{gate_up, "gate, up linear"},  std::pair{swiglu, "swiglu"},
                    std::pair{down, "down linear"},         std::pair{final_norm, "final norm"}};
}

/// Called after each op, in order. The view is valid until the call returns.
using StageWatcher = std::function<void(int layer, Stage, ConstMat)>;

class TracedForward {
 public:
  /// As Qwen. Throws UsageError for numerics that no kernel does.
  TracedForward(const ModelConfig&, const Numerics&, std::int64_t max_rows, std::int64_t max_positions);
  ~TracedForward();
  TracedForward(const TracedForward&) = delete;
  TracedForward& operator=(const TracedForward&) = delete;
  /// Qwen::forward without a cache. Returns (N, D), valid until the next run.
  ConstMat run(Context&, const Weights&, const Batch&, const StageWatcher&);

 private:
  std::unique_ptr<QwenState> state_;
  Buffer own_memory_;
  struct OwnMemory;
  std::unique_ptr<OwnMemory> own_;
};

}  // namespace plumb
