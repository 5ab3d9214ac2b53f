// Inside the matmul only: every order but the pair-swapped chain. The chain's microkernels and panels do the work; what
// differs is where chains begin, how their sums are added, and (natural) which element of a pair of k comes first.
//
// The sum over k is a list of steps. A step continues or starts a chain of FP32 FMAs in one of up to eight partial sums,
// or adds a chain of its own to it:
//   natural        one chain over k = 0, 1, 2, ... (an odd K padded by one zero): a pair is read as (odd, even) by exchanging
//                  its halves where it is packed, so that vdpbf16ps computes this order too
//   onednn_blocks  chains over blocks of 512 (K <= 1024) or 1024 of k, each from +0, added in order
//   chains_n       pairs [P i / n, P (i + 1) / n) of the P = ceil(K / 2) pairs in chain i, an absent one is +0; chains are
//                  added as a tree over neighbours: (0 + 1) + (2 + 3), ...
// An accumulating product starts its first chain from the element of C.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/matmul/matmul.h"

namespace plumb::matmul_detail {

inline constexpr std::int64_t kStepDepth = 1024;  // a longer chain is several steps: Execution, no bit depends on it

enum class StepKind : std::uint8_t { start, resume, add };
/// k in [k0, k1), k0 even, of partial sum `partial`.
struct DepthStep {
  std::int64_t k0 = 0;
  std::int64_t k1 = 0;
  int partial = 0;
  StepKind kind = StepKind::start;
};

constexpr int partial_sums(MatmulOrder order) {
  switch (order) {
    case MatmulOrder::chains_2: return 2;
    case MatmulOrder::chains_4: return 4;
    case MatmulOrder::chains_8: return 8;
    default: return 1;
  }
}

constexpr std::int64_t onednn_block(std::int64_t depth) { return depth <= 1024 ? 512 : 1024; }

/// True when the order of a depth is the pair-swapped chain itself.
constexpr bool is_pair_swapped(MatmulOrder order, std::int64_t depth) {
  return order == MatmulOrder::pair_swapped || (order == MatmulOrder::onednn_blocks && depth <= onednn_block(depth));
}

/// Calls f(DepthStep) in order.
template <class F>
void for_each_step(MatmulOrder order, std::int64_t depth, F&& f) {
  if (order == MatmulOrder::onednn_blocks) {
    const std::int64_t block = onednn_block(depth);
    for (std::int64_t k = 0; k < depth; k += block)
      f(DepthStep{k, std::min(depth, k + block), 0, k == 0 ? StepKind::start : StepKind::add});
    return;
  }
  const int chains = partial_sums(order);
  const std::int64_t pairs = (depth + 1) / 2;
  for (int i = 0; i < chains; ++i) {
    const std::int64_t begin = 2 * (pairs * i / chains);
    const std::int64_t end = std::min(depth, 2 * (pairs * (i + 1) / chains));
    for (std::int64_t k = begin; k < end; k += kStepDepth) {
      f(DepthStep{k, std::min(end, k + kStepDepth), i, k == begin ? StepKind::start : StepKind::resume});
    }
  }
}

/// The whole product in an order that is not the pair-swapped chain, split over the context's threads.
void matmul_ordered(Context&, const Matmul&, MatmulOrder);
/// The whole product on the calling thread, with the scratch of `thread`.
void matmul_ordered_on_thread(Context&, int thread, const Matmul&, MatmulOrder);

}  // namespace plumb::matmul_detail
