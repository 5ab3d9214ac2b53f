#include "kernels/numerics/row_sum.h"

#include <algorithm>
#include <bit>

namespace plumb {
namespace {

float lanes16(const float* x, std::int64_t n) {
  F32x16 sum(0.0f);
  for (std::int64_t i = 0; i < n; i += kLanes) sum = sum + load_part(x + i, int(std::min<std::int64_t>(kLanes, n - i)));
  return fold_sum(sum);
}

float lanes8(const float* x, std::int64_t n) {
  __m256 sum = _mm256_setzero_ps();
  for (std::int64_t i = 0; i < n; i += 8) sum = _mm256_add_ps(sum, load_part(x + i, int(std::min<std::int64_t>(8, n - i))).lo);
  return fold_sum(F32x16(sum, _mm256_setzero_ps()));
}

float lanes32(const float* x, std::int64_t n) {
  F32x16 low(0.0f);
  F32x16 high(0.0f);
  const auto part = [&](std::int64_t i) { return load_part(x + i, int(std::clamp<std::int64_t>(n - i, 0, kLanes))); };
  for (std::int64_t i = 0; i < n; i += 2 * kLanes) {
    low = low + part(i);
    high = high + part(i + kLanes);
  }
  return fold_sum(low + high);
}

float lanes1(const float* x, std::int64_t n) {
  float sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum = sum + x[i];
  return sum;
}

constexpr int kLevels = 4;
constexpr int kAccumulators = 4;

void load(const float* p, float& x) { x = *p; }
void load(const float* p, __m256& x) { x = _mm256_loadu_ps(p); }

/// aten's row_sum over `count` vectors of type V.
template <class V>
V cascade(const float* x, std::int64_t count) {
  constexpr std::int64_t kWidth = sizeof(V) / sizeof(float);
  const std::int64_t size = count / kAccumulators;
  const int power = std::max(4, (size <= 1 ? 0 : int(std::bit_width(std::uint64_t(size - 1)))) / kLevels);
  V sums[kLevels][kAccumulators] = {};
  const auto add = [&](std::int64_t i) {
    for (int k = 0; k < kAccumulators; ++k) {
      V v;
      load(x + (i * kAccumulators + k) * kWidth, v);
      sums[0][k] = sums[0][k] + v;
    }
  };
  std::int64_t i = 0;
  while (i + (std::int64_t(1) << power) <= size) {
    for (std::int64_t end = i + (std::int64_t(1) << power); i < end; ++i) add(i);
    for (int level = 1; level < kLevels; ++level) {
      for (int k = 0; k < kAccumulators; ++k) {
        sums[level][k] = sums[level][k] + sums[level - 1][k];
        sums[level - 1][k] = V{};
      }
      if ((i >> (level * power) & ((std::int64_t(1) << power) - 1)) != 0) break;
    }
  }
  for (; i < size; ++i) add(i);
  for (int level = 1; level < kLevels; ++level)
    for (int k = 0; k < kAccumulators; ++k) sums[0][k] = sums[0][k] + sums[level][k];
  for (i = size * kAccumulators; i < count; ++i) {
    V v;
    load(x + i * kWidth, v);
    sums[0][0] = sums[0][0] + v;
  }
  for (int k = 1; k < kAccumulators; ++k) sums[0][0] = sums[0][0] + sums[0][k];
  return sums[0][0];
}

float torch(const float* x, std::int64_t n) {
  if (n < kHalfLanes) return cascade<float>(x, n);
  alignas(32) float lanes[kHalfLanes];
  _mm256_store_ps(lanes, cascade<__m256>(x, n / kHalfLanes));
  float sum = 0;
  for (std::int64_t i = n / kHalfLanes * kHalfLanes; i < n; ++i) sum = sum + x[i];
  for (float lane : lanes) sum = sum + lane;
  return sum;
}

}  // namespace

float row_sum(RowSumOrder order, const float* terms, std::int64_t n) {
  switch (order) {
    case RowSumOrder::lanes16: return lanes16(terms, n);
    case RowSumOrder::lanes8: return lanes8(terms, n);
    case RowSumOrder::lanes32: return lanes32(terms, n);
    case RowSumOrder::lanes1: return lanes1(terms, n);
    case RowSumOrder::torch: return torch(terms, n);
  }
  return 0;
}

}  // namespace plumb
