// Rows of either dtype seen as FP32 lanes, for ops whose tensors may mix dtypes: the dtype test is one well predicted
// branch per 16 elements.
#pragma once
#include <algorithm>
#include <type_traits>

#include "kernels/core/lanes.h"
#include "kernels/core/tensor.h"

namespace plumb {

/// Elements worth a second thread.
inline constexpr std::int64_t kGrainElements = 16384;
inline std::int64_t row_grain(std::int64_t cols) { return std::max<std::int64_t>(1, kGrainElements / std::max<std::int64_t>(cols, 1)); }

struct RowIn {
  const void* data = nullptr;
  bool bf16 = false;

  RowIn() = default;
  RowIn(const ConstMat& m, std::int64_t row) : data(m.row_bytes(row)), bf16(m.dtype == DType::bf16) {}
  /// Elements i .. i+n-1, n <= 16, the other lanes +0.
  template <class N>
  [[gnu::always_inline]] F32x16 load(std::int64_t i, N n) const {
    return bf16 ? load_part(static_cast<const BF16*>(data) + i, n) : load_part(static_cast<const float*>(data) + i, n);
  }
};

struct RowOut {
  void* data = nullptr;
  bool bf16 = false;

  RowOut() = default;
  RowOut(const Mat& m, std::int64_t row) : data(m.row_bytes(row)), bf16(m.dtype == DType::bf16) {}
  /// Rounds when the row is BF16. Emulated formats round in a pass of their own (round_emulated).
  template <class N>
  [[gnu::always_inline]] void store(std::int64_t i, F32x16 x, N n) const {
    if (bf16) return store_part(static_cast<BF16*>(data) + i, x, n);
    store_part(static_cast<float*>(data) + i, x, n);
  }
};

/// f(i, n) for i = begin, begin + 16, ...: n is the constant 16 (a type of its own, so that whole groups have no tail
/// code in them) and last an int below 16 when end - begin is no multiple.
template <class F>
void for_lanes(std::int64_t begin, std::int64_t end, F&& f) {
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) f(i, std::integral_constant<int, kLanes>{});
  if (i < end) f(i, int(end - i));
}

}  // namespace plumb
