// Test only: the plainest code for the elementwise operations, element by element.
#pragma once
#include <vector>

#include "kernels/core/tensor.h"

namespace plumb::ref {

inline float get(ConstMat m, std::int64_t r, std::int64_t c) {
  return m.dtype == DType::f32 ? m.row<float>(r)[c] : to_float(m.row<BF16>(r)[c]);
}

/// What `value` becomes when stored as dtype.
inline float stored(float value, DType dtype) { return dtype == DType::f32 ? value : round_bf16(value); }

inline std::vector<float> column_sums(ConstMat x, std::vector<float> sums) {
  for (std::int64_t r = 0; r < x.rows; ++r)
    for (std::int64_t c = 0; c < x.cols; ++c) sums[std::size_t(c)] += get(x, r, c);
  return sums;
}

}  // namespace plumb::ref
