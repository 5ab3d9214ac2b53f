// The exact matmul: C = A B^T, every element one FMA chain over k = 1, 0, 3, 2, ... from +0 (or from the element of C it
// continues), an odd K padded by one zero, FTZ and DAZ set; other orders on request (MatmulOrder, matmul_orders.h). The order depends on
// nothing else: row i of the output is the same for M = 1 and M = 512, for any blocking, thread count and instruction set. vdpbf16ps
// computes exactly this chain. A NaN in an unrounded f32 output is a NaN; its sign and payload are not defined (a rounded NaN is always
// 0x7FC0).
#pragma once
#include <cstdint>

#include "kernels/core/context.h"
#include "kernels/core/tensor.h"
#include "kernels/numerics/numerics.h"

namespace plumb {

/// One factor of a product: `rows` indexes the output, `depth` the sum.
struct MatmulOperand {
  ConstMat mat;
  bool transposed = false;  // false: mat is (rows, depth); true: mat is (depth, rows)
  std::int64_t rows() const { return transposed ? mat.cols : mat.rows; }
  std::int64_t depth() const { return transposed ? mat.rows : mat.cols; }
};

/// Weights in the panel layout of the microkernels, made once and read by every forward.
struct PackedWeight {
  const void* panels = nullptr;  // packed_bytes(rows, depth, dtype) bytes, 64-byte aligned
  std::int64_t rows = 0;
  std::int64_t depth = 0;
  DType dtype = DType::bf16;
  explicit operator bool() const { return panels != nullptr; }
};
std::size_t packed_bytes(std::int64_t rows, std::int64_t depth, DType dtype);
/// Packs rows [first, first + count) of w (rows, depth); first must be a multiple of 32. The layout is that of every ISA.
void pack_weight(Context&, ConstMat w, std::int64_t first, std::int64_t count, void* panels);

struct Matmul {
  MatmulOperand a;               // (M, K)
  MatmulOperand b;               // (N, K); ignored in favour of `packed` when that is given, shapes must still agree if set
  PackedWeight packed;           // optional, the b operand prepacked
  ConstMat bias;                 // optional (1, N): added in FP32 after the chain
  Mat c;                         // (M, N) of any type
  bool accumulate = false;       // c must be f32: each chain starts from the element of c instead of +0
  bool round = false;            // rounds after the bias even when c is f32 (site linear.out); implied by any other c
  DType round_to = DType::bf16;  // what an f32 c is rounded to
};
/// In an order of several chains `accumulate` starts the first of them from c: calls carried over k give the bits of one call in
/// pair_swapped and natural only (weight gradients take weight_gradient_order).
/// a and b may have any types; bf16 x bf16 takes the BF16 kernels, everything else FP32 ones: same chain. Emulated formats are FP32
/// there, and round in a pass of their own.
/// Throws Error when shapes or dtypes do not agree. c must not overlap a, b or the bias.
void matmul(Context&, const Matmul&, MatmulOrder = MatmulOrder::pair_swapped);
/// The order of a weight gradient, one chain over the rows of a whole step however they come in calls: natural in a model whose
/// matmuls are natural, else pair_swapped. Orders of several chains have none that a split into micro-batches could not move.
constexpr MatmulOrder weight_gradient_order(MatmulOrder order) { return order == MatmulOrder::natural ? order : MatmulOrder::pair_swapped; }
/// The same bits computed by the calling thread alone, with the scratch slots matmul_a, matmul_b, matmul_c of `thread`:
/// for small products inside a parallel_for.
void matmul_on_thread(Context&, int thread, const Matmul&, MatmulOrder = MatmulOrder::pair_swapped);

}  // namespace plumb
