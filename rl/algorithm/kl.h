// Estimators of KL(policy || reference) from one token's log-probs c (policy) and ref (Schulman 2020,
// http://joschu.net/blog/kl-approx.html), with their derivatives by c:
//   k1 = c - ref                     1
//   k2 = (c - ref)^2 / 2             c - ref
//   k3 = exp(x) - x - 1, x = ref - c   1 - exp(x)
// k3: x is clamped to +-20 and the result to +-10; a clamped value has derivative 0 and is counted.
// k2's derivative is that of KL(policy || reference) in expectation, k3's that of KL(reference || policy).
#pragma once
#include "rl/run_config.h"

namespace plumb {

struct KlTerm {
  double value = 0;
  double d_logp = 0;
  bool clamped = false;
};
KlTerm kl_estimate(KlEstimator, double logp, double ref_logp);

}  // namespace plumb
