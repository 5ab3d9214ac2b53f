// The clipped policy loss of one token (PPO, arXiv 1707.06347; asymmetric: DAPO; dual clip: arXiv 1912.09729):
//   r = exp(clamp(c - old, -20, 20))
//   L = max(-A r, -A clip(r, 1 - low, 1 + high));  for A < 0 and dual > 0: L = min(L, -A dual)
//   dL/dc = -A r where L is -A r, else 0 (also where the clamp acts)
#pragma once
#include <cstdint>

namespace plumb {

struct ClipRange {
  double low = 0.2;
  double high = 0.2;
  double dual = 3.0;  // 0: off
};

/// Which bound decided the loss: low (A < 0, r < 1 - low), high (A > 0, r > 1 + high), dual (A < 0, r > dual).
enum class Clip : std::uint8_t { none, low, high, dual };

struct PolicyTerm {
  double loss = 0;
  double d_logp = 0;
  Clip clip = Clip::none;
};
PolicyTerm policy_loss(double logp, double old_logp, double advantage, const ClipRange&);

}  // namespace plumb
