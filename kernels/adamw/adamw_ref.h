// Test only: AdamW in double, one element.
#pragma once
#include <cmath>

#include "kernels/adamw/adamw.h"

namespace plumb::ref {

struct AdamWElement {
  double p;
  double m;
  double v;
};

inline AdamWElement adamw(const AdamW& a, AdamWElement s, double grad) {
  const double g = grad * a.grad_scale;
  s.p *= 1 - a.lr * a.weight_decay;
  s.m = a.beta1 * s.m + (1 - a.beta1) * g;
  s.v = a.beta2 * s.v + (1 - a.beta2) * g * g;
  const double m_hat = s.m / (1 - std::pow(a.beta1, double(a.t)));
  const double v_hat = s.v / (1 - std::pow(a.beta2, double(a.t)));
  s.p -= a.lr * m_hat / (std::sqrt(v_hat) + a.eps);
  return s;
}

}  // namespace plumb::ref
