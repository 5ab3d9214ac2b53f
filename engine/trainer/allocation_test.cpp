// No allocation inside forward, backward, optimizer or decode after start-up: every call of the allocator counts.
#include <gtest/gtest.h>

#include "engine/engine_testing.h"
#include "engine/sampler/sampler.h"
#include "tests/support/allocation_counter.h"

namespace plumb {
namespace {

using namespace testing_engine;  // NOLINT(google-build-using-namespace)

template <class F>
std::int64_t allocations_of(F&& f) {
  const std::uint64_t before = allocation_count();
  f();
  return std::int64_t(allocation_count() - before);
}

/// Under a sanitizer there is nothing to count.
class Allocation : public testing::Test {
 protected:
  void SetUp() override {
    if (!allocations_are_counted()) GTEST_SKIP() << "a sanitizer owns the allocator";
  }
};

TEST_F(Allocation, TheCountersCount) {
  EXPECT_EQ(allocations_of([] { ::operator delete(::operator new(8)); }), 1);  // a new-expression could be optimised away
  EXPECT_GE(allocations_of([] { Buffer b(100); }), 1);
}

TEST_F(Allocation, NoneInATrainingStepAfterTheFirst) {
  for (const std::string_view name : usable_presets())
    for (const Family family : {Family::qwen3, Family::qwen2}) {
      const bool lean = family == Family::qwen2;
      Context ctx(2);
      const ModelConfig c = small_config(family);
      auto trainer = make_trainer(ctx, c, preset(name), {.merged_matmuls = !lean, .recompute = lean, .micro_batch_tokens = 60});
      const Sequences data = mixed_sequences(c);
      const auto views = data.views();
      const TokenObjective objective = weighted_objective(views);
      const auto step = [&] {
        trainer->accumulate(ctx, views, 0.7f, objective);
        trainer->step(ctx);
      };
      step();
      EXPECT_EQ(allocations_of(step), 0) << name;
    }
}

TEST_F(Allocation, NoneInDecodeButTheResults) {
  for (const std::string_view name : usable_presets()) {
    Context ctx(2);
    const ModelConfig c = small_config(Family::qwen3);
    const auto trainer = make_trainer(ctx, c, preset(name));
    constexpr int kSamples = 6;
    Sampler sampler(c, preset(name), {}, {.max_sequences = 4, .prefill_tokens = 8, .kv_positions = 100, .max_positions = 40});
    std::vector<GenerationRequest> requests;
    for (std::uint32_t i = 0; i < 3; ++i)
      requests.push_back({.prompt = random_ids(c, 5 + i, i), .key = {.draw = i}, .samples = kSamples, .max_new_tokens = 20});
    long in_steps = 0;
    long last = 0;
    const std::function<bool(std::int64_t, std::int64_t, std::int64_t)> progress = [&](std::int64_t, std::int64_t, std::int64_t) {
      in_steps += long(allocation_count()) - last;
      last = long(allocation_count());
      return true;
    };
    const auto generate = [&] {
      in_steps = 0;
      last = long(allocation_count());
      sampler.generate(ctx, trainer->weights(), requests, progress);
    };
    generate();
    // Per sample its four vectors; before the first step one list of requests and one of samples for each.
    const long results = long(requests.size()) * kSamples * 4 + 1 + long(requests.size());
    generate();
    EXPECT_EQ(in_steps, results) << name;
  }
}

}  // namespace
}  // namespace plumb
