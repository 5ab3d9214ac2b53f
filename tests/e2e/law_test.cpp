// The law: no Execution setting changes a bit. One GRPO run (warm start, two epochs, two mini-batches, a KL to a reference,
// evaluations) under many settings ends in checkpoints that are equal byte for byte.
#include <gtest/gtest.h>

#include "kernels/core/context.h"
#include "tests/e2e/process.h"

namespace plumb::e2e {
namespace {

std::map<std::string, std::string> final_checkpoint(const TempFolder& tmp, const std::string& name,
                                                    const std::vector<std::string>& settings, const std::string& numerics) {
  write_file(tmp / "run.yaml", tiny_grpo_config(3));
  std::vector<std::string> arguments = {"train", tmp / "run.yaml", "--out", tmp / name, "--quiet", "--set", numerics};
  for (const auto& s : settings) arguments.insert(arguments.end(), {"--set", s});
  const Finished f = plumb(arguments);
  EXPECT_EQ(f.code, 0) << name << ": " << f.err;
  return files_of(tmp / (name + "/latest/"));
}

class SlowLaw : public testing::TestWithParam<const char*> {};

TEST_P(SlowLaw, NoExecutionSettingChangesAByte) {
  TempFolder tmp;
  const auto baseline = final_checkpoint(tmp, "baseline", {}, GetParam());
  ASSERT_GT(baseline.size(), 4u);
  std::vector<std::vector<std::string>> matrix = {
      {"execution.threads=1"},
      {"execution.threads=2"},
      {"execution.threads=3"},
      {"execution.merged_matmuls=false"},
      {"execution.recompute=true"},
      {"execution.micro_batch_tokens=24"},
      {"execution.micro_batch_tokens=70", "execution.threads=2"},
      {"execution.logits_rows=2"},
      {"execution.logits_rows=6", "execution.micro_batch_tokens=40"},
      {"execution.sampler_sequences=1"},
      {"execution.sampler_sequences=3", "execution.prefill_tokens=2"},
      {"execution.sampler_sequences=7", "execution.recompute=true", "execution.merged_matmuls=false", "execution.threads=3",
       "execution.micro_batch_tokens=33"},
  };
  for (Isa isa : machine_isas()) matrix.push_back({std::string("execution.isa=") + name_of(isa)});
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    const auto got = final_checkpoint(tmp, "run" + std::to_string(i), matrix[i], GetParam());
    ASSERT_EQ(got.size(), baseline.size());
    for (const auto& [name, bytes] : baseline) EXPECT_TRUE(got.at(name) == bytes) << matrix[i][0] << " changes " << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, SlowLaw,
                         testing::Values("numerics={rollout: fused}", "numerics={rollout: vllm_cpu_compiled, update: hf_eager}",
                                         "numerics={rollout: fp32}"));

}  // namespace
}  // namespace plumb::e2e
