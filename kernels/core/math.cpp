#include "kernels/core/math.h"

#include <array>

namespace plumb {

namespace {

inline double fma64(double a, double b, double c) { return __builtin_fma(a, b, c); }

/// c[0] + c[1] x + ... by Horner's rule in FMAs.
template <std::size_t n>
double horner(double x, const std::array<double, n>& c) {
  double p = c[n - 1];
  for (std::size_t i = n - 1; i > 0; --i) p = fma64(p, x, c[i - 1]);
  return p;
}

constexpr double factorial(int n) { return n <= 1 ? 1.0 : n * factorial(n - 1); }

/// (-1)^i / (2i + first)!: the Taylor series of sin (first = 1) and cos (first = 0) in x^2. Ten terms on |x| <= pi/4
/// leave less than 2^-64.
template <int first>
constexpr std::array<double, 10> alternating_series() {
  std::array<double, 10> c{};
  for (int i = 0; i < 10; ++i) c[std::size_t(i)] = (i % 2 ? -1.0 : 1.0) / factorial(2 * i + first);
  return c;
}

constexpr std::array<double, 15> exponential_series() {
  std::array<double, 15> c{};
  for (int i = 0; i < 15; ++i) c[std::size_t(i)] = 1.0 / factorial(i);
  return c;
}

/// 2 / (2i + 1): log((1 + s)/(1 - s)) / s as a series in s^2.
constexpr std::array<double, 14> atanh_series() {
  std::array<double, 14> c{};
  for (int i = 0; i < 14; ++i) c[std::size_t(i)] = 2.0 / (2 * i + 1);
  return c;
}

constexpr double kShift = 0x1.8p52;  // adding it rounds to an integer
constexpr double kHalfPiHigh = 0x1.921FB54442D18p+0;
constexpr double kHalfPiLow = 0x1.1A62633145C07p-54;
constexpr double kLn2High = 0x1.62E42FEFA39EFp-1;
constexpr double kLn2Low = 0x1.ABC9E3B39803Fp-56;

}  // namespace

SinCosDouble sin_cos_double(double x) {
  static constexpr auto kSin = alternating_series<1>();
  static constexpr auto kCos = alternating_series<0>();
  const double n = fma64(x, 0.63661977236758134308, kShift) - kShift;
  const double r = fma64(-n, kHalfPiLow, fma64(-n, kHalfPiHigh, x));
  const double square = r * r;
  const double s = r * horner(square, kSin);
  const double c = horner(square, kCos);
  switch (std::int64_t(n) & 3) {
    case 0: return {s, c};
    case 1: return {c, -s};
    case 2: return {-s, -c};
    default: return {-c, s};
  }
}

SinCos sin_cos_(float x) {
  const SinCosDouble y = sin_cos_double(x);
  return {float(y.sin), float(y.cos)};
}

double exp_double(double x) {
  static constexpr auto kExp = exponential_series();
  const double n = fma64(x, 1.44269504088896340736, kShift) - kShift;
  const double r = fma64(-n, kLn2Low, fma64(-n, kLn2High, x));
  return horner(r, kExp) * std::bit_cast<double>(std::uint64_t(std::int64_t(n) + 1023) << 52);
}

double log_double(double x) {
  static constexpr auto kAtanh = atanh_series();
  constexpr std::uint64_t kSqrtHalf = 0x3FE6A09E667F3BCDu;
  const std::uint64_t u = std::bit_cast<std::uint64_t>(x);
  const std::int64_t e = std::int64_t(u - kSqrtHalf) >> 52;
  const double m = std::bit_cast<double>(u - (std::uint64_t(e) << 52));
  const double s = (m - 1.0) / (m + 1.0);
  return fma64(double(e), kLn2High, fma64(s, horner(s * s, kAtanh), double(e) * kLn2Low));
}

}  // namespace plumb
