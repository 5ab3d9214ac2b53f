// Counter-based random numbers (Philox 4x32-10, Salmon et al. 2011): a pure function of a key and a counter.
// There is no state to save and none to drift; two draws with the same key are equal whatever else ran.
#pragma once
#include <array>
#include <cstdint>

namespace plumb {

/// What a draw is for; part of every key, so that no two purposes share numbers.
enum class Purpose : std::uint32_t { init = 1, sampling = 2, task = 3, shuffle = 4, eval = 5, test = 6 };

/// Identifies one random number: all fields take part.
struct RandomKey {
  std::uint64_t seed = 0;
  Purpose purpose = Purpose::test;
  std::uint32_t step = 0;    // optimizer step, or epoch for shuffles
  std::uint32_t draw = 0;    // index of the prompt draw within the step
  std::uint32_t sample = 0;  // sample within the prompt's group
};

/// Four independent 32-bit words for (key, position).
std::array<std::uint32_t, 4> random_words(const RandomKey& key, std::uint64_t position);

/// Uniform in [0, 1) with 24 bits, a multiple of 2^-24.
float random_uniform(const RandomKey& key, std::uint64_t position);

/// Uniform integer in [0, n), n >= 1, without modulo bias beyond 2^-64 * n.
std::uint64_t random_below(const RandomKey& key, std::uint64_t position, std::uint64_t n);

/// Standard normal (Box-Muller in double from two words).
double random_normal(const RandomKey& key, std::uint64_t position);

}  // namespace plumb
