// Storage types and the one rounding function R of the engine, for scalars.
// Vector lanes use the same algorithm (lanes.h); a test compares the two over every exponent.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

#if defined(__FAST_MATH__)
#error "Plumb's results are defined bit by bit: build without -ffast-math"
#endif

namespace plumb {

/// How a tensor is stored. Arithmetic is FP32 whatever the storage.
enum class DType : std::uint8_t { f32, bf16 };

constexpr std::size_t bytes_of(DType t) { return t == DType::f32 ? 4 : 2; }
constexpr const char* name_of(DType t) { return t == DType::f32 ? "f32" : "bf16"; }

/// A stored BF16 value: the upper half of an FP32.
struct BF16 {
  std::uint16_t bits;
};

constexpr float to_float(BF16 x) { return std::bit_cast<float>(std::uint32_t(x.bits) << 16); }
constexpr float to_float(float x) { return x; }

/// FP32 -> BF16: nearest, ties to even. FP32 denormals become zero of the same sign and every NaN becomes
/// 0x7FC0, as vcvtneps2bf16 and the integer code then agree. Overflow goes to infinity.
constexpr BF16 to_bf16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return {0x7FC0};
  if (magnitude < 0x00800000u) return {std::uint16_t((u >> 16) & 0x8000u)};
  return {std::uint16_t((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16)};
}

/// R(x): the FP32 value of x rounded to BF16.
constexpr float round_bf16(float x) { return to_float(to_bf16(x)); }

}  // namespace plumb
