#include "engine/trainer/loss_scaling.h"

#include <cmath>

namespace plumb {
namespace {

LossScaling effective_mode(const LossScalingConfig& c, DType compute) {
  if (c.mode != LossScaling::automatic) return c.mode;
  return compute == DType::f16 ? LossScaling::dynamic : LossScaling::off;
}

}  // namespace

LossScale initial_loss_scale(const LossScalingConfig& c, DType compute) {
  if (effective_mode(c, compute) == LossScaling::off) return {};
  return {.active = true, .value = double(float(c.scale))};
}

void update_loss_scale(const LossScalingConfig& c, DType compute, bool overflow, LossScale& s) {
  if (effective_mode(c, compute) != LossScaling::dynamic) return;
  if (overflow) {
    s.value = std::fmax(double(float(s.value * c.backoff_factor)), kLeastLossScale);
    s.good_steps = 0;
    return;
  }
  if (++s.good_steps < c.growth_interval) return;
  const double grown = double(float(s.value * c.growth_factor));
  if (grown <= kMostLossScale) s.value = grown;
  s.good_steps = 0;
}

bool overflow_is_expected(const LossScalingConfig& c, DType compute, const LossScale& s) {
  return effective_mode(c, compute) == LossScaling::dynamic && s.value > 1;
}

}  // namespace plumb
