#pragma once
#include "kernels/rope/rope.h"

namespace plumb::cpu {

inline constexpr int kMaxHeadDim = 1024;

void rope_forward(Context&, const RopeForward&, Sites, RowSumOrder);
void rope_backward(Context&, const RopeBackward&, Sites gradient_sites, RowSumOrder);

}  // namespace plumb::cpu
