// The one place where the embedding rounds.
#pragma once
#include "kernels/core/lanes.h"
#include "kernels/numerics/numerics.h"

namespace plumb {

template <class V>
[[gnu::always_inline]] inline V embedding_step(bool rounded, V x) {
  return round_if(rounded, x);
}

/// The gradient of a row of the table takes one more token's.
template <class V>
[[gnu::always_inline]] inline V embedding_gradient_step(bool rounded, V sum, V d, DType to = DType::bf16) {
  return round_if(rounded, sum + d, to);
}

}  // namespace plumb
