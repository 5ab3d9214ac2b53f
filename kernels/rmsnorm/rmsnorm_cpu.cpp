// Scratch slots: op0 (one row of the unrounded sum, per thread), op1 (one row of terms, where their order is not lanes16).
#include "kernels/rmsnorm/rmsnorm_cpu.h"

#include "kernels/core/rows.h"
#include "kernels/numerics/row_sum.h"
#include "kernels/numerics/site_dispatch.h"
#include "kernels/rmsnorm/rmsnorm_math.h"

namespace plumb::cpu {

namespace {

constexpr Sites kForwardSites =
    make_sites({Site::resid_store, Site::resid_sum_to_var, Site::resid_sum_to_scale, Site::norm_xhat, Site::norm_out});
constexpr Sites kEagerForward = make_sites({Site::resid_sum_to_var, Site::resid_sum_to_scale, Site::norm_xhat});
constexpr Sites kSumSites = make_sites({Site::resid_sum_to_var, Site::resid_sum_to_scale});
constexpr Sites kStoreSite = make_sites({Site::resid_store});
constexpr Sites kGradientSites = make_sites({Site::resid_store, Site::resid_sum_to_var, Site::resid_sum_to_scale, Site::norm_xhat});

/// s into `sum` (FP32, the row's scratch) and wherever else it is wanted; returns the sum of squares.
template <class S, class Squares>
float add_row(const RmsNormForward& a, std::int64_t r, S sites, float* sum, Squares squares) {
  const RowIn stream(a.stream_in, r);
  const RowIn delta = a.delta ? RowIn(a.delta, r) : RowIn();
  const RowOut stored = a.stream_out ? RowOut(a.stream_out, r) : RowOut();
  const RowOut saved = a.sum ? RowOut(a.sum, r) : RowOut();
  for_lanes(0, a.stream_in.cols, [&](std::int64_t i, auto n) {
    F32x16 s = stream.load(i, n);
    if (delta.data) s = delta.load(i, n) + s;
    store_part(sum + i, s, n);
    if (stored.data) stored.store(i, stored_sum(sites, s), n);
    if (saved.data) saved.store(i, s, n);
    squares.add(i, n, square(variance_operand(sites, s)));
  });
  return squares.total(a.stream_in.cols);
}

template <class S>
void scale_row(const RmsNormForward& a, std::int64_t r, S sites, const float* sum, float rstd) {
  const RowIn weight(a.weight, 0);
  const RowOut out(a.out, r);
  for_lanes(0, a.out.cols, [&](std::int64_t i, auto n) {
    const F32x16 x = scale_operand(sites, load_part(sum + i, n));
    out.store(i, norm_out(sites, x, F32x16(rstd), weight.load(i, n)), n);
  });
}

/// S: the sites that the forward rounded at; G: those whose gradients round.
template <class S, class G, class Dots>
void backward_row(const RmsNormBackward& a, std::int64_t r, S sites, G g, Dots dots) {
  const std::int64_t cols = a.d_out.cols;
  const RowIn d_out(a.d_out, r);
  const RowIn sum(a.sum, r);
  const RowIn weight(a.weight, 0);
  const RowIn d_stream = a.d_stream ? RowIn(a.d_stream, r) : RowIn();
  const RowOut d_sum(a.d_sum, r);
  for_lanes(0, cols, [&](std::int64_t i, auto n) {
    const F32x16 dz = norm_d_xhat(g, d_out.load(i, n), weight.load(i, n));
    dots.add(i, n, dz * scale_operand(sites, sum.load(i, n)));
  });
  const F32x16 rstd(a.rstd[r]);
  const F32x16 factor(variance_factor(dots.total(cols), a.rstd[r], cols));
  for_lanes(0, cols, [&](std::int64_t i, auto n) {
    const F32x16 dz = norm_d_xhat(g, d_out.load(i, n), weight.load(i, n));
    F32x16 d = norm_d_sum(g, dz * rstd, variance_gradient(factor, variance_operand(sites, sum.load(i, n))));
    if (d_stream.data) d = d + d_stream.load(i, n);
    d_sum.store(i, norm_d_total(g, d), n);
  });
}

/// Rows in order for the columns [begin, end): one chain per column.
template <class S, class G>
void weight_gradient(const RmsNormBackward& a, std::int64_t begin, std::int64_t end, S sites, G g) {
  for (std::int64_t r = 0; r < a.d_out.rows; ++r) {
    const RowIn d_out(a.d_out, r);
    const RowIn sum(a.sum, r);
    const F32x16 rstd(a.rstd[r]);
    for_lanes(begin, end, [&](std::int64_t i, auto n) {
      const F32x16 term = norm_d_weight_term(g, d_out.load(i, n), scale_operand(sites, sum.load(i, n)), rstd);
      store_part(a.d_weight + i, load_part(a.d_weight + i, n) + term, n);
    });
  }
}

/// Calls f(sum) with an empty sum in the given order for rows of `cols` terms.
template <class S, class F>
void with_row_sum(Context& ctx, int thread, RowSumOrder order, std::int64_t cols, S, F&& f) {
  if constexpr (!std::is_same_v<S, EmulatedSites>)
    if (order == RowSumOrder::lanes16) return f(Lanes16Sum{});
  f(OrderedSum{order, ctx.scratch(thread, ScratchSlot::op1).get<float>(cols)});
}

template <class S, class G>
void backward(Context& ctx, const RmsNormBackward& a, S sites, G g, RowSumOrder order) {
  const std::int64_t cols = a.d_out.cols;
  if (a.d_weight != nullptr) {
    const std::int64_t groups = (cols + kLanes - 1) / kLanes;
    ctx.parallel_for(groups, row_grain(a.d_out.rows * kLanes), [&](std::int64_t begin, std::int64_t end, int) {
      weight_gradient(a, begin * kLanes, std::min(end * kLanes, cols), sites, g);
    });
  }
  ctx.parallel_for(a.d_out.rows, row_grain(cols), [&](std::int64_t begin, std::int64_t end, int thread) {
    with_row_sum(ctx, thread, order, cols, sites, [&](auto dots) {
      for (std::int64_t r = begin; r < end; ++r) backward_row(a, r, sites, g, dots);
    });
  });
}

}  // namespace

void rmsnorm_forward(Context& ctx, const RmsNormForward& a, Sites sites, RowSumOrder order) {
  const Sites inner = stored_sites(stored_sites(sites, Site::norm_out, a.out), Site::resid_store, a.stream_out);
  with_masks<0u, kEagerForward.mask>(inner, kForwardSites, [&](auto s) {
    ctx.parallel_for(a.stream_in.rows, row_grain(a.stream_in.cols), [&](std::int64_t begin, std::int64_t end, int thread) {
      float* sum = ctx.scratch(thread, ScratchSlot::op0).get<float>(a.stream_in.cols);
      with_row_sum(ctx, thread, order, a.stream_in.cols, s, [&](auto squares) {
        for (std::int64_t r = begin; r < end; ++r) {
          const float rstd = rstd_of(add_row(a, r, s, sum, squares), a.stream_in.cols, a.eps);
          if (a.rstd != nullptr) a.rstd[r] = rstd;
          scale_row(a, r, s, sum, rstd);
        }
      });
    });
  });
}

void rmsnorm_backward(Context& ctx, const RmsNormBackward& a, Sites sites, BackwardMode mode, RowSumOrder order) {
  const Sites inner = stored_sites(sites, Site::resid_store, a.d_sum);
  if (sites.to != DType::bf16) {
    const EmulatedSites forward{inner.mask & kGradientSites.mask, sites.to};
    const std::uint32_t fused = inner.mask & kStoreSite.mask;
    backward(ctx, a, forward, EmulatedSites{mode == BackwardMode::mirror ? forward.mask : fused, sites.to}, order);
  } else if (mode == BackwardMode::mirror) {
    with_bf16_masks<kEagerForward.mask>(inner, kGradientSites, [&](auto s) { backward(ctx, a, s, s, order); });
  } else if (inner.rounded(Site::resid_store)) {
    with_bf16_masks<0u, kSumSites.mask>(sites, kSumSites, [&](auto s) { backward(ctx, a, s, FixedSites<kStoreSite.mask>{}, order); });
  } else {
    with_bf16_masks<0u, kSumSites.mask>(sites, kSumSites, [&](auto s) { backward(ctx, a, s, FixedSites<0u>{}, order); });
  }
}

}  // namespace plumb::cpu
