// Storage types and the rounding functions of the engine, R (BF16) first of all, for scalars.
// Vector lanes use the same algorithm (lanes.h); a test compares the two over every exponent.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

#if defined(__FAST_MATH__)
#error "Plumb's results are defined bit by bit: build without -ffast-math"
#endif

namespace plumb {

/// How a tensor is stored. Arithmetic is FP32 whatever the storage. f16 and the formats of e8_dtype are emulated: their values are held
/// in FP32 memory, and every store to such a tensor rounds (see round_to).
enum class DType : std::uint8_t { f32 = 0, bf16 = 1, f16 = 2, e8 = 0x20 };

/// The format with BF16's eight exponent bits and `mantissa_bits` (1 .. 23) stored mantissa bits, held in FP32 memory. With 7 it has
/// BF16's values; a model that means BF16 says DType::bf16.
constexpr DType e8_dtype(int mantissa_bits) { return DType(int(DType::e8) | mantissa_bits); }
/// Of a format made by e8_dtype; 0 for any other.
constexpr int e8_mantissa_bits(DType t) { return int(t) >= int(DType::e8) ? int(t) & 0x1F : 0; }
/// True for formats whose values are held in FP32 memory.
constexpr bool is_emulated(DType t) { return int(t) >= int(DType::f16); }
/// The type in memory: f32 or bf16.
constexpr DType memory_dtype(DType t) { return is_emulated(t) ? DType::f32 : t; }

constexpr std::size_t bytes_of(DType t) { return t == DType::bf16 ? 2 : 4; }
/// "f32", "bf16", "f16", "e8m4": what is no BF16 is never called so.
constexpr const char* name_of(DType t) {
  constexpr const char* kE8[] = {"e8m0",  "e8m1",  "e8m2",  "e8m3",  "e8m4",  "e8m5",  "e8m6",  "e8m7",
                                 "e8m8",  "e8m9",  "e8m10", "e8m11", "e8m12", "e8m13", "e8m14", "e8m15",
                                 "e8m16", "e8m17", "e8m18", "e8m19", "e8m20", "e8m21", "e8m22", "e8m23"};
  if (t == DType::f32) return "f32";
  if (t == DType::bf16) return "bf16";
  return t == DType::f16 ? "f16" : kE8[e8_mantissa_bits(t)];
}

/// A stored BF16 value: the upper half of an FP32.
struct BF16 {
  std::uint16_t bits;
};
/// An IEEE half-precision value as files hold it.
struct F16 {
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

/// Exact. Half-precision denormals are normal in FP32; every NaN becomes the same quiet one.
constexpr float to_float(F16 x) {
  const std::uint32_t magnitude = x.bits & 0x7FFFu;
  const std::uint32_t sign = std::uint32_t(x.bits & 0x8000u) << 16;
  if (magnitude > 0x7C00u) return std::bit_cast<float>(0x7FC00000u);
  if (magnitude == 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u);
  const std::uint32_t wide =
      magnitude >= 0x400u ? (magnitude << 13) + 0x38000000u : std::bit_cast<std::uint32_t>(float(magnitude) * 0x1p-24f);
  return std::bit_cast<float>(sign | wide);
}

/// FP32 -> half precision as vcvtps2ph does it: nearest, ties to even, denormals kept, overflow (from 65520 on) to infinity; every NaN
/// becomes 0x7E00.
constexpr F16 to_f16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = u & 0x7FFFFFFFu;
  const std::uint32_t sign = (u >> 16) & 0x8000u;
  if (magnitude > 0x7F800000u) return {0x7E00};
  if (magnitude >= 0x477FF000u) return {std::uint16_t(sign | 0x7C00u)};
  if (magnitude < 0x33000000u) return {std::uint16_t(sign)};  // below half of the smallest denormal
  if (magnitude >= 0x38800000u) {
    const std::uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
    return {std::uint16_t(sign | ((rounded - 0x38000000u) >> 13))};
  }
  const std::uint32_t shift = 126 - (magnitude >> 23);  // 14 .. 24
  const std::uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
  const std::uint32_t rest = mantissa & ((1u << shift) - 1);
  const std::uint32_t half = 1u << (shift - 1);
  std::uint32_t q = mantissa >> shift;
  if (rest > half || (rest == half && (q & 1u) != 0)) ++q;
  return {std::uint16_t(sign | q)};
}

/// x rounded to `bits` stored mantissa bits, otherwise as R: to_bf16 is the case of 7.
constexpr float round_e8(int bits, float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return std::bit_cast<float>(0x7FC00000u);
  if (magnitude < 0x00800000u) return std::bit_cast<float>(u & 0x80000000u);
  if (bits >= 23) return x;
  const std::uint32_t shift = 23u - std::uint32_t(bits);
  const std::uint32_t rounded = u + ((1u << (shift - 1)) - 1) + ((u >> shift) & 1u);
  return std::bit_cast<float>(rounded & ~((1u << shift) - 1));
}

/// x rounded to a format: R for bf16, nothing for f32.
constexpr float round_to(DType t, float x) {
  if (t == DType::f32) return x;
  if (t == DType::bf16) return round_bf16(x);
  return t == DType::f16 ? to_float(to_f16(x)) : round_e8(e8_mantissa_bits(t), x);
}

}  // namespace plumb
