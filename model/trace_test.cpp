#include "model/trace.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "model/model_testing.h"

namespace plumb {
namespace {

using namespace testing_model;

TEST(TracedForward, IsTheForwardBitForBitAndShowsEveryStageOnce) {
  Context ctx(2);
  for (const Family family : {Family::qwen3, Family::qwen2, Family::llama}) {
    const ModelConfig config = small_config(family);
    const Buffer master = lively_parameters(config, 3);
    const std::array lengths = {9, 24};
    const Packed packed(random_sequences(config, lengths, 5));
    for (const std::string_view name : usable_presets()) {
      const Numerics numerics = preset(name);
      const auto weights = make_weights(ctx, config, numerics.compute, master);
      Qwen model(config, numerics, {}, packed.batch().rows, 64, false);
      const std::vector<float> want = to_floats(model.forward(ctx, *weights, packed.batch(), nullptr, false));
      TracedForward traced(config, numerics, packed.batch().rows, 64);
      std::multiset<std::pair<int, Stage>> seen;
      std::vector<float> last;
      const std::vector<float> got = to_floats(traced.run(ctx, *weights, packed.batch(), [&](int layer, Stage stage, ConstMat m) {
        seen.insert({layer, stage});
        last = to_floats(m);
        EXPECT_EQ(m.rows, packed.batch().rows);
      }));
      EXPECT_EQ(got, want) << name;
      EXPECT_EQ(last, want) << name;
      const int once = 2, per_layer = kStages - once;
      EXPECT_EQ(int(seen.size()), once + config.layers * per_layer - 1) << "the first input norm stores nothing";
      for (const auto& key : seen) EXPECT_EQ(seen.count(key), 1u);
    }
  }
}

}  // namespace
}  // namespace plumb
