// What the model needs between its ops: sums of two gradients, conversion, copies of rows, column sums (bias gradients).
//   add_in_place: a = R?(a + b)     convert: out = R?(in)     column_sums: s[c] += x[0][c], then x[1][c], ... in FP32
// R? is the rounding to the destination's dtype; there are no sites here.
#pragma once
#include <cstdint>

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"

namespace plumb {

/// a = R?(a + b). a, b: (N, C), the same shape, any dtypes and strides.
void add_in_place(Context&, Mat a, ConstMat b);

/// out = R?(in). in, out: (N, C), the same shape, not overlapping. Equal dtypes copy the bits.
void convert(Context&, ConstMat in, Mat out);

/// sums[c] continues as one FP32 chain over the rows of x (N, C) in order; sums: (C).
void column_sums(Context&, ConstMat x, float* sums);

/// x = x rounded to a format, on n FP32 values, in place.
void round_in_place(Context&, float* x, std::int64_t n, DType to = DType::bf16);

/// x = x * factor on n FP32 values, in place.
void scale_in_place(Context&, float* x, std::int64_t n, float factor);

/// out[i] = in[index[i]], or +0 where index[i] is negative. in: (N, C), out: (M, C) of the same dtype, index: (M), each below N.
void gather_rows(Context&, ConstMat in, const std::int32_t* index, Mat out);

/// out[index[i]] = in[i] where index[i] is not negative. in: (N, C), out: (M, C) of the same dtype, index: (N), each below M, no
/// row twice.
void scatter_rows(Context&, ConstMat in, const std::int32_t* index, Mat out);

/// x = +0, all of (N, C).
void fill_zero(Context&, Mat x);

}  // namespace plumb
