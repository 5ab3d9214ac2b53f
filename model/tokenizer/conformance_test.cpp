// Real tokenizers against ids from the libraries they come from.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "kernels/core/error.h"
#include "model/files/files.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/unicode.h"
#include "tests/support/temp_folder.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;

class TokenizerConformanceTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* shared = std::getenv("PLUMB_SHARED");
    if (shared == nullptr) GTEST_SKIP() << "set PLUMB_SHARED to the folder with the golden values";
    shared_ = shared;
  }

  /// Every line of a file of {text, ids}.
  void check_jsonl(const Tokenizer& tokenizer, const std::string& name, int lines) const {
    std::istringstream in(read_file(shared_ / "conformance/tokenizer" / name));
    std::string line;
    int seen = 0;
    for (; std::getline(in, line); ++seen) {
      const auto row = parse_json(line, name);
      const auto text = row.at("text").get<std::string>();
      const auto ids = row.at("ids").get<std::vector<std::int32_t>>();
      ASSERT_EQ(tokenizer.encode(text), ids) << name << ":" << seen + 1 << " " << row.at("text").dump();
      ASSERT_EQ(tokenizer.decode(ids), to_nfc(text)) << name << ":" << seen + 1;
    }
    EXPECT_EQ(seen, lines);
  }

  /// The file of texts between separators, with the file of ids beside it.
  void check_ggml(const Tokenizer& tokenizer) const {
    const std::string texts = read_file(shared_ / "conformance/tokenizer/ggml-vocab-qwen2.gguf.inp");
    std::istringstream ids_in(read_file(shared_ / "conformance/tokenizer/ggml-vocab-qwen2.gguf.out"));
    const std::string separator = "\n__ggml_vocab_test__\n";
    std::size_t begin = 0;
    int seen = 0;
    for (std::string line; std::getline(ids_in, line); ++seen) {
      std::istringstream numbers(line);
      std::vector<std::int32_t> ids;
      for (std::int32_t id = 0; numbers >> id;) ids.push_back(id);
      const std::size_t end = texts.find(separator, begin);
      ASSERT_NE(end, std::string::npos);
      const std::string text = texts.substr(begin, end - begin);
      ASSERT_EQ(tokenizer.encode(text), ids) << in_quotes(text);
      ASSERT_EQ(tokenizer.decode(ids), to_nfc(text));
      begin = end + separator.size();
    }
    EXPECT_EQ(seen, 46);
  }

  fs::path shared_;
};

TEST_F(TokenizerConformanceTest, Qwen3) {
  const Tokenizer tokenizer = Tokenizer::load(shared_ / "data/tokenizers/qwen3");
  EXPECT_EQ(tokenizer.vocab_size(), 151669);
  EXPECT_EQ(tokenizer.eos_id(), 151645);
  EXPECT_EQ(tokenizer.pad_id(), 151643);
  EXPECT_EQ(tokenizer.bos_id(), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(151644));
  EXPECT_FALSE(tokenizer.is_special(151667));  // <think>
  EXPECT_EQ(tokenizer.id_of("<think>"), 151667);
  EXPECT_EQ(tokenizer.decode(std::vector<std::int32_t>{151644, 9707, 151645}, true), "Hello");
  check_jsonl(tokenizer, "tok_qwen3_dev.jsonl", 1291);
}

TEST_F(TokenizerConformanceTest, Qwen25) {
  const Tokenizer tokenizer = Tokenizer::load(shared_ / "data/tokenizers/qwen2_5");
  check_jsonl(tokenizer, "tok_qwen2_5_dev.jsonl", 1291);
  check_ggml(tokenizer);
}

TEST_F(TokenizerConformanceTest, Qwen25FromVocabAndMerges) {
  const test::TempFolder folder;
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer_config.json"}) {
    fs::create_symlink(shared_ / "data/tokenizers/qwen2_5" / name, folder / name);
  }
  const Tokenizer tokenizer = Tokenizer::load(folder);
  EXPECT_EQ(tokenizer.vocab_size(), 151665);
  EXPECT_EQ(tokenizer.eos_id(), 151645);
  check_jsonl(tokenizer, "tok_qwen2_5_dev.jsonl", 1291);
  check_ggml(tokenizer);
}

TEST_F(TokenizerConformanceTest, QwenMini) {
  check_jsonl(Tokenizer::load(shared_ / "data/tokenizers/qwen-mini-512"), "tok_qwen-mini-512.jsonl", 259);
  check_jsonl(Tokenizer::load(shared_ / "data/tokenizers/qwen-mini-1024"), "tok_qwen-mini-1024.jsonl", 259);
}

TEST_F(TokenizerConformanceTest, DigitLlama) {
  const Tokenizer tokenizer = Tokenizer::load(shared_ / "data/models/digit-llama");
  EXPECT_EQ(tokenizer.vocab_size(), 16);
  EXPECT_EQ(tokenizer.encode("8,3:9,4"), (std::vector<std::int32_t>{12, 14, 7, 15, 13, 14, 8}));
  EXPECT_EQ(tokenizer.encode("x"), (std::vector<std::int32_t>{3}));
  EXPECT_EQ(tokenizer.eos_id(), 1);
  EXPECT_EQ(tokenizer.pad_id(), 2);
  EXPECT_EQ(tokenizer.decode(std::vector<std::int32_t>{12, 14, 1}, true), "8,");
}

}  // namespace
}  // namespace plumb
