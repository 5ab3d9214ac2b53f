// Tensors of formats that are held in FP32 memory: an op computes them as FP32 and rounds what it stored in a pass of its own, so that
// the loops of FP32 and BF16 know nothing of them.
#pragma once
#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace plumb {

/// Rounds FP32 memory of any shape to a format, in place.
void round_memory(Context&, const Mat&, DType to);
/// After an op that stored to m: rounds it where its type is an emulated one (empty and other matrices: nothing to do).
inline void round_emulated(Context& ctx, const Mat& m) {
  if (m && is_emulated(m.dtype)) round_memory(ctx, m, m.dtype);
}

}  // namespace plumb
