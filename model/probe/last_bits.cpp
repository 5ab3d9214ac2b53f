#include "model/probe/last_bits.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/core/error.h"

namespace plumb {
namespace {

double root_mean_square(const RegionTensor& t) {
  double sum = 0;
  for (std::int64_t i = 0; i < t.elements(); ++i) {
    const double x = t.at(i);
    if (std::isfinite(x)) sum += x * x;
  }
  return std::sqrt(sum / double(std::max<std::int64_t>(t.elements(), 1)));
}

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

bool close(double a, double b, double floor) { return std::abs(a - b) <= std::max(0x1p-17 * std::max(std::abs(a), std::abs(b)), floor); }

}  // namespace

std::int64_t elements_apart(const RegionTensor& want, const RegionTensor& got) {
  require(want.rows() == got.rows() && want.cols() == got.cols() && want.dtype() == got.dtype(),
          "internal: elements_apart: the tensors must be alike");
  const bool exact = want.dtype() == DType::bf16;
  const double floor = exact ? 0 : 0x1p-20 * root_mean_square(want);
  std::int64_t apart = 0;
  for (std::int64_t i = 0; i < want.elements(); ++i) {
    const float a = want.at(i), b = got.at(i);
    apart += !(same(a, b) || (!exact && close(a, b, floor)));
  }
  return apart;
}

}  // namespace plumb
