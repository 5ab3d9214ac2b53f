// No allocation inside forward, backward, optimizer or decode after start-up: every operator new and aligned_alloc counts.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/engine_testing.h"
#include "engine/sampler/sampler.h"

namespace {
std::atomic<long> allocations{0};

void* counted(std::size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

// Tensor memory and scratch come from aligned_alloc; the linker sends every call of it here (--wrap).
extern "C" void* __real_aligned_alloc(std::size_t alignment, std::size_t bytes);
extern "C" void* __wrap_aligned_alloc(std::size_t alignment, std::size_t bytes) {
  ++allocations;
  return __real_aligned_alloc(alignment, bytes);
}

namespace plumb {
namespace {

using namespace testing_engine;  // NOLINT(google-build-using-namespace)

template <class F>
long allocations_of(F&& f) {
  const long before = allocations;
  f();
  return allocations - before;
}

TEST(Allocation, TheCountersCount) {
  EXPECT_EQ(allocations_of([] { delete new int; }), 1);
  EXPECT_GE(allocations_of([] { Buffer b(100); }), 1);
}

TEST(Allocation, NoneInATrainingStepAfterTheFirst) {
  for (const char* name : {"fused", "hf_eager", "vllm_cpu_compiled", "fp32"})
    for (const bool recompute : {false, true}) {
      Context ctx(2);
      const ModelConfig c = small_config(Family::qwen3);
      auto trainer = make_trainer(ctx, c, preset(name), {.recompute = recompute, .micro_batch_tokens = 60});
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

TEST(Allocation, NoneInDecodeButTheResults) {
  for (const char* name : {"fused", "hf_eager", "vllm_cpu_compiled", "fp32"}) {
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
      in_steps += allocations - last;
      last = allocations;
      return true;
    };
    const auto generate = [&] {
      in_steps = 0;
      last = allocations;
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
