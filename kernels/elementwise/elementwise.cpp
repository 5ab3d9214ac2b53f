#include "kernels/elementwise/elementwise.h"

#include "kernels/core/emulated.h"
#include "kernels/core/error.h"
#include "kernels/elementwise/elementwise_cpu.h"

namespace plumb {
namespace {

void require_same_shape(const ConstMat& a, const ConstMat& b, const char* message) {
  require(a.rows == b.rows && a.cols == b.cols, message);
}

}  // namespace

void add_in_place(Context& ctx, Mat a, ConstMat b) {
  require_same_shape(a, b, "internal: add_in_place of different shapes");
  cpu::add_in_place(ctx, a, b);
  round_emulated(ctx, a);
}

void convert(Context& ctx, ConstMat in, Mat out) {
  require_same_shape(in, out, "internal: convert between different shapes");
  const bool rounds = in.dtype != out.dtype;
  in.dtype = memory_dtype(in.dtype);
  cpu::convert(ctx, in, {out.data, out.rows, out.cols, out.stride, memory_dtype(out.dtype)});
  if (rounds) round_emulated(ctx, out);
}

void column_sums(Context& ctx, ConstMat x, float* sums) { cpu::column_sums(ctx, x, sums); }

void round_in_place(Context& ctx, float* x, std::int64_t n, DType to) { cpu::round_in_place(ctx, x, n, to); }

void scale_in_place(Context& ctx, float* x, std::int64_t n, float factor) { cpu::scale_in_place(ctx, x, n, factor); }

void gather_rows(Context& ctx, ConstMat in, const std::int32_t* index, Mat out) {
  require(in.cols == out.cols && in.dtype == out.dtype, "internal: gather_rows between different rows");
  cpu::gather_rows(ctx, in, index, out);
}

void scatter_rows(Context& ctx, ConstMat in, const std::int32_t* index, Mat out) {
  require(in.cols == out.cols && in.dtype == out.dtype, "internal: scatter_rows between different rows");
  cpu::scatter_rows(ctx, in, index, out);
}

void fill_zero(Context& ctx, Mat x) { cpu::fill_zero(ctx, x); }

}  // namespace plumb
