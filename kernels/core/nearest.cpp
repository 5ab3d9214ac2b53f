#include "kernels/core/nearest.h"

#include <algorithm>

namespace plumb {

int edit_distance(std::string_view a, std::string_view b) {
  const std::size_t width = b.size() + 1;
  std::vector<int> d((a.size() + 1) * width);
  const auto at = [&](std::size_t i, std::size_t j) -> int& { return d[i * width + j]; };
  for (std::size_t i = 0; i <= a.size(); ++i) at(i, 0) = int(i);
  for (std::size_t j = 0; j <= b.size(); ++j) at(0, j) = int(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int replace = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({replace, at(i - 1, j) + 1, at(i, j - 1) + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
    }
  }
  return at(a.size(), b.size());
}

std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates) {
  std::string_view best;
  int limit = std::max(2, int(word.size()) / 2) + 1;
  for (std::string_view c : candidates) {
    const int d = edit_distance(word, c);
    if (d >= limit) continue;
    limit = d;
    best = c;
  }
  return best;
}

std::string suggestion(std::string_view word, const std::vector<std::string_view>& candidates) {
  const std::string_view best = nearest(word, candidates);
  if (!best.empty()) return "; did you mean '" + std::string(best) + "'?";
  std::string out = "; known: ";
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (i) out += ", ";
    out += candidates[i];
  }
  return out;
}

}  // namespace plumb
