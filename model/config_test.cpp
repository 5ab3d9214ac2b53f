#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kernels/core/error.h"
#include "model/files/files.h"
#include "tests/support/temp_folder.h"

namespace plumb {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

class ModelConfigTest : public ::testing::Test {
 protected:
  static Json qwen3() {
    return {{"architectures", {"Qwen3ForCausalLM"}},
            {"model_type", "qwen3"},
            {"vocab_size", 320},
            {"hidden_size", 48},
            {"intermediate_size", 112},
            {"num_hidden_layers", 3},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"head_dim", 24},
            {"max_position_embeddings", 256},
            {"rms_norm_eps", 1e-6},
            {"rope_theta", 1e6},
            {"hidden_act", "silu"},
            {"tie_word_embeddings", true},
            {"eos_token_id", 1}};
  }
  ModelConfig read(const Json& json) {
    write_file(folder_ / "config.json", json.dump());
    return read_hf_config(folder_);
  }
  /// The message of the error, which must name the file.
  std::string error_of(const Json& json) {
    try {
      read(json);
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("config.json"));
      return e.what();
    }
    return "no error";
  }
  std::string error_with(const char* key, Json value) {
    Json json = qwen3();
    json[key] = std::move(value);
    return error_of(json);
  }
  const test::TempFolder folder_;
};

TEST_F(ModelConfigTest, ReadsQwen3) {
  const ModelConfig c = read(qwen3());
  EXPECT_EQ(c.family, Family::qwen3);
  EXPECT_EQ(c.vocab_size, 320);
  EXPECT_EQ(c.q_cols(), 96);
  EXPECT_EQ(c.kv_cols(), 48);
  EXPECT_EQ(c.layers, 3);
  EXPECT_EQ(c.rope_theta, 1e6);
  EXPECT_EQ(c.rms_eps, 1e-6f);
  EXPECT_TRUE(c.tied && c.qk_norm);
  EXPECT_FALSE(c.qkv_bias || c.o_bias || c.mlp_bias);
  EXPECT_EQ(c.eos_ids, std::vector<std::int32_t>{1});
}

TEST_F(ModelConfigTest, FamiliesDifferInBiasesAndDefaults) {
  Json json = qwen3();
  json["model_type"] = "qwen2";
  json["architectures"] = {"Qwen2ForCausalLM"};
  json.erase("head_dim");
  json.erase("tie_word_embeddings");
  ModelConfig c = read(json);
  EXPECT_TRUE(c.qkv_bias);
  EXPECT_FALSE(c.qk_norm || c.o_bias || c.tied);
  EXPECT_EQ(c.head_dim, 12);
  json["model_type"] = "llama";
  json["architectures"] = {"LlamaForCausalLM"};
  json["attention_bias"] = true;
  json["mlp_bias"] = true;
  json.erase("num_key_value_heads");
  c = read(json);
  EXPECT_TRUE(c.qkv_bias && c.o_bias && c.mlp_bias);
  EXPECT_EQ(c.kv_heads, 4);
}

TEST_F(ModelConfigTest, GenerationConfigAddsIds) {
  write_file(folder_ / "generation_config.json", R"({"eos_token_id": [5, 1], "pad_token_id": 7})");
  const ModelConfig c = read(qwen3());
  EXPECT_EQ(c.eos_ids, (std::vector<std::int32_t>{1, 5}));
  EXPECT_EQ(c.pad_id, 7);
  EXPECT_EQ(c.bos_id, std::nullopt);
}

// cases.md 42
TEST_F(ModelConfigTest, RopeThetaAtEitherPlace) {
  Json json = qwen3();
  EXPECT_EQ(read(json).rope_theta, 1e6);
  json["rope_parameters"] = {{"rope_theta", 1e6}, {"rope_type", "default"}};
  EXPECT_EQ(read(json).rope_theta, 1e6);
  json.erase("rope_theta");
  EXPECT_EQ(read(json).rope_theta, 1e6);
  json["rope_theta"] = 1e4;
  EXPECT_THAT(error_of(json), HasSubstr("rope_theta: 10000 at the top level, 1000000 inside rope_parameters"));
}

TEST_F(ModelConfigTest, RefusesByName) {
  EXPECT_THAT(error_with("rope_parameters", {{"rope_theta", 1e6}, {"rope_type", "yarn"}}), HasSubstr("rope_type: 'yarn'"));
  EXPECT_THAT(error_with("rope_scaling", {{"type", "linear"}, {"factor", 2}}), HasSubstr("'linear'"));
  EXPECT_THAT(error_with("architectures", {"MixtralForCausalLM"}), HasSubstr("architectures: 'MixtralForCausalLM'"));
  EXPECT_THAT(error_with("model_type", "llama"), HasSubstr("contradicts architectures"));
  EXPECT_THAT(error_with("hidden_act", "gelu"), HasSubstr("hidden_act: 'gelu'"));
  EXPECT_THAT(error_with("use_sliding_window", true), HasSubstr("use_sliding_window"));
  EXPECT_THAT(error_with("layer_types", {"full_attention", "sliding_attention"}), HasSubstr("sliding_attention"));
  EXPECT_THAT(error_with("quantization_config", {{"quant_method", "gptq"}}), HasSubstr("quantization_config"));
  EXPECT_THAT(error_with("vocab_size", "320"), HasSubstr("vocab_size"));
  EXPECT_THAT(error_with("vocab_size", 1e12), HasSubstr("vocab_size"));
  EXPECT_THAT(error_with("vocab_size", std::int64_t(1) << 40), HasSubstr("vocab_size"));
  EXPECT_THAT(error_with("num_hidden_layers", 0), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(error_with("num_attention_heads", -4), HasSubstr("num_attention_heads"));
  EXPECT_THAT(error_with("head_dim", 7), HasSubstr("head_dim"));
  EXPECT_THAT(error_with("eos_token_id", 320), HasSubstr("eos_token_id is 320"));
  EXPECT_THAT(error_with("hidden_size", nullptr), HasSubstr("hidden_size: missing"));
  EXPECT_THAT(error_with("rms_norm_eps", 0), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(error_with("pad_token_id", -2), HasSubstr("pad_token_id is -2"));
  EXPECT_EQ(error_with("pad_token_id", -1), "no error");
  EXPECT_EQ(error_with("sliding_window", 4096), "no error");  // Qwen's is off unless use_sliding_window says otherwise
}

// cases.md 44
TEST_F(ModelConfigTest, KvHeadsDivideHeads) {
  EXPECT_THAT(error_with("num_key_value_heads", 3), HasSubstr("num_attention_heads (4) must be a multiple of num_key_value_heads (3)"));
}

TEST_F(ModelConfigTest, WrittenConfigReadsBackEqual) {
  for (const char* family : {"qwen3", "qwen2", "llama"}) {
    Json json = qwen3();
    json["model_type"] = family;
    json.erase("architectures");
    json["eos_token_id"] = {3, 5};
    json["bos_token_id"] = 2;
    json["rms_norm_eps"] = 1e-5;
    if (std::string(family) != "qwen2") json["attention_bias"] = true;
    const ModelConfig c = read(json);
    const std::filesystem::path copy = folder_ / "copy";
    std::filesystem::create_directories(copy);
    write_hf_config(copy, c, "bfloat16");
    EXPECT_EQ(read_hf_config(copy), c) << family;
    const Json written = read_json(copy / "config.json");
    EXPECT_EQ(written["rms_norm_eps"], 1e-5);
    EXPECT_EQ(written["dtype"], "bfloat16");
    EXPECT_EQ(written["torch_dtype"], "bfloat16");
  }
}

TEST_F(ModelConfigTest, ParametersTileTheFlatSpace) {
  Json json = qwen3();
  json["tie_word_embeddings"] = false;
  json["attention_bias"] = true;
  const ModelConfig c = read(json);
  const ParameterList list(c);
  std::int64_t end = 0;
  std::int64_t count = 0;
  for (const Parameter& p : list.all()) {
    EXPECT_GE(p.offset, end);
    EXPECT_LT(p.offset, end + 16);
    EXPECT_EQ(list.find(p.role, p.layer), &p);
    EXPECT_EQ(list.find(p.name), &p);
    end = p.offset + p.size();
    count += p.size();
  }
  EXPECT_EQ(list.flat_size(), end);
  EXPECT_EQ(list.parameter_count(), count);
  for (int l = 0; l < c.layers; ++l) {
    EXPECT_EQ(list.find(Role::v, l)->offset, list.find(Role::q, l)->offset + (c.q_cols() + c.kv_cols()) * c.hidden_size);
    EXPECT_EQ(list.find(Role::v_bias, l)->offset, list.find(Role::q_bias, l)->offset + c.q_cols() + c.kv_cols());
    EXPECT_EQ(list.find(Role::up, l)->offset, list.find(Role::gate, l)->offset + list.find(Role::gate, l)->size());
  }
  EXPECT_NE(list.find(Role::lm_head), nullptr);
  EXPECT_EQ(list.find(Role::gate_bias, 0), nullptr);
  EXPECT_EQ(list.find(Role::q, c.layers), nullptr);
}

}  // namespace
}  // namespace plumb
