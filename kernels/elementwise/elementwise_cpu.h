#pragma once
#include "kernels/elementwise/elementwise.h"

namespace plumb::cpu {

void add_in_place(Context&, Mat a, ConstMat b);
void convert(Context&, ConstMat in, Mat out);
void column_sums(Context&, ConstMat x, float* sums);
void round_in_place(Context&, float* x, std::int64_t n, DType to);
void scale_in_place(Context&, float* x, std::int64_t n, float factor);
void gather_rows(Context&, ConstMat in, const std::int32_t* index, Mat out);
void scatter_rows(Context&, ConstMat in, const std::int32_t* index, Mat out);
void fill_zero(Context&, Mat x);

}  // namespace plumb::cpu
