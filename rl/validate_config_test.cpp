#include "rl/validate_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "engine/config/config.h"
#include "engine/config/model_yaml.h"
#include "kernels/core/error.h"
#include "tests/paths.h"

namespace plumb {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string refusal_of(const std::vector<std::string>& sets) {
  try {
    validate(parse_config<RunConfig>("model: {config: addition-167k}\n", "f.yaml", sets));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ValidateConfig, DefaultsAreFine) {
  EXPECT_EQ(refusal_of({}), "no error");
  EXPECT_EQ(refusal_of({"run.algorithm=sft", "sft.batch=5"}), "no error");
}

TEST(ValidateConfig, EveryShippedRunLoadsAndIsFine) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(test::source_dir) + "/configs/runs")) {
    auto config = load_config<RunConfig>(entry.path());
    // A run that starts from a model of somebody's is told where that is.
    if (config.model.path.empty() && config.model.config.empty()) config.model.path = test::source_dir;
    EXPECT_NO_THROW(validate(config)) << entry.path();
    const std::string shape = config.model.config;
    EXPECT_NO_THROW(shape.empty() ? ModelConfig{} : read_model_yaml(std::string(test::source_dir) + "/configs/models/" + shape + ".yaml"));
    ++files;
  }
  EXPECT_GE(files, 1);
}

TEST(ValidateConfig, GroupsNeedTwo) {
  // cases.md 13
  EXPECT_THAT(refusal_of({"rollout.samples=1"}), AllOf(HasSubstr("run.algorithm"), HasSubstr("rollout.samples")));
}

TEST(ValidateConfig, SlipsOfTheKeyboardAreRefused) {
  EXPECT_THAT(refusal_of({"execution.threads=100000"}),
              AllOf(HasSubstr("execution.threads is 100000"), HasSubstr("a whole number from 0 (one per core) to 1024 is right")));
  EXPECT_THAT(refusal_of({"eval.problems=1000000000"}), HasSubstr("eval.problems is 1000000000"));
  EXPECT_THAT(refusal_of({"rollout.prompts=1000000000"}), HasSubstr("rollout.prompts"));
  EXPECT_THAT(refusal_of({"rollout.samples=1000000000"}), HasSubstr("rollout.samples"));
  EXPECT_THAT(refusal_of({"warm_start.steps=1", "warm_start.batch=1000000000"}), HasSubstr("warm_start.batch is 1000000000"));
  EXPECT_THAT(refusal_of({"warm_start.steps=1", "warm_start.stop_reward=-1"}), HasSubstr("warm_start.stop_reward is -1"));
  EXPECT_THAT(refusal_of({"run.algorithm=sft", "sft.steps=5"}), AllOf(HasSubstr("sft.steps"), HasSubstr("run.steps")));
}

TEST(ValidateConfig, TheBestCheckpointIsChosenByAMetricThatExists) {
  EXPECT_EQ(refusal_of({"checkpoint.keep_best=eval/greedy", "eval.every=5"}), "no error");
  EXPECT_EQ(refusal_of({"checkpoint.keep_best=eval/pass@6", "eval.every=5", "eval.k=6"}), "no error");
  EXPECT_THAT(refusal_of({"checkpoint.keep_best=eval/gredy", "eval.every=5"}), HasSubstr("did you mean 'eval/greedy'?"));
  EXPECT_THAT(refusal_of({"checkpoint.keep_best=eval/pass@6", "eval.every=5"}), HasSubstr("checkpoint.keep_best"));
}

TEST(ValidateConfig, ImpossibleCombinationsNameBothKeys) {
  const std::vector<std::pair<std::vector<std::string>, std::pair<const char*, const char*>>> cases = {
      {{"optimizer.schedule.kind=cosine"}, {"optimizer.schedule.kind", "optimizer.schedule.total_steps"}},
      {{"optimizer.schedule.kind=linear"}, {"optimizer.schedule.kind", "optimizer.schedule.total_steps"}},
      {{"optimizer.schedule={kind: cosine, warmup_steps: 9, total_steps: 9}"}, {"warmup_steps", "total_steps"}},
      {{"sampling.temperature=0"}, {"sampling.temperature", "run.algorithm"}},
      {{"rollout.prompts=10", "grpo.mini_batches=4"}, {"grpo.mini_batches", "rollout.prompts"}},
      {{"rollout.source=recorded"}, {"rollout.source", "rollout.file"}},
      {{"rollout.file=x.jsonl"}, {"rollout.source", "rollout.file"}},
      {{"grpo.kl_coef=0.1"}, {"grpo.kl_coef", "grpo.kl"}},
      {{"grpo.constant_length=5"}, {"grpo.constant_length", "grpo.aggregation"}},
      {{"execution.micro_batch_tokens=32", "sampling.max_new_tokens=32"}, {"execution.micro_batch_tokens", "sampling.max_new_tokens"}},
      {{"model.path=/tmp"}, {"model.path", "model.config"}},
      {{"model.config="}, {"model.path", "model.config"}},
      {{"checkpoint.keep_best=eval/greedy"}, {"checkpoint.keep_best", "eval.every"}},
      {{"eval.k=4", "eval.temperature=0"}, {"eval.k", "eval.temperature"}},
      {{"task.held_out_file=/dev/null"}, {"task.held_out_file", "task."}},
      {{"sft.steps=3"}, {"sft.steps", "warm_start.steps"}},
      {{"warm_start.steps=3", "optimizer.precision.weights=bf16"},
       {"warm_start.optimizer.precision.weights", "optimizer.precision.weights"}},
  };
  for (const auto& [sets, keys] : cases) EXPECT_THAT(refusal_of(sets), AllOf(HasSubstr(keys.first), HasSubstr(keys.second))) << sets[0];
}

TEST(ValidateConfig, ValuesOutOfRangeAreRefused) {
  for (const char* set : {"run.steps=-1",
                          "optimizer.lr=-1",
                          "optimizer.beta1=1",
                          "optimizer.eps=0",
                          "sampling.top_p=0",
                          "sampling.top_p=1.5",
                          "sampling.max_new_tokens=0",
                          "grpo.dual_clip=0.5",
                          "grpo.clip_low=2",
                          "grpo.epochs=0",
                          "checkpoint.keep=0",
                          "execution.threads=-1",
                          "sampling.stop=['']",
                          "optimizer.loss_scaling.scale=0",
                          "optimizer.loss_scaling.growth_factor=1",
                          "optimizer.loss_scaling.backoff_factor=1",
                          "optimizer.loss_scaling.growth_interval=0",
                          "optimizer.accumulation.sequences=-1",
                          "optimizer.accumulation.dtype=bf16",
                          "optimizer.accumulation.dtype=fp8",
                          "optimizer.precision.moments=fp16",
                          "task.digits=0",
                          "task.train_file=/no/such/file",
                          "model.tokenizer=/no/such"}) {
    const std::string key(set, std::strchr(set, '=') - set);
    EXPECT_THAT(refusal_of({set}), HasSubstr(key)) << set;
  }
}

TEST(ValidateConfig, UnknownPresetsSuggestTheNearest) {
  EXPECT_THAT(refusal_of({"numerics.rollout=fuesd"}), AllOf(HasSubstr("numerics.rollout"), HasSubstr("did you mean 'fused'?")));
  EXPECT_THAT(refusal_of({"numerics.update=hf_eagr"}), AllOf(HasSubstr("numerics.update"), HasSubstr("hf_eager")));
}

}  // namespace
}  // namespace plumb
