// Non-owning views. Every tensor an op sees is a row-major matrix: (rows, cols) with a row stride.
// Where the memory lives is the context's business, never the view's.
#pragma once
#include <cstdint>

#include "kernels/core/dtype.h"

namespace plumb {

/// Read-only (rows, cols) matrix; `stride` counts elements between rows. A vector is one row.
struct ConstMat {
  const void* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;
  DType dtype = DType::f32;

  explicit operator bool() const { return data != nullptr; }
  template <class T>
  const T* row(std::int64_t r) const {
    return static_cast<const T*>(data) + r * stride;
  }
  const char* row_bytes(std::int64_t r) const { return static_cast<const char*>(data) + r * stride * std::int64_t(bytes_of(dtype)); }
  ConstMat slice_rows(std::int64_t first, std::int64_t count) const { return {row_bytes(first), count, cols, stride, dtype}; }
  ConstMat slice_cols(std::int64_t first, std::int64_t count) const {
    return {static_cast<const char*>(data) + first * std::int64_t(bytes_of(dtype)), rows, count, stride, dtype};
  }
};

/// Writable view; converts to ConstMat.
struct Mat {
  void* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;
  DType dtype = DType::f32;

  explicit operator bool() const { return data != nullptr; }
  operator ConstMat() const { return {data, rows, cols, stride, dtype}; }  // NOLINT(google-explicit-constructor)
  template <class T>
  T* row(std::int64_t r) const {
    return static_cast<T*>(data) + r * stride;
  }
  char* row_bytes(std::int64_t r) const { return static_cast<char*>(data) + r * stride * std::int64_t(bytes_of(dtype)); }
  Mat slice_rows(std::int64_t first, std::int64_t count) const { return {row_bytes(first), count, cols, stride, dtype}; }
  Mat slice_cols(std::int64_t first, std::int64_t count) const {
    return {static_cast<char*>(data) + first * std::int64_t(bytes_of(dtype)), rows, count, stride, dtype};
  }
};

/// Dense views over existing memory.
inline Mat make_mat(void* data, std::int64_t rows, std::int64_t cols, DType dtype) { return {data, rows, cols, cols, dtype}; }
inline ConstMat make_const_mat(const void* data, std::int64_t rows, std::int64_t cols, DType dtype) {
  return {data, rows, cols, cols, dtype};
}

}  // namespace plumb
