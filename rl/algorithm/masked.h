// Statistics over the positions that count. A masked value is never touched (0 * NaN is NaN), so it may hold anything.
//   mean = sum / n;  variance = sum (x - mean)^2 / (n - 1), in two passes
// FP64, in order of index.
#pragma once
#include <cstdint>
#include <span>

namespace plumb {

inline std::int64_t masked_count(std::span<const std::uint8_t> mask) {
  std::int64_t n = 0;
  for (const std::uint8_t m : mask) n += m != 0;
  return n;
}

template <class T>
double masked_sum(std::span<const T> x, std::span<const std::uint8_t> mask) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (mask[i]) sum += double(x[i]);
  }
  return sum;
}

/// 0 when no position counts.
template <class T>
double masked_mean(std::span<const T> x, std::span<const std::uint8_t> mask) {
  const std::int64_t n = masked_count(mask);
  return n == 0 ? 0.0 : masked_sum(x, mask) / double(n);
}

/// Unbiased; 0 below two positions, and exactly 0 when all values are equal.
template <class T>
double masked_variance(std::span<const T> x, std::span<const std::uint8_t> mask) {
  const std::int64_t n = masked_count(mask);
  if (n < 2) return 0;
  const double mean = masked_mean(x, mask);
  double squares = 0;
  bool all_equal = true;
  const T* first = nullptr;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!mask[i]) continue;
    if (!first) first = &x[i];
    all_equal = all_equal && x[i] == *first;
    squares += (double(x[i]) - mean) * (double(x[i]) - mean);
  }
  return all_equal ? 0.0 : squares / double(n - 1);
}

}  // namespace plumb
