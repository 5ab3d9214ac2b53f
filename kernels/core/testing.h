// Test only: random matrices of either dtype inside wider memory, read and compared element by element.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/rng.h"
#include "kernels/core/tensor.h"

namespace plumb::test {

inline float get(ConstMat m, std::int64_t r, std::int64_t c) {
  return m.dtype == DType::f32 ? m.row<float>(r)[c] : to_float(m.row<BF16>(r)[c]);
}
inline void set(Mat m, std::int64_t r, std::int64_t c, float x) {
  if (m.dtype == DType::f32) {
    m.row<float>(r)[c] = x;
  } else {
    m.row<BF16>(r)[c] = to_bf16(x);
  }
}

/// A (rows, cols) matrix with three unused columns, mean + scale * N(0,1); scale 0 for what will be
/// overwritten.
struct Random {
  Random(std::int64_t rows, std::int64_t cols, DType dtype, std::uint64_t seed, double scale = 1, double mean = 0)
      : memory(std::size_t(rows * (cols + 3)) * bytes_of(dtype)),
        whole(make_mat(memory.data(), rows, cols + 3, dtype)),
        mat(whole.slice_cols(0, cols)) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols + 3; ++c) {
        const double z = scale == 0 ? 0 : random_normal({.seed = seed}, std::uint64_t(r * (cols + 3) + c));
        set(whole, r, c, float(mean + scale * z));
      }
    }
  }
  operator Mat() const { return mat; }       // NOLINT(google-explicit-constructor): a test writes `.gate = gate`
  operator ConstMat() const { return mat; }  // NOLINT(google-explicit-constructor)
  float at(std::int64_t r, std::int64_t c) const { return get(mat, r, c); }
  Buffer memory;
  Mat whole;
  Mat mat;
};

/// All bits equal, the unused columns included.
inline bool same_bits(const Random& a, const Random& b) {
  return a.memory.size() == b.memory.size() && std::memcmp(a.memory.data(), b.memory.data(), a.memory.size()) == 0;
}

/// Fraction of elements whose values differ.
inline double fraction_different(ConstMat a, ConstMat b) {
  std::int64_t n = 0;
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t c = 0; c < a.cols; ++c) n += std::bit_cast<std::uint32_t>(get(a, r, c)) != std::bit_cast<std::uint32_t>(get(b, r, c));
  }
  return double(n) / double(a.rows * a.cols);
}

/// Norm of a - b over the norm of b.
inline double relative_error(ConstMat a, ConstMat b) {
  double d = 0;
  double s = 0;
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t c = 0; c < a.cols; ++c) {
      d += std::pow(double(get(a, r, c)) - double(get(b, r, c)), 2);
      s += std::pow(double(get(b, r, c)), 2);
    }
  }
  return std::sqrt(d / s);
}

}  // namespace plumb::test
