#include "engine/data/order.h"

#include <numeric>
#include <utility>

#include "kernels/core/error.h"
#include "kernels/core/rng.h"

namespace plumb {

std::vector<std::uint32_t> permutation(std::uint64_t seed, std::uint32_t epoch, std::uint32_t n) {
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  const RandomKey key = {.seed = seed, .purpose = Purpose::shuffle, .step = epoch};
  for (std::uint32_t i = 0; i + 1 < n; ++i) std::swap(order[i], order[i + std::size_t(random_below(key, i, n - i))]);
  return order;
}

ExampleOrder::ExampleOrder(std::uint64_t seed, std::uint32_t n, bool shuffle) : seed_(seed), n_(n), shuffle_(shuffle) {
  require(n >= 1, "there are no examples to train on");
  if (shuffle) order_ = permutation(seed, 0, n);
}

std::uint32_t ExampleOrder::at(std::uint64_t used) {
  if (!shuffle_) return std::uint32_t(used % n_);
  if (epoch(used) != epoch_) {
    epoch_ = epoch(used);
    order_ = permutation(seed_, std::uint32_t(epoch_), n_);
  }
  return order_[used % n_];
}

}  // namespace plumb
