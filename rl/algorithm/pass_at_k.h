// Unbiased pass@k from n samples of which c are right (arXiv 2107.03374): 1 - C(n - c, k) / C(n, k).
#pragma once
#include <cstdint>

namespace plumb {

/// 0 <= c <= n, 1 <= k <= n.
inline double pass_at_k(std::int64_t n, std::int64_t c, std::int64_t k) {
  if (n - c < k) return 1;
  double all_wrong = 1;
  for (std::int64_t i = 0; i < k; ++i) all_wrong *= double(n - c - i) / double(n - i);
  return 1 - all_wrong;
}

}  // namespace plumb
