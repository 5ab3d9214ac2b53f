#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/trainer/optimizer.h"
#include "engine/trainer/packing.h"
#include "engine/trainer/trainer.h"
#include "kernels/core/error.h"

namespace plumb {
namespace {

using testing::ElementsAre;

OptimizerConfig with_schedule(LrSchedule kind, int warmup, int total, double final_ratio = 0) {
  OptimizerConfig c{.lr = 2.0};
  c.schedule = {.kind = kind, .warmup_steps = warmup, .total_steps = total, .final_ratio = final_ratio};
  return c;
}

TEST(Schedule, CosineReferenceValues) {
  const OptimizerConfig c = with_schedule(LrSchedule::cosine, 22, 220);
  EXPECT_NEAR(learning_rate(c, 110) / c.lr, .58682409, 5e-9);
  EXPECT_NEAR(learning_rate(c, 198) / c.lr, .03015369, 5e-9);
  EXPECT_DOUBLE_EQ(learning_rate(c, 0), c.lr / 22);
  EXPECT_DOUBLE_EQ(learning_rate(c, 21), c.lr);
  EXPECT_DOUBLE_EQ(learning_rate(c, 22), c.lr);
  EXPECT_NEAR(learning_rate(c, 220), 0, 1e-15);
  EXPECT_NEAR(learning_rate(c, 1000), 0, 1e-15);
}

TEST(Schedule, LinearConstantAndFloor) {
  EXPECT_DOUBLE_EQ(learning_rate(with_schedule(LrSchedule::linear, 0, 10), 0), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(with_schedule(LrSchedule::linear, 0, 10), 4), 1.2);
  EXPECT_DOUBLE_EQ(learning_rate(with_schedule(LrSchedule::linear, 0, 10, 0.5), 4), 1.6);
  EXPECT_DOUBLE_EQ(learning_rate(with_schedule(LrSchedule::linear, 0, 10, 0.5), 99), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(with_schedule(LrSchedule::cosine, 0, 10, 0.25), 5), 2.0 * (0.25 + 0.75 * 0.5));
  EXPECT_DOUBLE_EQ(learning_rate(with_schedule(LrSchedule::constant, 4, 0), 1), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(with_schedule(LrSchedule::constant, 4, 0), 4000), 2.0);
}

TEST(Schedule, ImpossibleSettingsNameTheirKey) {
  const auto message = [](const OptimizerConfig& c) -> std::string {
    try {
      check_optimizer(c);
    } catch (const UsageError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message({}), "");
  EXPECT_THAT(message(with_schedule(LrSchedule::linear, 10, 10)), testing::HasSubstr("schedule.total_steps is 10"));
  EXPECT_THAT(message({.beta2 = 1}), testing::HasSubstr("beta2 is 1"));
  EXPECT_THAT(message({.grad_clip = -1}), testing::HasSubstr("grad_clip is -1"));
}

TEST(Optimizer, ClipFactorIsTorchs) {
  EXPECT_EQ(clip_factor(0.3, 1.0), 1.0f);
  EXPECT_EQ(clip_factor(123.0, 0.0), 1.0f);
  EXPECT_EQ(clip_factor(4.0, 1.0), 1.0f / (4.0f + 1e-6f));
  EXPECT_EQ(clip_factor(1.0, 1.0), 1.0f / (1.0f + 1e-6f));
}

TEST(Optimizer, RangesJoinTrainedNeighbours) {
  ModelConfig c;
  c.family = Family::llama;
  c.vocab_size = 10;
  c.hidden_size = 8;
  c.intermediate_size = 12;
  c.layers = 2;
  c.heads = c.kv_heads = 2;
  c.head_dim = 4;
  c.max_positions = 16;
  const ParameterList list(c);
  const Parameter& first = list.all().front();
  const Parameter& last = list.all().back();
  const auto all = trained_ranges(list, frozen_parameters(list, {}));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].first, first.offset);
  EXPECT_EQ(all[0].count, last.offset + last.size());
  const auto frozen = frozen_parameters(list, {"model.layers.0.*"});
  const auto two = trained_ranges(list, frozen);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].count, first.size());
  for (std::size_t i = 0; i < list.all().size(); ++i) EXPECT_EQ(frozen[i] != 0, list.all()[i].layer == 0);
}

TEST(MicroBatch, Case6LabelsAreShifted) {
  const std::vector<std::int32_t> ids = {7, 7, 7, 8, 9};  // p p p a a
  const TrainSequence s = {.tokens = ids, .prompt_len = 3};
  MicroBatch batch(16);
  ASSERT_EQ(batch.pack(std::span(&s, 1), 0), 1u);
  std::vector<std::int32_t> predicting;
  std::vector<std::int32_t> targets;
  for (std::int64_t i = 0; i < batch.responses(); ++i) {
    const std::int32_t head = batch.head_of_response()[i];
    predicting.push_back(batch.row_of_head()[head]);
    targets.push_back(batch.targets()[head]);
  }
  EXPECT_THAT(predicting, ElementsAre(2, 3));
  EXPECT_THAT(targets, ElementsAre(8, 9));
}

// Case 43: positions restart; every sequence and its head rows start even.
TEST(MicroBatch, SequencesStartAtEvenRowsAndPositionZero) {
  const std::vector<std::int32_t> a = {1, 2, 3};
  const std::vector<std::int32_t> b = {4, 5, 6, 7};
  const std::vector<TrainSequence> all = {{a, 2}, {b, 2}, {a, 3}, {b, 1}};
  MicroBatch batch(12);
  EXPECT_EQ(batch.pack(all, 0), 3u);
  EXPECT_EQ(batch.rows(), 12);
  const Batch packed = batch.batch();
  EXPECT_THAT(std::vector(packed.tokens, packed.tokens + 12), ElementsAre(1, 2, 3, -1, 4, 5, 6, 7, 1, 2, 3, -1));
  EXPECT_THAT(std::vector(packed.positions, packed.positions + 12), ElementsAre(0, 1, 2, 0, 0, 1, 2, 3, 0, 1, 2, 0));
  EXPECT_THAT(std::vector(batch.row_of_head(), batch.row_of_head() + batch.head_rows()), ElementsAre(0, 1, 4, 5, 6, 7));
  EXPECT_THAT(std::vector(batch.targets(), batch.targets() + batch.head_rows()), ElementsAre(-1, 3, -1, 6, 7, -1));
  EXPECT_THAT(std::vector(batch.head_of_row(), batch.head_of_row() + 12), ElementsAre(0, 1, -1, -1, 2, 3, 4, 5, -1, -1, -1, -1));
  EXPECT_EQ(batch.pack(all, 3), 1u);
  EXPECT_EQ(batch.rows(), 4);
  EXPECT_THROW(MicroBatch(2).pack(all, 0), Error);
}

}  // namespace
}  // namespace plumb
