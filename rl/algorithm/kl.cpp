#include "rl/algorithm/kl.h"

#include <algorithm>

#include "kernels/core/math.h"

namespace plumb {

namespace {

KlTerm k3(double x) {
  constexpr double kMaxExponent = 20;
  constexpr double kMaxValue = 10;
  const double bounded = std::clamp(x, -kMaxExponent, kMaxExponent);
  const double ratio = exp_double(bounded);
  const double value = ratio - bounded - 1;
  if (bounded != x || value > kMaxValue) return {.value = std::min(value, kMaxValue), .clamped = true};
  return {.value = value, .d_logp = 1 - ratio};
}

}  // namespace

KlTerm kl_estimate(KlEstimator estimator, double logp, double ref_logp) {
  const double difference = logp - ref_logp;
  switch (estimator) {
    case KlEstimator::none: break;
    case KlEstimator::k1: return {.value = difference, .d_logp = 1};
    case KlEstimator::k2: return {.value = 0.5 * difference * difference, .d_logp = difference};
    case KlEstimator::k3: return k3(-difference);
  }
  return {};
}

}  // namespace plumb
