// The one place where the embedding rounds.
#pragma once
#include "kernels/core/lanes.h"
#include "kernels/numerics/numerics.h"

namespace plumb {

template <class V>
[[gnu::always_inline]] inline V embedding_step(Sites sites, V x) {
  return round_if(sites.rounded(Site::embedding), x, sites.to);
}

/// The gradient of a row of the table takes one more token's.
template <class V>
[[gnu::always_inline]] inline V embedding_gradient_step(DType to, V sum, V d) {
  return round_if(to != DType::f32, sum + d, to);
}

}  // namespace plumb
