#include "engine/trainer/optimizer.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "kernels/core/error.h"

namespace plumb {

std::vector<char> frozen_parameters(const ParameterList& parameters, const std::vector<std::string>& patterns) {
  const std::vector<Parameter>& all = parameters.all();
  std::vector<char> frozen(all.size(), 0);
  for (const std::string& pattern : patterns) {
    bool matched = false;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (fnmatch(pattern.c_str(), all[i].name.c_str(), 0) != 0) continue;
      frozen[i] = 1;
      matched = true;
    }
    if (!matched)
      throw UsageError(fmt::format("optimizer.frozen: '{}' matches no parameter; names look like '{}'", pattern, all.back().name));
  }
  if (std::find(frozen.begin(), frozen.end(), 0) == frozen.end())
    throw UsageError("optimizer.frozen: the patterns match every parameter; nothing is left to train");
  return frozen;
}

std::vector<FlatRange> trained_ranges(const ParameterList& parameters, const std::vector<char>& frozen) {
  std::vector<FlatRange> ranges;
  bool previous_trained = false;
  for (std::size_t i = 0; i < parameters.all().size(); ++i) {
    const Parameter& p = parameters.all()[i];
    if (frozen[i] == 0) {
      if (!previous_trained) ranges.push_back({.first = p.offset});
      ranges.back().count = p.offset + p.size() - ranges.back().first;
    }
    previous_trained = frozen[i] == 0;
  }
  return ranges;
}

float clip_factor(double norm, double max_norm) {
  if (max_norm <= 0) return 1.0f;
  // torch divides a number by a tensor as a reciprocal and a product.
  return std::min(1.0f, (1.0f / (float(norm) + 1e-6f)) * float(max_norm));
}

}  // namespace plumb
