#pragma once
#include "kernels/rmsnorm/rmsnorm.h"

namespace plumb::cpu {

void rmsnorm_forward(Context&, const RmsNormForward&, Sites, RowSumOrder);
void rmsnorm_backward(Context&, const RmsNormBackward&, Sites, BackwardMode, RowSumOrder);

}  // namespace plumb::cpu
