#include "kernels/core/rng.h"

#include "kernels/core/math.h"

namespace plumb {
namespace {

constexpr std::uint32_t kMul0 = 0xD2511F53u;
constexpr std::uint32_t kMul1 = 0xCD9E8D57u;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9u;
constexpr std::uint32_t kWeyl1 = 0xBB67AE85u;

std::uint64_t mix(std::uint64_t z) {  // the finaliser of splitmix64
  z += 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

}  // namespace

std::array<std::uint32_t, 4> random_words(const RandomKey& key, std::uint64_t position) {
  const std::uint64_t k = mix(mix(key.seed) ^ (std::uint64_t(key.purpose) << 32 | key.step));
  std::uint32_t k0 = std::uint32_t(k);
  std::uint32_t k1 = std::uint32_t(k >> 32);
  std::array<std::uint32_t, 4> c = {std::uint32_t(position), std::uint32_t(position >> 32), key.draw, key.sample};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t(kMul0) * c[0];
    const std::uint64_t p1 = std::uint64_t(kMul1) * c[2];
    c = {std::uint32_t(p1 >> 32) ^ c[1] ^ k0, std::uint32_t(p1), std::uint32_t(p0 >> 32) ^ c[3] ^ k1, std::uint32_t(p0)};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return c;
}

float random_uniform(const RandomKey& key, std::uint64_t position) { return float(random_words(key, position)[0] >> 8) * 0x1p-24f; }

std::uint64_t random_below(const RandomKey& key, std::uint64_t position, std::uint64_t n) {
  const auto w = random_words(key, position);
  const std::uint64_t x = std::uint64_t(w[0]) << 32 | w[1];
  return std::uint64_t((static_cast<unsigned __int128>(x) * n) >> 64);
}

double random_normal(const RandomKey& key, std::uint64_t position) {
  const auto w = random_words(key, position);
  const double u = (double(std::uint64_t(w[0]) << 20 | w[1] >> 12) + 0.5) * 0x1p-52;
  const double v = double(std::uint64_t(w[2]) << 21 | w[3] >> 11) * 0x1p-53;
  return __builtin_sqrt(-2 * log_double(u)) * sin_cos_double(6.283185307179586476925 * v).cos;
}

}  // namespace plumb
