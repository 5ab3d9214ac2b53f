#include "kernels/matmul/matmul.h"

#include <string>

#include "kernels/core/emulated.h"
#include "kernels/core/error.h"
#include "kernels/matmul/matmul_kernels.h"
#include "kernels/matmul/matmul_orders.h"

namespace plumb {
namespace {

using namespace matmul_detail;

std::string shape(const char* what, std::int64_t rows, std::int64_t cols) {
  return std::string(what) + " is (" + std::to_string(rows) + ", " + std::to_string(cols) + ")";
}

void check_view(const char* what, const ConstMat& m) {
  if (m.rows < 0 || m.cols < 0) throw Error("matmul: " + shape(what, m.rows, m.cols) + "; sizes must not be negative");
  if (m.rows > 1 && m.stride < m.cols)
    throw Error("matmul: " + shape(what, m.rows, m.cols) + " with row stride " + std::to_string(m.stride) +
                "; the stride must be at least the columns");
  if (m.data == nullptr && m.rows * m.cols > 0) throw Error("matmul: " + shape(what, m.rows, m.cols) + " but has no memory");
}

void check(const Matmul& m) {
  const bool has_b = m.b.mat || !m.packed;
  const std::int64_t rows = m.packed ? m.packed.rows : m.b.rows();
  const std::int64_t depth = m.packed ? m.packed.depth : m.b.depth();
  check_view("a", m.a.mat);
  check_view("c", m.c);
  if (has_b) check_view("b", m.b.mat);
  if (has_b && m.packed && (m.b.rows() != rows || m.b.depth() != depth))
    throw Error("matmul: " + shape("b", m.b.rows(), m.b.depth()) + " but " + shape("packed", rows, depth) +
                "; they must be the same weight");
  if (m.a.depth() != depth)
    throw Error("matmul: " + shape("a", m.a.rows(), m.a.depth()) + " and " + shape("b", rows, depth) + "; both need the same depth");
  if (m.c.rows != m.a.rows() || m.c.cols != rows)
    throw Error("matmul: " + shape("c", m.c.rows, m.c.cols) + " but the product is (" + std::to_string(m.a.rows()) + ", " +
                std::to_string(rows) + ")");
  if (m.bias && (m.bias.rows != 1 || m.bias.cols != rows))
    throw Error("matmul: " + shape("bias", m.bias.rows, m.bias.cols) + "; it must be (1, " + std::to_string(rows) + ")");
  if (m.accumulate && m.c.dtype != DType::f32)
    throw Error("matmul: accumulate needs an f32 c, which is " + std::string(name_of(m.c.dtype)));
}

/// The same product as the kernels know it: emulated formats are FP32 memory.
Matmul in_memory(Matmul m) {
  for (DType* t : {&m.a.mat.dtype, &m.b.mat.dtype, &m.packed.dtype, &m.bias.dtype, &m.c.dtype}) *t = memory_dtype(*t);
  return m;
}

/// What c is rounded to where the kernels cannot do it; f32: nothing.
DType emulated_rounding(const Matmul& m) {
  if (is_emulated(m.c.dtype)) return m.c.dtype;
  return m.c.dtype == DType::f32 && m.round && is_emulated(m.round_to) ? m.round_to : DType::f32;
}

/// Calls product(m) with what the kernels do of it, then round(c, to) where that leaves something.
template <class Product, class Round>
void with_kernels(const Matmul& m, Product&& product, Round&& round) {
  check(m);
  Matmul inner = in_memory(m);
  const DType to = emulated_rounding(m);
  if (m.round && (to != DType::f32 || m.round_to == DType::f32)) inner.round = false;
  product(inner);
  if (to != DType::f32) round(inner.c, to);
}

}  // namespace

std::size_t packed_bytes(std::int64_t rows, std::int64_t depth, DType dtype) {
  return std::size_t((rows + kPanelCols - 1) / kPanelCols * panel_bytes(depth, dtype));
}

void pack_weight(Context& ctx, ConstMat w, std::int64_t first, std::int64_t count, void* panels) {
  const std::int64_t end = first + count;
  if (first < 0 || count < 0 || end > w.rows || first % kPanelCols != 0 || (end % kPanelCols != 0 && end != w.rows))
    throw Error("pack_weight: rows [" + std::to_string(first) + ", " + std::to_string(end) + ") of " + std::to_string(w.rows) +
                "; a range must start at a multiple of 32 and end at one or at the last row");
  w.dtype = memory_dtype(w.dtype);
  const std::int64_t stride = panel_bytes(w.cols, w.dtype);
  const MatmulOperand b{.mat = w};
  ctx.parallel_for((count + kPanelCols - 1) / kPanelCols, 1, [&](std::int64_t begin, std::int64_t finish, int) {
    const std::int64_t row = first + begin * kPanelCols;
    const std::int64_t last = first + finish * kPanelCols;
    pack_panels(b, row, (last < end ? last : end) - row, 0, w.cols, static_cast<char*>(panels) + row / kPanelCols * stride, stride);
  });
}

void matmul(Context& ctx, const Matmul& m, MatmulOrder order) {
  const auto product = [&](const Matmul& inner) {
    if (is_pair_swapped(order, inner.a.depth())) return matmul_cpu(ctx, inner);
    matmul_ordered(ctx, inner, order);
  };
  with_kernels(m, product, [&](const Mat& c, DType to) { round_memory(ctx, c, to); });
}

void matmul_on_thread(Context& ctx, int thread, const Matmul& m, MatmulOrder order) {
  const auto product = [&](const Matmul& inner) {
    if (is_pair_swapped(order, inner.a.depth())) return matmul_cpu_on_thread(ctx, thread, inner);
    matmul_ordered_on_thread(ctx, thread, inner, order);
  };
  with_kernels(m, product, [](const Mat& c, DType to) {
    for (std::int64_t r = 0; r < c.rows; ++r)
      for (std::int64_t j = 0; j < c.cols; ++j) c.row<float>(r)[j] = round_to(to, c.row<float>(r)[j]);
  });
}

}  // namespace plumb
