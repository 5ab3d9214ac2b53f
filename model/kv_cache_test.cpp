#include "model/kv_cache.h"

#include <gtest/gtest.h>

#include <map>

#include "kernels/core/error.h"
#include "kernels/core/rng.h"
#include "model/model_testing.h"

namespace plumb {
namespace {

TEST(KvCache, SegmentsNeverOverlapAndAllSpaceComesBack) {
  const ModelConfig c = testing_model::small_config(Family::qwen3);
  constexpr std::int64_t kPositions = 200;
  KvCache cache(c, DType::bf16, kPositions);
  EXPECT_EQ(cache.memory_bytes(), kPositions * KvCache::bytes_per_position(c, DType::bf16));
  std::map<std::int64_t, std::int64_t> live;  // first row -> length
  for (std::uint64_t step = 0; step < 3000; ++step) {
    if (random_below({.seed = 1}, step, 2) == 0 && !live.empty()) {
      auto it = live.begin();
      std::advance(it, random_below({.seed = 2}, step, live.size()));
      cache.release(it->first, it->second);
      live.erase(it);
      continue;
    }
    const auto length = std::int64_t(1 + random_below({.seed = 3}, step, 40));
    const std::int64_t first = cache.allocate(length);
    if (first < 0) continue;
    ASSERT_LE(first + length, kPositions);
    const auto after = live.lower_bound(first);
    if (after != live.end()) {
      ASSERT_LE(first + length, after->first);
    }
    if (after != live.begin()) {
      ASSERT_LE(std::prev(after)->first + std::prev(after)->second, first);
    }
    live[first] = length;
  }
  for (const auto& [first, length] : live) cache.release(first, length);
  EXPECT_EQ(cache.allocate(kPositions), 0);
  EXPECT_EQ(cache.allocate(1), -1);
}

TEST(KvCache, ReleasingWhatIsFreeIsAnError) {
  KvCache cache(testing_model::small_config(Family::llama), DType::f32, 10);
  const std::int64_t first = cache.allocate(4);
  EXPECT_THROW(cache.release(first, 5), Error);
  EXPECT_THROW(cache.release(-1, 1), Error);
  cache.release(first, 4);
  EXPECT_THROW(cache.release(first, 4), Error);
}

TEST(KvCache, LayersHaveRowsOfTheirOwn) {
  const ModelConfig c = testing_model::small_config(Family::qwen2);
  KvCache cache(c, DType::bf16, 10);
  const auto bytes = std::ptrdiff_t(10 * c.kv_cols() * 2);
  const char* base = static_cast<const char*>(cache.k(0).data);
  for (int l = 0; l < c.layers; ++l) {
    EXPECT_EQ(static_cast<const char*>(cache.k(l).data) - base, l * bytes);
    EXPECT_EQ(static_cast<const char*>(cache.v(l).data) - base, (c.layers + l) * bytes);
    EXPECT_EQ(cache.k(l).rows, 10);
    EXPECT_EQ(cache.v(l).stride, c.kv_cols());
  }
}

}  // namespace
}  // namespace plumb
