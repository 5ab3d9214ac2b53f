// No memory is allocated inside forward, backward or decode once the first batch has been through.
#include <gtest/gtest.h>

#include "model/model_testing.h"
#include "tests/support/allocation_counter.h"

namespace plumb {
namespace {

using namespace testing_model;

TEST(Allocations, TheCounterCounts) {
  if (!allocations_are_counted()) GTEST_SKIP() << "a sanitizer owns the allocator";
  const std::uint64_t before = allocation_count();
  const auto p = std::make_unique<std::vector<float>>(1000);
  EXPECT_GE(allocation_count(), before + 2);
  EXPECT_EQ(p->size(), 1000u);
}

class ModelAllocations : public ::testing::TestWithParam<std::string_view> {};

TEST_P(ModelAllocations, NoneInForwardAndBackward) {
  if (!allocations_are_counted()) GTEST_SKIP() << "a sanitizer owns the allocator";
  constexpr int kLengths[] = {9, 4, 17};
  const Numerics numerics = preset(GetParam());
  for (Family family : {Family::qwen3, Family::qwen2}) {
    for (const ModelExecution execution : {ModelExecution{}, ModelExecution{.merged_matmuls = false, .recompute = true}}) {
      const ModelConfig c = small_config(family);
      Context ctx(2);
      const auto w = make_weights(ctx, c, numerics.compute, lively_parameters(c, 3));
      const Packed p(random_sequences(c, kLengths, 7));
      const Batch batch = p.batch();
      Qwen model(c, numerics, execution, batch.rows, 64, true);
      GradientMemory g(*w);
      Buffer d(std::size_t(batch.rows * c.hidden_size) * bytes_of(numerics.compute));
      const auto step = [&] {
        model.forward(ctx, *w, batch, nullptr, true);
        model.backward(ctx, *w, batch, make_mat(d.data(), batch.rows, c.hidden_size, numerics.compute), g.views);
        finish_gradients(ctx, w->parameters(), c, numerics, g.views);
      };
      step();  // scratch memory grows to its size
      const std::uint64_t before = allocation_count();
      step();
      EXPECT_EQ(allocation_count(), before);
    }
  }
}

TEST_P(ModelAllocations, NoneInCachedDecode) {
  if (!allocations_are_counted()) GTEST_SKIP() << "a sanitizer owns the allocator";
  const Numerics numerics = preset(GetParam());
  const ModelConfig c = small_config(Family::qwen3);
  Context ctx(2);
  const auto w = make_weights(ctx, c, numerics.compute, lively_parameters(c, 3));
  Qwen model(c, numerics, {}, 8, 64, false);
  KvCache cache(c, numerics.compute, 64);
  const std::int32_t token = 5;
  std::uint64_t before = 0;
  for (std::int32_t position = 0; position < 20; ++position) {
    if (position == 1) before = allocation_count();
    const SequenceRows rows{.rows = 1, .first_pos = position};
    model.forward(ctx, *w, {.rows = 1, .tokens = &token, .positions = &position, .sequences = &rows, .n_sequences = 1}, &cache, false);
  }
  EXPECT_EQ(allocation_count(), before);
}

INSTANTIATE_TEST_SUITE_P(Presets, ModelAllocations, ::testing::ValuesIn(usable_presets()),
                         [](const auto& p) { return std::string(p.param); });

}  // namespace
}  // namespace plumb
