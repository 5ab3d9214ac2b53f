// plumb drift as a user runs it, on a model that a short training run left.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/e2e/process.h"

namespace plumb::e2e {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class SlowDrift : public testing::Test {
 protected:
  void SetUp() override {
    write_file(tmp / "run.yaml", tiny_grpo_config(1));
    const Finished f = plumb({"train", tmp / "run.yaml", "--out", tmp / "run", "--quiet"});
    ASSERT_EQ(f.code, 0) << f.err;
    model = tmp / "run/latest/model";
    write_file(tmp / "prompts.txt", "12+34=46\n99+1=100\n\n7+8=15\n");
  }
  TempFolder tmp;
  fs::path model;
};

TEST_F(SlowDrift, ExplainsTwoPresetsAndWritesTheSameFilesAgain) {
  const std::vector<std::string> arguments = {"drift",     "--model",           model,      "--a", "hf_eager", "--b", "vllm_cpu_compiled",
                                              "--prompts", tmp / "prompts.txt", "--orders", "4",   "--json"};
  const auto run = [&](const char* out, const char* threads) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--out", tmp / out, "--threads", threads});
    const Finished f = plumb(all);
    EXPECT_EQ(f.code, 0) << f.err;
    return f.out;
  };
  const Json report = Json::parse(run("one", "1"));
  for (const Json& a : report["attribution"]) {
    double sum = 0;
    for (const Json& p : a["players"]) sum += p["shapley"].get<double>();
    EXPECT_NEAR(sum, report["mismatch"].get<double>(), 1e-12) << a["by"];
  }
  run("two", "2");
  EXPECT_EQ(files_of(tmp / "one"), files_of(tmp / "two"));
  EXPECT_EQ(files_of(tmp / "one").size(), 3u);
  EXPECT_NE(read_file(tmp / "one/drift.html").find("<svg"), std::string::npos);
}

// Plumb's own answers are a record like any other.
TEST_F(SlowDrift, NamesTheNumericsOfARecord) {
  const Finished sampled =
      plumb({"sample", "--model", model, "--prompt", "12+34=", "-n", "12", "--max-new-tokens", "6", "--json", "--numerics", "hf_eager"});
  ASSERT_EQ(sampled.code, 0) << sampled.err;
  write_file(tmp / "record.jsonl", sampled.out);
  const Finished f = plumb({"drift", "--model", model, "--recorded", tmp / "record.jsonl", "--explain", "--json"});
  ASSERT_EQ(f.code, 0) << f.err;
  const Json verdict = Json::parse(f.out);
  EXPECT_EQ(verdict["verdict"], "reproduced") << f.out;
  const Json& best = verdict["ranking"][0];
  const bool named =
      best["name"] == "hf_eager" || std::find(best["same_bits"].begin(), best["same_bits"].end(), "hf_eager") != best["same_bits"].end();
  EXPECT_TRUE(named) << verdict["sentence"];
  const auto facts = [&](const char* fact) {
    return std::count_if(verdict["facts"].begin(), verdict["facts"].end(), [&](const Json& e) { return e["fact"] == fact; });
  };
  for (const char* fact : {"rope.products", "softmax", "reductions.matmul"}) EXPECT_EQ(facts(fact), 1) << fact;
  const Finished page = plumb({"drift", "--model", model, "--recorded", tmp / "record.jsonl", "--by", "none", "--out", tmp / "page"});
  ASSERT_EQ(page.code, 0) << page.err;
  EXPECT_NE(read_file(tmp / "page/drift.html").find("What the record says of each fact"), std::string::npos);
}

TEST_F(SlowDrift, RefusesWhatMakesNoSense) {
  const std::string m = model;
  EXPECT_EQ(plumb({"drift", "--model", m, "--a", "fused", "--b", "fused"}).code, 2);
  EXPECT_EQ(plumb({"drift", "--model", m, "--a", "fused", "--prompts", tmp / "prompts.txt"}).code, 2);
  EXPECT_EQ(plumb({"drift", "--model", m, "--a", "fusd", "--b", "fused", "--prompts", tmp / "prompts.txt"}).code, 2);
  EXPECT_EQ(plumb({"drift", "--model", m, "--a", "fused,rope.product=f", "--b", "fused", "--prompts", tmp / "prompts.txt"}).code, 2);
  EXPECT_EQ(plumb({"drift", "--model", m, "--a", "fused", "--b", "fused", "--prompts", tmp / "none.txt"}).code, 1);
  write_file(tmp / "bad.jsonl", R"({"prompt_ids": [1, 2], "response_ids": [3], "logprobs": [-1, -2]})");
  const Finished f = plumb({"drift", "--model", m, "--recorded", tmp / "bad.jsonl"});
  EXPECT_EQ(f.code, 1);
  EXPECT_NE(f.err.find("bad.jsonl:1"), std::string::npos) << f.err;
}

}  // namespace
}  // namespace plumb::e2e
