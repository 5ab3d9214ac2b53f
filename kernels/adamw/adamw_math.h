// One element of AdamW in the operations of torch.optim.AdamW on FP32 tensors, in their order (addcmul and lerp are FMAs
// there); m and v were compared bit for bit with PyTorch 2.15 on a CPU, whose sqrt is not always the correctly rounded one.
#pragma once
#include "kernels/core/lanes.h"

namespace plumb {

/// The step's scalars, computed in double and rounded once.
struct AdamWScalars {
  float grad_scale;
  float keep;  // 1 - lr*weight_decay
  float one_minus_b1;
  float b2;
  float one_minus_b2;
  float bias_2_sqrt;  // sqrt(1 - beta2^t)
  float eps;
  float minus_step;  // -lr / (1 - beta1^t)
};

template <class V>
struct AdamWState {
  V p;
  V m;
  V v;
};

/// torch.lerp: from the nearer end, by FMA.
template <class V>
[[gnu::always_inline]] inline V lerp(V from, V to, float weight) {
  return weight < 0.5f ? fma(V(weight), to - from, from) : fma(V(weight - 1.0f), to - from, to);
}

template <class V>
[[gnu::always_inline]] inline AdamWState<V> adamw_step(const AdamWScalars& k, V p, V m, V v, V grad) {
  const V g = grad * V(k.grad_scale);
  p = p * V(k.keep);
  m = lerp(m, g, k.one_minus_b1);
  v = fma(V(k.one_minus_b2) * g, g, v * V(k.b2));
  const V denominator = sqrt(v) / V(k.bias_2_sqrt) + V(k.eps);
  return {.p = p + V(k.minus_step) * m / denominator, .m = m, .v = v};
}

}  // namespace plumb
