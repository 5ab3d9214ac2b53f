#pragma once
#include "kernels/adamw/adamw.h"
#include "kernels/adamw/adamw_math.h"

namespace plumb::cpu {

void adamw(Context&, const AdamW&, const AdamWScalars&);
double sum_of_squares(Context&, const float* x, std::int64_t n);

}  // namespace plumb::cpu
