// The formats that are held in FP32 memory: FP16, and BF16's exponent with any number of mantissa bits.
#include <gtest/gtest.h>
#include <immintrin.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/lanes.h"
#include "kernels/core/thread_pool.h"

namespace plumb {
namespace {

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

std::vector<DType> emulated_formats() {
  std::vector<DType> out = {DType::f16};
  for (int m = 1; m <= 23; ++m) out.push_back(e8_dtype(m));
  return out;
}

/// Every sign and exponent, the upper mantissa bits, and lower ones around every tie.
std::vector<float> probes() {
  std::vector<float> out;
  for (std::uint32_t upper = 0; upper < 0x10000; upper += 1) {
    for (std::uint32_t low : {0u, 1u, 0x0FFFu, 0x1000u, 0x1001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
      if ((upper & 0xFu) % 5 == low % 3) out.push_back(std::bit_cast<float>(upper << 16 | low));
  }
  for (int m = 1; m <= 23; ++m)  // ties of every width, both parities, and their neighbours
    for (std::uint32_t tail : {0u, 1u, 2u, 3u})
      for (int near : {-1, 0, 1}) {
        const std::uint32_t half = m < 23 ? 1u << (22 - m) : 0u;
        out.push_back(std::bit_cast<float>((0x3F800000u | tail << (23 - m) | half) + std::uint32_t(near)));
      }
  while (out.size() % 16 != 0) out.push_back(1.0f);
  return out;
}

/// Nearest by division in double: the format's spacing at x is 2^(exponent - mantissa), not below the spacing of its denormals.
float nearest_of(DType t, float x) {
  if (std::isnan(x)) return std::bit_cast<float>(0x7FC00000u);
  if (std::isinf(x) || x == 0) return x;
  const bool half = t == DType::f16;
  const int mantissa = half ? 10 : e8_mantissa_bits(t);
  if (!half && std::abs(x) < std::numeric_limits<float>::min()) return std::copysign(0.0f, x);
  const int exponent = std::max(std::ilogb(double(x)), half ? -14 : -126);
  const double spacing = std::ldexp(1.0, exponent - mantissa);
  const double rounded = std::nearbyint(double(x) / spacing) * spacing;  // ties to even
  const double largest = half ? 65504 : std::ldexp(2 - std::ldexp(1.0, -mantissa), 127);
  if (std::abs(rounded) > largest) return std::copysign(std::numeric_limits<float>::infinity(), x);
  return std::copysign(float(rounded), x);
}

TEST(Rounding, EveryFormatRoundsToTheNearestEven) {
  const std::vector<float> in = probes();
  for (DType t : emulated_formats())
    for (float x : in) ASSERT_EQ(bits(round_to(t, x)), bits(nearest_of(t, x))) << name_of(t) << " " << std::hex << bits(x);
}

TEST(Rounding, LanesAndScalarAgreeWithFlushedDenormalsToo) {
  const std::vector<float> in = probes();
  for (DType t : emulated_formats()) {
    for (bool flush : {false, true}) {
      std::optional<FtzScope> ftz;
      if (flush) ftz.emplace();
      for (std::size_t i = 0; i < in.size(); i += 16) {
        float lanes[16];
        store16(lanes, round_to(t, load16(in.data() + i)));
        for (std::size_t j = 0; j < 16; ++j)
          ASSERT_EQ(bits(lanes[j]), bits(round_to(t, in[i + j]))) << name_of(t) << " " << std::hex << bits(in[i + j]);
      }
    }
  }
}

TEST(Rounding, Fp16IsWhatTheHardwareConverts) {
  for (float x : probes()) {
    if (std::isnan(x)) continue;  // the hardware keeps payloads, the engine has one NaN
    ASSERT_EQ(to_f16(x).bits, _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)) << std::hex << bits(x);
  }
  for (std::uint32_t h = 0; h < 0x10000; ++h) {
    const F16 x{std::uint16_t(h)};
    const float wide = to_float(x);
    if (std::isnan(wide)) continue;
    ASSERT_EQ(bits(wide), bits(_cvtsh_ss(x.bits)));
    ASSERT_EQ(to_f16(wide).bits, h);
    ASSERT_EQ(bits(round_to(DType::f16, wide)), bits(wide));
  }
  EXPECT_EQ(to_f16(65519.99f).bits, 0x7BFF);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7C00);
  EXPECT_EQ(to_f16(-1e30f).bits, 0xFC00);
  EXPECT_EQ(to_f16(0x1p-25f).bits, 0);  // a tie between zero and the smallest denormal
  EXPECT_EQ(to_f16(0x1.8p-24f).bits, 2);
  EXPECT_EQ(to_f16(std::numeric_limits<float>::quiet_NaN()).bits, 0x7E00);
}

TEST(Rounding, SevenMantissaBitsAreBf16AndOthersAreNotCalledSo) {
  for (float x : probes()) ASSERT_EQ(bits(round_to(e8_dtype(7), x)), bits(round_bf16(x)));
  for (float x : probes()) ASSERT_EQ(bits(round_to(DType::bf16, x)), bits(round_bf16(x)));
  EXPECT_STREQ(name_of(e8_dtype(4)), "e8m4");
  EXPECT_STREQ(name_of(e8_dtype(23)), "e8m23");
  EXPECT_STREQ(name_of(DType::f16), "f16");
  for (DType t : emulated_formats()) {
    EXPECT_EQ(std::string(name_of(t)).find("bf16"), std::string::npos);
    EXPECT_EQ(bytes_of(t), 4u);
    EXPECT_EQ(memory_dtype(t), DType::f32);
  }
}

}  // namespace
}  // namespace plumb
