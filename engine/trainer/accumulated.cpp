#include "engine/trainer/accumulated.h"

#include "engine/trainer/optimizer.h"
#include "kernels/elementwise/elementwise.h"

namespace plumb {
namespace {

constexpr std::int64_t kRow = 4096;  // rows of a view over a flat array, so that threads can share the work

/// Calls f(first, rows, columns) for the rows of kRow elements, then for the rest.
template <class F>
void in_rows(std::int64_t n, F&& f) {
  const std::int64_t done = n / kRow * kRow;
  if (done > 0) f(std::int64_t(0), n / kRow, kRow);
  if (done < n) f(done, std::int64_t(1), n - done);
}

}  // namespace

AccumulatedGradients::AccumulatedGradients(const AccumulationConfig& config, std::int64_t elements)
    : config_(config), elements_(elements), sum_(memory_bytes(config, elements)) {}

bool AccumulatedGradients::fill(std::int64_t sequences) {
  filled_ += sequences;
  return filled_ == config_.sequences;
}

void AccumulatedGradients::add(Context& ctx, const float* part) {
  auto* sum = static_cast<float*>(sum_.data());
  in_rows(elements_, [&](std::int64_t first, std::int64_t rows, std::int64_t cols) {
    const ConstMat from = make_const_mat(part + first, rows, cols, DType::f32);
    const Mat to = make_mat(sum + first, rows, cols, DType::f32);
    if (any_) {
      add_in_place(ctx, to, from);
    } else {
      convert(ctx, from, to);  // the first is taken as it is, with the sign of its zeros
    }
  });
  if (const DType to = dtype_of(config_.dtype); to != DType::f32) round_in_place(ctx, sum, elements_, to);
  any_ = true;
  filled_ = 0;
}

void AccumulatedGradients::take(Context& ctx, float* flat) const {
  const auto* sum = static_cast<const float*>(sum_.data());
  in_rows(elements_, [&](std::int64_t first, std::int64_t rows, std::int64_t cols) {
    const Mat to = make_mat(flat + first, rows, cols, DType::f32);
    if (!any_) return fill_zero(ctx, to);
    convert(ctx, make_const_mat(sum + first, rows, cols, DType::f32), to);
  });
}

void AccumulatedGradients::clear() {
  filled_ = 0;
  any_ = false;
}

}  // namespace plumb
