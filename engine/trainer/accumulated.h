// The sum of a step's gradients where it is cut into parts of so many sequences (AccumulationConfig): each part is a gradient of its own,
// finished as if it were the whole step's, and added in order, each sum rounded.
#pragma once
#include <cstdint>

#include "engine/config/sections.h"
#include "kernels/core/buffer.h"
#include "kernels/core/context.h"

namespace plumb {

class AccumulatedGradients {
 public:
  AccumulatedGradients() = default;
  /// elements: of the flat gradients. Allocates where gradients are summed in parts.
  AccumulatedGradients(const AccumulationConfig&, std::int64_t elements);
  static std::size_t memory_bytes(const AccumulationConfig& c, std::int64_t elements) {
    return c.sequences > 0 ? std::size_t(elements) * sizeof(float) : 0;
  }
  std::size_t memory_bytes() const { return sum_.size(); }

  bool in_parts() const { return config_.sequences > 0; }
  /// Sequences that the part at work still takes.
  std::int64_t room() const { return config_.sequences - filled_; }
  /// So many more are in it. True when it is complete.
  bool fill(std::int64_t sequences);
  /// True when some are in a part that is not complete.
  bool begun() const { return filled_ > 0; }
  /// Adds the finished gradient of a part.
  void add(Context&, const float* part);
  /// The sum, written to flat: the gradient of the step.
  void take(Context&, float* flat) const;
  void clear();

 private:
  AccumulationConfig config_;
  std::int64_t elements_ = 0;
  std::int64_t filled_ = 0;
  bool any_ = false;  // of sum_
  Buffer sum_;        // (elements) f32
};

}  // namespace plumb
