// The matmul's definition as the plainest loop: one scalar fmaf chain an element. An oracle for every bit.
#pragma once
#include <cmath>

#include "kernels/core/thread_pool.h"
#include "kernels/matmul/matmul.h"

namespace plumb {

inline float matmul_ref_element(const ConstMat& m, std::int64_t row, std::int64_t col) {
  return m.dtype == DType::f32 ? m.row<float>(row)[col] : to_float(m.row<BF16>(row)[col]);
}

inline float matmul_ref_element(const MatmulOperand& x, std::int64_t row, std::int64_t k) {
  if (k >= x.depth()) return 0.0f;
  return x.transposed ? matmul_ref_element(x.mat, k, row) : matmul_ref_element(x.mat, row, k);
}

/// Ignores `packed`: m.b must be given.
inline void matmul_ref(const Matmul& m) {
  FtzScope ftz;
  for (std::int64_t i = 0; i < m.c.rows; ++i)
    for (std::int64_t j = 0; j < m.c.cols; ++j) {
      float sum = m.accumulate ? m.c.row<float>(i)[j] : 0.0f;
      for (std::int64_t k = 0; k < m.a.depth(); k += 2) {
        sum = std::fmaf(matmul_ref_element(m.a, i, k + 1), matmul_ref_element(m.b, j, k + 1), sum);
        sum = std::fmaf(matmul_ref_element(m.a, i, k), matmul_ref_element(m.b, j, k), sum);
      }
      if (m.bias) sum = sum + matmul_ref_element(m.bias, 0, j);
      if (m.c.dtype == DType::bf16) {
        m.c.row<BF16>(i)[j] = to_bf16(sum);
      } else {
        m.c.row<float>(i)[j] = m.round ? round_bf16(sum) : sum;
      }
    }
}

}  // namespace plumb
