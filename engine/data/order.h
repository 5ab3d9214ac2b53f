// The order in which a data set's examples are used: a pure function of (seed, position), so that a resumed run needs to
// know nothing but how many examples were used.
#pragma once
#include <cstdint>
#include <vector>

namespace plumb {

/// A permutation of [0, n), the same wherever it is made: Fisher-Yates on counter-based numbers of (seed, epoch).
std::vector<std::uint32_t> permutation(std::uint64_t seed, std::uint32_t epoch, std::uint32_t n);

/// Endless passes over n examples, each in a new order, or all in file order.
class ExampleOrder {
 public:
  /// n >= 1.
  ExampleOrder(std::uint64_t seed, std::uint32_t n, bool shuffle);
  /// The example used at 0-based position `used` of the run.
  std::uint32_t at(std::uint64_t used);
  /// Whole passes before that position.
  std::uint64_t epoch(std::uint64_t used) const { return used / n_; }

 private:
  std::uint64_t seed_;
  std::uint32_t n_;
  bool shuffle_;
  std::uint64_t epoch_ = 0;
  std::vector<std::uint32_t> order_;  // of epoch_
};

}  // namespace plumb
