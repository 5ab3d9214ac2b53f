// Test only: residual RMSNorm in the plainest code, sums in double, rounding by policy.
#pragma once
#include <cmath>
#include <vector>

#include "kernels/core/testing.h"
#include "kernels/rmsnorm/rmsnorm.h"

namespace plumb::ref {

inline void rmsnorm_forward(const RmsNormForward& a, Sites sites) {
  const auto r = [&](Site s, float x) { return sites.rounded(s) ? round_bf16(x) : x; };
  const std::int64_t n = a.out.cols;
  for (std::int64_t row = 0; row < a.out.rows; ++row) {
    std::vector<float> sum(std::size_t(n), 0.0f);
    double squares = 0;
    for (std::int64_t c = 0; c < n; ++c) {
      float& s = sum[std::size_t(c)];
      s = test::get(a.stream_in, row, c) + (a.delta ? test::get(a.delta, row, c) : 0.0f);
      squares += std::pow(double(r(Site::resid_sum_to_var, s)), 2);
    }
    const float rstd = float(1 / std::sqrt(squares / double(n) + a.eps));
    if (a.rstd) a.rstd[row] = rstd;
    for (std::int64_t c = 0; c < n; ++c) {
      const float s = sum[std::size_t(c)];
      if (a.stream_out) test::set(a.stream_out, row, c, r(Site::resid_store, s));
      if (a.sum) test::set(a.sum, row, c, s);
      const float xhat = r(Site::norm_xhat, r(Site::resid_sum_to_scale, s) * rstd);
      test::set(a.out, row, c, r(Site::norm_out, xhat * test::get(a.weight, 0, c)));
    }
  }
}

/// Every tensor of the forward that was rounded has a rounded gradient in mode mirror.
inline void rmsnorm_backward(const RmsNormBackward& a, Sites sites, BackwardMode mode) {
  const auto value = [&](Site s, float x) { return sites.rounded(s) ? round_bf16(x) : x; };
  const auto grad = [&](Site s, double x) { return mode == BackwardMode::mirror ? value(s, float(x)) : float(x); };
  const std::int64_t n = a.d_out.cols;
  for (std::int64_t row = 0; row < a.d_out.rows; ++row) {
    const double rstd = a.rstd[row];
    std::vector<double> dz(std::size_t(n), 0.0);
    double dot = 0;
    for (std::int64_t c = 0; c < n; ++c) {
      const float d = test::get(a.d_out, row, c);
      const float x = value(Site::resid_sum_to_scale, test::get(a.sum, row, c));
      dz[std::size_t(c)] = grad(Site::norm_xhat, d * test::get(a.weight, 0, c));
      dot += dz[std::size_t(c)] * x;
      if (a.d_weight) a.d_weight[c] += grad(Site::norm_xhat, d * grad(Site::norm_xhat, float(x * rstd)));
    }
    for (std::int64_t c = 0; c < n; ++c) {
      const double v = value(Site::resid_sum_to_var, test::get(a.sum, row, c));
      const double through_scale = rstd * dz[std::size_t(c)];
      const double through_variance = -v * std::pow(rstd, 3) / double(n) * dot;
      const bool one_tensor = sites.rounded(Site::resid_sum_to_scale) && sites.rounded(Site::resid_sum_to_var);
      double d = one_tensor ? grad(Site::resid_sum_to_var, through_scale + through_variance)
                            : grad(Site::resid_sum_to_scale, through_scale) + double(grad(Site::resid_sum_to_var, through_variance));
      if (a.d_stream) d += test::get(a.d_stream, row, c);
      test::set(a.d_sum, row, c, value(Site::resid_store, float(d)));
    }
  }
}

}  // namespace plumb::ref
