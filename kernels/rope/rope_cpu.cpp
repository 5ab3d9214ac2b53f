// No scratch: a head lives on the stack.
#include "kernels/rope/rope_cpu.h"

#include "kernels/core/rows.h"
#include "kernels/numerics/row_sum.h"
#include "kernels/numerics/site_dispatch.h"
#include "kernels/rope/rope_math.h"

namespace plumb::cpu {

namespace {

constexpr Sites kForwardSites =
    make_sites({Site::qk_norm_xhat, Site::qk_norm_out, Site::rope_cos_sin_table, Site::rope_rotated, Site::rope_products, Site::rope_out});
// All of them in hf_eager, forward (where the store rounds rope.out) and backward.
constexpr Sites kGradientSites =
    make_sites({Site::qk_norm_xhat, Site::qk_norm_out, Site::rope_cos_sin_table, Site::rope_rotated, Site::rope_products});
constexpr Sites kRoundedTable = make_sites({Site::rope_cos_sin_table});
constexpr Sites kFused = make_sites({Site::qk_norm_out});
constexpr Sites kFusedRoundedTable = make_sites({Site::qk_norm_out, Site::rope_cos_sin_table});

/// One head in FP32, with room so that whole lanes can be read at any offset.
struct Head {
  alignas(64) float values[kMaxHeadDim + kLanes];
};

/// Calls f(sum) with an empty sum in the given order for heads.
template <class S, class F>
void with_head_sum(RowSumOrder order, S, F&& f) {
  if constexpr (!std::is_same_v<S, EmulatedSites>)
    if (order == RowSumOrder::lanes16) return f(Lanes16Sum{});
  Head terms;
  f(OrderedSum{order, terms.values});
}

/// Calls f(j, n, c, s) over the first half of a head in lanes, with cos and sin of the row's position.
template <class S, class F>
void for_half(const RopeTable& table, std::int32_t position, S sites, F&& f) {
  const bool rounded = sites.rounded(Site::rope_cos_sin_table);
  const float* c = table.cos(position, rounded);
  const float* s = table.sin(position, rounded);
  for_lanes(0, table.head_dim() / 2, [&](std::int64_t j, auto n) { f(j, n, load16(c + j), load16(s + j)); });
}

/// The head's elements from `first` on, as FP32.
void load_head(const RowIn& in, std::int64_t first, int head_dim, Head& head) {
  for_lanes(0, head_dim, [&](std::int64_t i, auto n) { store16(head.values + i, in.load(first + i, n)); });
}

/// QK norm of a loaded head, in place; returns rstd.
template <class S, class Squares>
float normalise_head(const RowIn& weight, float eps, int head_dim, S sites, Head& head, Squares squares) {
  for_lanes(0, head_dim, [&](std::int64_t i, auto n) { squares.add(i, n, square(load16(head.values + i))); });
  const float rstd = rstd_of(squares.total(head_dim), head_dim, eps);
  for_lanes(0, head_dim, [&](std::int64_t i, auto n) {
    store16(head.values + i, qk_norm_out(sites, load16(head.values + i), F32x16(rstd), weight.load(i, n)));
  });
  return rstd;
}

template <class S, class Squares>
void forward_row(const RopeForward& a, std::int64_t r, S sites, Squares squares) {
  const int head_dim = a.table->head_dim();
  const int half = head_dim / 2;
  const RowIn in(a.in, r);
  const RowIn weight = a.norm_weight ? RowIn(a.norm_weight, 0) : RowIn();
  const RowOut out(a.out, r);
  Head head;
  for (int h = 0; h < a.heads; ++h) {
    const std::int64_t first = std::int64_t(h) * head_dim;
    load_head(in, first, head_dim, head);
    if (weight.data) {
      const float rstd = normalise_head(weight, a.eps, head_dim, sites, head, squares);
      if (a.rstd != nullptr) a.rstd[r * a.heads + h] = rstd;
    }
    for_half(*a.table, a.positions[r], sites, [&](std::int64_t j, auto n, F32x16 c, F32x16 s) {
      const auto y = rotate_step(sites, load16(head.values + j), load16(head.values + half + j), c, s);
      out.store(first + j, y.x, n);
      out.store(first + half + j, y.y, n);
    });
  }
}

/// dL/dnormed = (through the weight) dL/dxhat into `d`, then dL/dq to d_in.
template <class G, class Dots>
void norm_backward_head(const RopeBackward& a, std::int64_t r, std::int64_t first, float rstd, G g, Head& d, Dots dots) {
  const int head_dim = a.table->head_dim();
  const RowIn in(a.in, r);
  const RowIn weight(a.norm_weight, 0);
  const RowOut d_in(a.d_in, r);
  for_lanes(0, head_dim, [&](std::int64_t i, auto n) {
    const F32x16 dz = qk_norm_d_xhat(g, load_part(d.values + i, n), weight.load(i, n));
    store_part(d.values + i, dz, n);
    dots.add(i, n, dz * in.load(first + i, n));
  });
  const F32x16 factor(variance_factor(dots.total(head_dim), rstd, head_dim));
  for_lanes(0, head_dim, [&](std::int64_t i, auto n) {
    const F32x16 dz = load_part(d.values + i, n);
    d_in.store(first + i, dz * F32x16(rstd) + variance_gradient(factor, in.load(first + i, n)), n);
  });
}

template <class G, class Dots>
void backward_row(const RopeBackward& a, std::int64_t r, G g, Dots dots) {
  const int head_dim = a.table->head_dim();
  const int half = head_dim / 2;
  const RowIn d_out(a.d_out, r);
  const RowOut d_in(a.d_in, r);
  Head d;
  for (int h = 0; h < a.heads; ++h) {
    const std::int64_t first = std::int64_t(h) * head_dim;
    const auto rotate_back = [&](auto&& take) {
      for_half(*a.table, a.positions[r], g, [&](std::int64_t j, auto n, F32x16 c, F32x16 s) {
        const auto u = rotate_gradient_step(g, d_out.load(first + j, n), d_out.load(first + half + j, n), c, s);
        take(j, n, u);
      });
    };
    if (!a.norm_weight) {
      rotate_back([&](std::int64_t j, auto n, auto u) {
        d_in.store(first + j, u.x, n);
        d_in.store(first + half + j, u.y, n);
      });
      continue;
    }
    rotate_back([&](std::int64_t j, auto n, auto u) {
      store_part(d.values + j, rope_d_normed(g, u.x), n);
      store_part(d.values + half + j, rope_d_normed(g, u.y), n);
    });
    norm_backward_head(a, r, first, a.rstd[r * a.heads + h], g, d, dots);
  }
}

/// Rows in order, heads inner, for columns [begin, end) of the first half and their partners: one chain per column.
template <class G>
void weight_gradient(const RopeBackward& a, int begin, int end, G g) {
  const int head_dim = a.table->head_dim();
  const int half = head_dim / 2;
  for (std::int64_t r = 0; r < a.d_out.rows; ++r) {
    const RowIn d_out(a.d_out, r);
    const RowIn in(a.in, r);
    const bool rounded = g.rounded(Site::rope_cos_sin_table);
    const float* cos = a.table->cos(a.positions[r], rounded);
    const float* sin = a.table->sin(a.positions[r], rounded);
    for (int h = 0; h < a.heads; ++h) {
      const std::int64_t first = std::int64_t(h) * head_dim;
      const F32x16 rstd(a.rstd[r * a.heads + h]);
      const auto add = [&](std::int64_t i, auto n, F32x16 d) {
        const F32x16 term = qk_norm_d_weight_term(g, rope_d_normed(g, d), in.load(first + i, n), rstd);
        store_part(a.d_norm_weight + i, load_part(a.d_norm_weight + i, n) + term, n);
      };
      for_lanes(begin, end, [&](std::int64_t j, auto n) {
        const auto u = rotate_gradient_step(g, d_out.load(first + j, n), d_out.load(first + half + j, n), load16(cos + j), load16(sin + j));
        add(j, n, u.x);
        add(half + j, n, u.y);
      });
    }
  }
}

}  // namespace

void rope_forward(Context& ctx, const RopeForward& a, Sites sites, RowSumOrder order) {
  with_masks<0u, kRoundedTable.mask, kGradientSites.mask>(stored_sites(sites, Site::rope_out, a.out), kForwardSites, [&](auto s) {
    ctx.parallel_for(a.in.rows, row_grain(a.in.cols), [&](std::int64_t begin, std::int64_t end, int) {
      with_head_sum(order, s, [&](auto squares) {
        for (std::int64_t r = begin; r < end; ++r) forward_row(a, r, s, squares);
      });
    });
  });
}

void rope_backward(Context& ctx, const RopeBackward& a, Sites gradient_sites, RowSumOrder order) {
  with_masks<0u, kFused.mask, kFusedRoundedTable.mask, kGradientSites.mask>(gradient_sites, kGradientSites, [&](auto g) {
    // First: d_in may be d_out itself.
    if (a.norm_weight && a.d_norm_weight != nullptr) {
      const int half = a.table->head_dim() / 2;
      const int groups = (half + kLanes - 1) / kLanes;
      ctx.parallel_for(groups, row_grain(a.d_out.rows * a.heads * 2 * kLanes), [&](std::int64_t begin, std::int64_t end, int) {
        weight_gradient(a, int(begin) * kLanes, std::min(int(end) * kLanes, half), g);
      });
    }
    ctx.parallel_for(a.d_out.rows, row_grain(a.d_out.cols), [&](std::int64_t begin, std::int64_t end, int) {
      with_head_sum(order, g, [&](auto dots) {
        for (std::int64_t r = begin; r < end; ++r) backward_row(a, r, g, dots);
      });
    });
  });
}

}  // namespace plumb::cpu
