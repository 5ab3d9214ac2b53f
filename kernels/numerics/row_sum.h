// The sum of a row's terms in each order that a real stack uses (RowSumOrder): rows of squares, the dot product of a norm's
// backward. lanes16 is computed in registers where the terms arise; the other orders read the terms from memory.
#pragma once
#include <cstdint>

#include "kernels/core/lanes.h"
#include "kernels/numerics/numerics.h"

namespace plumb {

/// terms[0] .. terms[n-1] in FP32, n >= 0. torch: aten's cascade sum, compiled for eight lanes. Vector i of the row goes to
/// accumulator i % 4; after 16 vectors (2^(ceil(log2 n) / 4) if that is more) an accumulator is added to one of a next level
/// and begins again, through four levels; then levels, accumulators, the rest of the row and the eight lanes are added one by
/// one. Rows of fewer than eight terms: the same with one lane.
float row_sum(RowSumOrder order, const float* terms, std::int64_t n);

/// Order lanes16.
struct Lanes16Sum {
  F32x16 lanes{0.0f};
  template <class N>
  [[gnu::always_inline]] void add(std::int64_t, N, F32x16 terms) {
    lanes = lanes + terms;
  }
  float total(std::int64_t) const { return fold_sum(lanes); }
};

/// Any order. `terms` holds a row.
struct OrderedSum {
  RowSumOrder order;
  float* terms;
  template <class N>
  [[gnu::always_inline]] void add(std::int64_t i, N n, F32x16 x) {
    store_part(terms + i, x, n);
  }
  float total(std::int64_t n) const { return row_sum(order, terms, n); }
};

}  // namespace plumb
