#include "rl/algorithm/policy_loss.h"

#include <algorithm>

#include "kernels/core/math.h"

namespace plumb {

PolicyTerm policy_loss(double logp, double old_logp, double advantage, const ClipRange& range) {
  constexpr double kMaxLogRatio = 20;
  const double log_ratio = logp - old_logp;
  const double bounded = std::clamp(log_ratio, -kMaxLogRatio, kMaxLogRatio);
  const double ratio = exp_double(bounded);
  const double plain = -advantage * ratio;
  const double clipped = -advantage * std::clamp(ratio, 1 - range.low, 1 + range.high);

  if (clipped > plain) return {.loss = clipped, .clip = advantage < 0 ? Clip::low : Clip::high};
  if (range.dual > 0 && advantage < 0 && ratio > range.dual) return {.loss = -advantage * range.dual, .clip = Clip::dual};
  return {.loss = plain, .d_logp = bounded == log_ratio ? plain : 0.0};
}

}  // namespace plumb
