#include "kernels/swiglu/swiglu_cpu.h"

#include "kernels/core/rows.h"
#include "kernels/numerics/site_dispatch.h"
#include "kernels/swiglu/swiglu_math.h"

namespace plumb::cpu {

namespace {

constexpr Sites kForwardSites = make_sites({Site::swiglu_silu, Site::swiglu_out});
constexpr Sites kSilu = make_sites({Site::swiglu_silu});

}  // namespace

void swiglu_forward(Context& ctx, const SwigluForward& a, Sites sites) {
  with_masks<0u, kSilu.mask>(stored_sites(sites, Site::swiglu_out, a.out), kForwardSites, [&](auto s) {
    ctx.parallel_for(a.gate.rows, row_grain(4 * a.gate.cols), [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t r = begin; r < end; ++r) {
        const RowIn gate(a.gate, r);
        const RowIn up(a.up, r);
        const RowOut out(a.out, r);
        for_lanes(0, a.gate.cols, [&](std::int64_t i, auto n) { out.store(i, swiglu_step(s, gate.load(i, n), up.load(i, n)), n); });
      }
    });
  });
}

void swiglu_backward(Context& ctx, const SwigluBackward& a, Sites gradient_sites) {
  with_masks<0u, kSilu.mask>(gradient_sites, kSilu, [&](auto s) {
    ctx.parallel_for(a.gate.rows, row_grain(4 * a.gate.cols), [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t r = begin; r < end; ++r) {
        const RowIn d(a.d_out, r);
        const RowIn gate(a.gate, r);
        const RowIn up(a.up, r);
        const RowOut d_gate(a.d_gate, r);
        const RowOut d_up(a.d_up, r);
        for_lanes(0, a.gate.cols, [&](std::int64_t i, auto n) {
          const auto g = swiglu_gradient_step(s, d.load(i, n), gate.load(i, n), up.load(i, n));
          d_gate.store(i, g.gate, n);
          d_up.store(i, g.up, n);
        });
      }
    });
  });
}

}  // namespace plumb::cpu
