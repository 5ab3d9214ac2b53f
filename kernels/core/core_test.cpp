#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>
#include <thread>

#include "kernels/core/context.h"
#include "kernels/core/error.h"
#include "kernels/core/lanes.h"
#include "kernels/core/rng.h"

namespace plumb {
namespace {

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

TEST(Dtype, LanesAndScalarRoundAlikeForEveryExponentAndSign) {
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    float in[16];
    for (std::uint32_t i = 0; i < 16; ++i) {
      constexpr std::uint32_t kLow[16] = {0, 1,      0x7FFE, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF,
                                          2, 0x4000, 0xC000, 0x7000, 0x9000, 0x1234, 0xABCD, 0xF000};
      in[i] = std::bit_cast<float>(upper << 16 | kLow[i]);
    }
    float lanes[16];
    store16(lanes, round_bf16(load16(in)));
    BF16 stored[16];
    store16(stored, load16(in));
    for (int i = 0; i < 16; ++i) {
      ASSERT_EQ(bits(lanes[i]), bits(round_bf16(in[i]))) << std::hex << bits(in[i]);
      ASSERT_EQ(stored[i].bits, to_bf16(in[i]).bits) << std::hex << bits(in[i]);
    }
  }
}

TEST(Dtype, RoundsToNearestEven) {
  EXPECT_EQ(round_bf16(1.00390625f), 1.0f);       // tie to even: down
  EXPECT_EQ(round_bf16(1.01171875f), 1.015625f);  // tie to even: up
  EXPECT_EQ(round_bf16(std::numeric_limits<float>::max()), std::numeric_limits<float>::infinity());
  EXPECT_EQ(bits(round_bf16(-1e-40f)), 0x80000000u);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0xFFC12345u)).bits, 0x7FC0);
}

TEST(Lanes, PartialLoadsAndStoresTouchOnlyTheirElements) {
  for (int n = 0; n <= 16; ++n) {
    BF16 in[16];
    for (int i = 0; i < 16; ++i) in[i] = to_bf16(float(i + 1));
    float out[17];
    std::fill(out, out + 17, -1.0f);
    store_part(out, load_part(in, n), n);
    for (int i = 0; i < 17; ++i) EXPECT_EQ(out[i], i < n ? float(i + 1) : -1.0f);
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/// In a process of its own: room for a few thread stacks and no more.
[[noreturn]] void start_more_threads_than_fit() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t room = rlim_t(pages) * rlim_t(sysconf(_SC_PAGESIZE)) + (rlim_t(100) << 20);
  const rlimit limit{room, room};
  setrlimit(RLIMIT_AS, &limit);
  try {
    const ThreadPool pool(1000);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s", error.what());
    std::_Exit(3);
  }
  std::_Exit(0);
}

TEST(ThreadPoolDeathTest, ASystemWithoutRoomForTheThreadsIsOneError) {
  EXPECT_EXIT(start_more_threads_than_fit(), testing::ExitedWithCode(3), "cannot start 1000 threads");
}
#endif

TEST(ThreadPool, EveryThreadRunsOnceWithDenormalsFlushed) {
  Context ctx(3);
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::atomic<int> sum{0};
    std::atomic<int> flushed{0};
    ctx.parallel_for(3, 1, [&](std::int64_t begin, std::int64_t end, int) {
      volatile float tiny = 1e-30f;
      if (tiny * 1e-10f == 0.0f) ++flushed;
      for (std::int64_t i = begin; i < end; ++i) sum += int(i) + 1;
    });
    ASSERT_EQ(sum, 6);
    ASSERT_EQ(flushed, 3);
  }
}

TEST(ThreadPool, RunsEveryPartOnceHoweverItsThreadsCome) {
  // Many more threads than cores, short and long parts, pauses in which workers fall asleep.
  ThreadPool pool(9);
  std::array<int, 9> runs{};  // parts are written by one thread each, and read after run()
  for (int repeat = 1; repeat <= 300; ++repeat) {
    pool.run([&](int part) {
      if (part == repeat % 9) std::this_thread::sleep_for(std::chrono::microseconds(repeat % 50 == 0 ? 500 : 1));
      ++runs[std::size_t(part)];
    });
    for (const int r : runs) ASSERT_EQ(r, repeat);
    if (repeat % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(Rng, IsAFunctionOfItsKey) {
  const RandomKey key{.seed = 7, .purpose = Purpose::sampling, .step = 3, .draw = 2, .sample = 1};
  EXPECT_EQ(random_words(key, 5), random_words(key, 5));
  std::set<std::uint32_t> seen;
  for (std::uint64_t p = 0; p < 100; ++p) seen.insert(random_words(key, p)[0]);
  RandomKey other = key;
  for (int field = 0; field < 5; ++field) {
    other = key;
    if (field == 0) other.seed++;
    if (field == 1) other.purpose = Purpose::task;
    if (field == 2) other.step++;
    if (field == 3) other.draw++;
    if (field == 4) other.sample++;
    seen.insert(random_words(other, 5)[0]);
  }
  EXPECT_EQ(seen.size(), 105u);
}

TEST(Rng, MomentsAreRight) {
  const RandomKey key{.seed = 11};
  constexpr int n = 200000;
  double u1 = 0, g1 = 0, g2 = 0;
  std::array<int, 7> counts{};
  for (int i = 0; i < n; ++i) {
    u1 += random_uniform(key, std::uint64_t(i));
    const double g = random_normal(key, std::uint64_t(i) + n);
    g1 += g;
    g2 += g * g;
    counts[random_below(key, std::uint64_t(i) + 2 * n, 7)]++;
  }
  // five standard errors each
  EXPECT_NEAR(u1 / n, 0.5, 5 * std::sqrt(1.0 / 12 / n));
  EXPECT_NEAR(g1 / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(g2 / n, 1, 5 * std::sqrt(2.0 / n));
  for (int c : counts) EXPECT_NEAR(c, n / 7.0, 5 * std::sqrt(n / 7.0));
}

TEST(Context, RefusesAnIsaTheMachineLacks) {
  for (Isa isa : {Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::avx512mixed}) {
    if (machine_has(isa)) {
      EXPECT_EQ(Context(1, isa).isa(), isa);
    } else {
      EXPECT_THROW(Context(1, isa), Error);
    }
  }
}

}  // namespace
}  // namespace plumb
