// The scale of the loss, as torch.amp.GradScaler keeps it.
#pragma once
#include <cstdint>

#include "engine/config/sections.h"
#include "kernels/core/dtype.h"

namespace plumb {

/// A scale and its reciprocal are normal FP32 numbers.
inline constexpr double kLeastLossScale = 0x1p-126;
inline constexpr double kMostLossScale = 0x1p126;

/// What changes.
struct LossScale {
  bool active = false;  // with scaling off nothing of this is saved
  double value = 1;
  std::int64_t good_steps = 0;  // since the scale last changed
};

template <class V>
void visit_state(V& v, LossScale& s) {
  if (!s.active) return;
  v.value("loss_scale", s.value);
  v.value("loss_scale_good_steps", s.good_steps);
}

/// The start, for gradients of a model that computes in this dtype.
LossScale initial_loss_scale(const LossScalingConfig&, DType compute);
/// After a step: what the next one takes. Only a dynamic scale changes.
void update_loss_scale(const LossScalingConfig&, DType compute, bool overflow, LossScale&);
/// True when a gradient that was not finite says nothing yet: a dynamic scale above 1 will fall.
bool overflow_is_expected(const LossScalingConfig&, DType compute, const LossScale&);
/// What gradients are multiplied by afterwards: 1 / value, rounded once.
inline float unscaling_factor(const LossScale& s) { return float(1.0 / s.value); }

}  // namespace plumb
