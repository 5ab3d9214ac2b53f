// Test only: QK norm and rotary embedding in the plainest code, sums and angles in double, rounding by policy.
#pragma once
#include <cmath>
#include <vector>

#include "kernels/core/testing.h"
#include "kernels/rope/rope.h"

namespace plumb::ref {

struct Angle {
  float cos;
  float sin;
};
inline Angle rope_angle(int head_dim, double theta, int j, int position, bool rounded) {
  const float frequency = 1.0f / float(std::pow(theta, double(float(2 * j) / float(head_dim))));
  const double angle = float(position) * frequency;
  const auto r = [&](double x) { return rounded ? round_bf16(float(x)) : float(x); };
  return {r(std::cos(angle)), r(std::sin(angle))};
}

inline double head_rstd(ConstMat in, std::int64_t row, std::int64_t first, int head_dim, float eps) {
  double squares = 0;
  for (int i = 0; i < head_dim; ++i) squares += std::pow(double(test::get(in, row, first + i)), 2);
  return float(1 / std::sqrt(squares / head_dim + eps));
}

inline void rope_forward(const RopeForward& a, double theta, Sites sites) {
  const auto r = [&](Site s, float x) { return sites.rounded(s) ? round_bf16(x) : x; };
  const int d = a.table->head_dim();
  for (std::int64_t row = 0; row < a.in.rows; ++row) {
    for (int h = 0; h < a.heads; ++h) {
      const std::int64_t first = std::int64_t(h) * d;
      std::vector<float> n(std::size_t(d), 0.0f);
      for (int i = 0; i < d; ++i) n[std::size_t(i)] = test::get(a.in, row, first + i);
      if (a.norm_weight) {
        const float rstd = float(head_rstd(a.in, row, first, d, a.eps));
        if (a.rstd) a.rstd[row * a.heads + h] = rstd;
        for (int i = 0; i < d; ++i) {
          float& x = n[std::size_t(i)];
          x = r(Site::qk_norm_out, r(Site::qk_norm_xhat, x * rstd) * test::get(a.norm_weight, 0, i));
        }
      }
      for (int i = 0; i < d; ++i) {
        const int j = i % (d / 2);
        const Angle t = rope_angle(d, theta, j, a.positions[row], sites.rounded(Site::rope_cos_sin_table));
        const float partner = i < d / 2 ? -n[std::size_t(i + d / 2)] : n[std::size_t(i - d / 2)];
        const float direct = r(Site::rope_products, n[std::size_t(i)] * t.cos);
        const float turned = r(Site::rope_products, r(Site::rope_rotated, partner) * t.sin);
        test::set(a.out, row, first + i, r(Site::rope_out, direct + turned));
      }
    }
  }
}

inline void rope_backward(const RopeBackward& a, double theta, Sites sites, BackwardMode rope, BackwardMode qk_norm) {
  const auto value = [&](Site s, double x) { return sites.rounded(s) ? double(round_bf16(float(x))) : x; };
  const auto grad = [&](BackwardMode m, Site s, double x) { return m == BackwardMode::mirror ? value(s, x) : x; };
  const int d = a.table->head_dim();
  for (std::int64_t row = 0; row < a.d_out.rows; ++row) {
    for (int h = 0; h < a.heads; ++h) {
      const std::int64_t first = std::int64_t(h) * d;
      std::vector<double> dn(std::size_t(d), 0.0);
      for (int i = 0; i < d; ++i) {
        const Angle t = rope_angle(d, theta, i % (d / 2), a.positions[row], sites.rounded(Site::rope_cos_sin_table));
        const double u = test::get(a.d_out, row, first + i);
        const double partner = i < d / 2 ? test::get(a.d_out, row, first + i + d / 2) : -test::get(a.d_out, row, first + i - d / 2);
        const bool rounds = rope == BackwardMode::mirror && sites.rounded(Site::rope_out);
        const bool bf16_heads = rounds && (!a.norm_weight || sites.rounded(Site::qk_norm_out));
        const auto rounded = [&](Site s, double x) { return bf16_heads ? double(round_bf16(float(x))) : rounds ? value(s, x) : x; };
        const double direct = rounded(Site::rope_products, u * t.cos);
        const double turned = rounded(Site::rope_rotated, rounded(Site::rope_products, partner * t.sin));
        dn[std::size_t(i)] = direct + turned;
      }
      if (!a.norm_weight) {
        for (int i = 0; i < d; ++i) test::set(a.d_in, row, first + i, float(dn[std::size_t(i)]));
        continue;
      }
      const double rstd = a.rstd[row * a.heads + h];
      double dot = 0;
      std::vector<double> dz(std::size_t(d), 0.0);
      for (int i = 0; i < d; ++i) {
        const double g = value(rope == BackwardMode::mirror ? Site::qk_norm_out : Site::rope_out, dn[std::size_t(i)]);
        const double q = test::get(a.in, row, first + i);
        dz[std::size_t(i)] = grad(qk_norm, Site::qk_norm_xhat, g * test::get(a.norm_weight, 0, i));
        dot += dz[std::size_t(i)] * q;
        const double product = g * grad(qk_norm, Site::qk_norm_xhat, float(q * rstd));
        const bool bf16_tensors = sites.rounded(rope == BackwardMode::mirror ? Site::qk_norm_out : Site::rope_out);
        const double term = bf16_tensors ? grad(qk_norm, Site::qk_norm_xhat, product) : product;
        if (a.d_norm_weight) a.d_norm_weight[i] += float(term);
      }
      for (int i = 0; i < d; ++i) {
        const double q = test::get(a.in, row, first + i);
        test::set(a.d_in, row, first + i, float(rstd * dz[std::size_t(i)] - q * std::pow(rstd, 3) / d * dot));
      }
    }
  }
}

}  // namespace plumb::ref
