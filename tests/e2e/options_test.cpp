// Wrong options and inputs of every subcommand: exit code 2 for what was asked wrongly, 1 for what failed, one line that says
// what would be right.
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/e2e/process.h"

namespace plumb::e2e {
namespace {

namespace fs = std::filesystem;

/// A safetensors file of one or two tensors.
struct Tensor {
  std::string name, type;
  std::vector<int> shape;
  std::string bytes;
};
void write_tensors(const fs::path& path, const std::vector<Tensor>& tensors) {
  nlohmann::ordered_json header;
  std::string data;
  for (const Tensor& t : tensors) {
    header[t.name] = {{"dtype", t.type}, {"shape", t.shape}, {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
    data += t.bytes;
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  write_file(path, std::string(reinterpret_cast<const char*>(&length), 8) + text + data);
}
template <class T>
std::string bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// One model for all tests of this file.
class Options : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    write_file(*folder_ / "run.yaml", tiny_grpo_config(1, 0));
    ASSERT_EQ(plumb({"train", *folder_ / "run.yaml", "--out", *folder_ / "run", "--quiet"}).code, 0);
  }
  static void TearDownTestSuite() { delete folder_; }

  static std::string path(const std::string& name) { return *folder_ / name; }
  static std::string model() { return path("run/latest/model"); }
  static Finished sample(std::vector<std::string> more) {
    more.insert(more.begin(), {"sample", "--model", model(), "--prompt", "12+34="});
    return plumb(more);
  }
  static Finished score(const std::vector<Tensor>& tensors) {
    write_tensors(path("in.safetensors"), tensors);
    return plumb({"score", "--model", model(), "--tokens", path("in.safetensors"), "--out", path("out.safetensors")});
  }

  static TempFolder* folder_;
};
TempFolder* Options::folder_ = nullptr;

const Tensor kIds = {"ids", "I64", {1, 4}, bytes<std::int64_t>({1, 2, 3, 4})};

TEST_F(Options, NumbersAreCheckedAsTheyAreRead) {
  expect_one_line(sample({"-n", "abc"}), 2, "sample: -n is 'abc'; a whole number from 1 to 10000 is right");
  expect_one_line(sample({"-n", "1000000000"}), 2, "-n is '1000000000'");
  expect_one_line(sample({"-n", "1.5"}), 2, "-n is '1.5'");
  expect_one_line(sample({"--temperature", "nan"}), 2, "--temperature is 'nan'");
  expect_one_line(sample({"--temperature", "-1"}), 2, "--temperature is '-1'; a number of at least 0 is right");
  expect_one_line(sample({"--top-p", "1.01"}), 2, "--top-p is '1.01'");
  expect_one_line(sample({"--seed", "-1"}), 2, "--seed is '-1'; a whole number of at least 0 is right");
  for (const char* threads : {"100000", "-1", "two", "99999999999"}) {
    expect_one_line(sample({"--threads", threads}), 2,
                    "sample: --threads is '" + std::string(threads) + "'; a whole number from 0 (one per core) to 1024 is right");
  }
  EXPECT_EQ(sample({"--seed", "18446744073709551615", "--temperature", "1e-3", "-n", "2", "--threads", "2"}).code, 0);
}

TEST_F(Options, MissingAndEmptyTextsAreTold) {
  expect_one_line(plumb({"sample", "--model", model()}), 2, "--prompt or --prompt-file is missing");
  expect_one_line(plumb({"sample", "--model", model(), "--prompt="}), 2, "sample: --prompt");
  expect_one_line(plumb({"sample", "--model", model(), "--prompt", ""}), 2, "sample: --prompt");
  expect_one_line(plumb({"sample", "--prompt", "1+1="}), 2, "sample: --model is missing");
  expect_one_line(sample({"--stop", ""}), 2, "--stop");
  expect_one_line(plumb({"sample", "--model", model(), "--prompt", "abc"}), 2, "prompt 'abc': 'a' is not in the vocabulary");
  expect_one_line(sample({"--numerics", "fusd"}), 2, "fused");
}

TEST_F(Options, AModelFolderIsExpectedAndTheLikelyOneNamed) {
  const auto with_model = [](const std::string& folder) { return plumb({"sample", "--model", folder, "--prompt", "1+1="}); };
  expect_one_line(with_model(""), 2, "--model is empty");
  expect_one_line(with_model(path("none")), 2, "there is no such folder");
  expect_one_line(with_model(path("run.yaml")), 2, "is not a folder");
  expect_one_line(with_model(path("run")), 2, "did you mean " + path("run/latest/model") + "?");
  expect_one_line(with_model(path("run/latest")), 2, "did you mean " + path("run/latest/model") + "?");
  expect_one_line(plumb({"eval", "--model", path("run"), path("run.yaml")}), 2, "did you mean");
  expect_one_line(plumb({"eval", "--model", "", path("run.yaml")}), 2, "--model is empty");
  expect_one_line(plumb({"eval", "--model", model(), path("run.yaml"), "--set", "task.name=digit_completion"}), 2, "digit_completion");
}

TEST_F(Options, ThePromptOfAFileIsWithoutItsFinalNewline) {
  write_file(path("prompt"), "12+34=");
  write_file(path("prompt_with_newline"), "12+34=\n");
  const auto answer = [&](const std::string& file) {
    return plumb({"sample", "--model", model(), "--prompt-file", path(file), "--seed", "3", "--json"});
  };
  const Finished without = answer("prompt"), with = answer("prompt_with_newline");
  EXPECT_EQ(with.code, 0) << with.err;
  EXPECT_EQ(with.out, without.out);
  write_file(path("empty"), "\n");
  expect_one_line(answer("empty"), 2, "is empty");
}

TEST_F(Options, ConfigurationFaultsNameTheFile) {
  write_file(path("empty.yaml"), "");
  write_file(path("list.yaml"), "- a\n- b\n");
  expect_one_line(plumb({"config", path("empty.yaml")}), 2, "empty.yaml");
  expect_one_line(plumb({"config", path("list.yaml")}), 2, "list.yaml");
  expect_one_line(plumb({"config", path("none.yaml")}), 2, "none.yaml");
  expect_one_line(plumb({"config", path("run.yaml"), "--set", "execution.threads=100000"}), 2,
                  "run.yaml: execution.threads is 100000; a whole number from 0 (one per core) to 1024 is right");
}

TEST_F(Options, MoreMemoryThanThereIsIsRefused) {
  expect_one_line(plumb({"train", path("run.yaml"), "--out", path("no"), "--set", "execution.micro_batch_tokens=2000000000"}), 2,
                  "this machine has");
  EXPECT_FALSE(fs::exists(path("no")));
}

TEST_F(Options, TheEstimateCountsTheMemoryOfBothPhases) {
  const auto memory = [](const std::string& sets) {
    const Finished f = plumb({"train", path("run.yaml"), "--dry-run", "--set", "warm_start.steps=1", "--set", sets});
    EXPECT_EQ(f.code, 0) << f.err;
    return f.out.substr(f.out.find("memory "));
  };
  const std::string accumulates_later = memory("optimizer.accumulation.sequences=1");
  EXPECT_NE(accumulates_later, memory("optimizer.accumulation.sequences=0"));
  EXPECT_EQ(accumulates_later, memory("warm_start.optimizer.accumulation.sequences=1"));
}

TEST_F(Options, MoreHeldOutProblemsThanThereAreIsRefusedWithTheCount) {
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"config"}, {"train", "--dry-run"}, {"train", "--out", path("no")}, {"eval", "--model", model()}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {path("run.yaml"), "--set", "eval.problems=5000"});
    const Finished f = plumb(arguments);
    expect_one_line(f, 2, "eval.problems is 5000, but task addition has only ");
  }
  EXPECT_FALSE(fs::exists(path("no")));
}

TEST_F(Options, AnEvaluationStopsWhenAsked) {
  const Finished f = plumb_then_signal({"eval", "--model", model(), path("run.yaml"), "--set", "task.digits=6", "--set",
                                        "sampling.max_new_tokens=8", "--set", "eval.problems=900000"},
                                       SIGTERM, std::chrono::milliseconds(700));
  EXPECT_EQ(f.code, 130) << f.out << f.err;
}

TEST_F(Options, ABadRunFolderIsToldBeforeAnythingElse) {
  write_file(path("file"), "x");
  const Finished f = plumb({"train", path("run.yaml"), "--out", path("file")});
  expect_one_line(f, 2, "is not a folder");
  EXPECT_EQ(f.out, "");
}

TEST_F(Options, OtherSettingsOnResumeAreRefusedAndTheFreeOnesNamed) {
  const Finished f = plumb({"train", "--resume", path("run"), "--set", "optimizer.lr=0.5"});
  expect_one_line(f, 2, "optimizer.lr");
  EXPECT_NE(f.err.find("checkpoint"), std::string::npos) << f.err;
}

TEST_F(Options, ScoreTakesBothKindsOfIds) {
  EXPECT_EQ(score({kIds}).code, 0);
  const std::string from_i64 = read_file(path("out.safetensors"));
  EXPECT_EQ(score({{"ids", "I32", {1, 4}, bytes<std::int32_t>({1, 2, 3, 4})}}).code, 0);
  EXPECT_EQ(read_file(path("out.safetensors")), from_i64);
  expect_one_line(score({{"ids", "F32", {1, 4}, bytes<float>({1, 2, 3, 4})}}), 1, "I64 or I32");
}

TEST_F(Options, ScoreRefusesWhatItWouldMisread) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  expect_one_line(score({kIds, {"weigths", "F32", {1, 3}, bytes<float>({1, 1, 1})}}), 1, "did you mean 'weights'?");
  expect_one_line(score({kIds, {"weights", "F32", {1, 3}, bytes<float>({1, kNan, 1})}}), 1, "weights[0, 1] is nan");
  expect_one_line(score({kIds, {"weights", "F32", {1, 2}, bytes<float>({1, 1})}}), 1, "F32 [1, 3] is right");
  write_file(path("text"), "This is no tensor at all, only some text.");
  expect_one_line(plumb({"score", "--model", model(), "--tokens", path("text"), "--out", path("x")}), 1, "not a safetensors file");
  expect_one_line(plumb({"score", "--model", model(), "--tokens", path("none"), "--out", path("x")}), 2, "there is no such file");
  EXPECT_FALSE(fs::exists(path("x")));
}

TEST_F(Options, ScoreWritesOverNothingItShouldNot) {
  const std::string in = path("keep.safetensors");
  write_tensors(in, {kIds});
  const std::string before = read_file(in);
  const auto to = [&](const std::string& out) { return plumb({"score", "--model", model(), "--tokens", in, "--out", out}); };
  expect_one_line(to(in), 2, "is the file of --tokens");
  fs::create_symlink(in, path("link"));
  expect_one_line(to(path("link")), 2, "is the file of --tokens");
  expect_one_line(to(path("run")), 1, "is a folder");
  expect_one_line(to(model() + "/model.safetensors"), 2, "is a file of the model");
  expect_one_line(to(path("nowhere/out")), 2, "there is no folder");
  EXPECT_EQ(read_file(in), before);
}

}  // namespace
}  // namespace plumb::e2e
