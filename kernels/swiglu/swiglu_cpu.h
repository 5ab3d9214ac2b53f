#pragma once
#include "kernels/swiglu/swiglu.h"

namespace plumb::cpu {

void swiglu_forward(Context&, const SwigluForward&, Sites);
void swiglu_backward(Context&, const SwigluBackward&, Sites gradient_sites);

}  // namespace plumb::cpu
