#include "model/tokenizer/tokenizer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <thread>

#include "kernels/core/error.h"
#include "kernels/core/rng.h"
#include "model/files/files.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/pre_tokenizer.h"
#include "model/tokenizer/unicode.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_folder.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

std::string byte_character(int byte) {
  std::string out;
  append_utf8(out, byte_level_characters()[std::size_t(byte)]);
  return out;
}

/// A byte-level tokenizer.json: ids 0..255 are the bytes, then each merge's result, then the added tokens.
json small_bpe(const std::vector<std::pair<std::string, std::string>>& merges, bool pairs = true) {
  json vocab = json::object();
  for (int b = 0; b < 256; ++b) vocab[byte_character(b)] = unsigned(b);
  json list = json::array();
  for (const auto& [left, right] : merges) {
    vocab[left + right] = vocab.size();
    list.push_back(pairs ? json::array({left, right}) : json(fmt::format("{} {}", left, right)));
  }
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  return {{"added_tokens", json::array()},
          {"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer", byte_level},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

json added(unsigned id, const std::string& content, const json& flags = json::object()) {
  json out = {{"id", id}, {"content", content}, {"normalized", false}};
  out.update(flags);
  return out;
}

class TokenizerTest : public testing::Test {
 protected:
  Tokenizer load(const json& description) const {
    write_file(folder_ / "tokenizer.json", description.dump());
    return Tokenizer::load(folder_);
  }
  std::string load_error(const json& description) const {
    return error_of([&] { load(description); });
  }

  const test::TempFolder folder_;
};

TEST_F(TokenizerTest, BothFormsOfMergesGiveTheSameIds) {
  const std::vector<std::pair<std::string, std::string>> merges = {{"l", "l"}, {"h", "e"}, {"ll", "o"}, {"he", "llo"}};
  for (const bool pairs : {true, false}) {
    const Tokenizer tokenizer = load(small_bpe(merges, pairs));
    EXPECT_THAT(tokenizer.encode("hello hell"), ElementsAre(259, ' ', 257, 256));
    EXPECT_EQ(tokenizer.vocab_size(), 260);
    EXPECT_EQ(tokenizer.id_of("llo"), 258);
    EXPECT_EQ(tokenizer.id_of("lo"), std::nullopt);
    EXPECT_EQ(tokenizer.token_bytes(258), "llo");
    EXPECT_EQ(tokenizer.token_bytes(-1), "");
    EXPECT_EQ(tokenizer.token_bytes(260), "");
  }
}

TEST_F(TokenizerTest, DecodedTokensNeedNotEncodeToThemselves) {  // case 38
  const Tokenizer tokenizer = load(small_bpe({{"h", "e"}, {"l", "l"}, {"ll", "o"}, {"he", "llo"}}));
  const Ids sampled = {256, 258};
  EXPECT_EQ(tokenizer.decode(sampled), "hello");
  EXPECT_THAT(tokenizer.encode("hello"), ElementsAre(259));
}

TEST_F(TokenizerTest, NormalizesToNfcOutsideOfAddedTokens) {
  json description = small_bpe({});
  description["added_tokens"] = {added(256, "e\xCC\x81!")};
  const Tokenizer tokenizer = load(description);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("e\xCC\x81")), "\xC3\xA9");
  EXPECT_THAT(tokenizer.encode("e\xCC\x81!"), ElementsAre(256));
  description["normalizer"] = nullptr;
  EXPECT_EQ(load(description).decode(tokenizer.encode("abc")), "abc");
}

TEST_F(TokenizerTest, FindsAddedTokensLongestFirstWithTheirFlags) {
  json description = small_bpe({});
  description["added_tokens"] = {added(256, "<a>", {{"special", true}}),      added(257, "<a><b>"),
                                 added(258, "<l>", {{"lstrip", true}}),       added(259, "<r>", {{"rstrip", true}}),
                                 added(260, "word", {{"single_word", true}}), added(261, "\xC3\xA9t", {{"normalized", true}})};
  const Tokenizer tokenizer = load(description);
  EXPECT_THAT(tokenizer.encode("<a><a><b>x"), ElementsAre(256, 257, 'x'));
  EXPECT_THAT(tokenizer.encode("x \n<l> y"), ElementsAre('x', 258, ' ', 'y'));
  EXPECT_THAT(tokenizer.encode("x <r> \t<r>y"), ElementsAre('x', ' ', 259, 259, 'y'));
  EXPECT_THAT(tokenizer.encode("<r>  <l>"), ElementsAre(259, 258));
  EXPECT_THAT(tokenizer.encode("word a word, wordy"), ElementsAre(260, ' ', 'a', ' ', 260, ',', ' ', 'w', 'o', 'r', 'd', 'y'));
  EXPECT_THAT(tokenizer.encode("e\xCC\x81t"), ElementsAre(261));  // found after normalization
  EXPECT_EQ(tokenizer.decode(Ids{256, 'x', 257}, true), "x<a><b>");
  EXPECT_EQ(tokenizer.decode(Ids{256, 'x', 257}), "<a>x<a><b>");
  EXPECT_TRUE(tokenizer.is_special(256));
  EXPECT_FALSE(tokenizer.is_special(257));
}

TEST_F(TokenizerTest, IgnoreMergesPrefersWholeWords) {
  json description = small_bpe({{"a", "b"}, {"b", "c"}});
  description["model"]["vocab"]["abc"] = 258u;
  EXPECT_THAT(load(description).encode("abc"), ElementsAre(256, 'c'));
  description["model"]["ignore_merges"] = true;
  EXPECT_THAT(load(description).encode("abc"), ElementsAre(258));
}

TEST_F(TokenizerTest, SpecialTokensOfThePostProcessorComeOnRequest) {
  json description = small_bpe({});
  description["added_tokens"] = {added(256, "<s>", {{"special", true}}), added(257, "</s>", {{"special", true}})};
  const auto special = [](const char* name) { return json{{"SpecialToken", {{"id", name}, {"type_id", 0}}}}; };
  const json sequence = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  description["post_processor"] = {{"type", "TemplateProcessing"},
                                   {"single", {special("<s>"), sequence, special("</s>")}},
                                   {"special_tokens", {{"<s>", {{"ids", {256u}}}}, {"</s>", {{"ids", {257u}}}}}}};
  write_file(folder_ / "tokenizer_config.json", R"({"bos_token":{"content":"<s>"},"eos_token":"</s>","pad_token":null})");
  const Tokenizer tokenizer = load(description);
  EXPECT_THAT(tokenizer.encode("x"), ElementsAre('x'));
  EXPECT_THAT(tokenizer.encode("x", true), ElementsAre(256, 'x', 257));
  EXPECT_EQ(tokenizer.bos_id(), 256);
  EXPECT_EQ(tokenizer.eos_id(), 257);
  EXPECT_EQ(tokenizer.pad_id(), std::nullopt);
}

TEST_F(TokenizerTest, RefusesWhatItDoesNotSupportByName) {
  const auto with = [](const std::function<void(json&)>& edit) {
    json description = small_bpe({{"a", "b"}});
    edit(description);
    return description;
  };
  const std::vector<std::pair<std::function<void(json&)>, std::string>> cases = {
      {[](json& d) { d["normalizer"]["type"] = "BertNormalizer"; }, "normalizer 'BertNormalizer' is not supported"},
      {[](json& d) { d["pre_tokenizer"]["type"] = "Metaspace"; }, "pre_tokenizer 'Metaspace' is not supported"},
      {[](json& d) {
         d["post_processor"] = {{"type", "BertProcessing"}};
       },
       "post_processor 'BertProcessing' is not supported"},
      {[](json& d) { d["decoder"]["type"] = "WordPiece"; }, "decoder 'WordPiece' is not supported"},
      {[](json& d) { d["model"]["type"] = "Unigram"; }, "model 'Unigram' is not supported"},
      {[](json& d) { d["model"]["byte_fallback"] = true; }, "'byte_fallback' is not supported"},
      {[](json& d) { d["model"]["dropout"] = 0.1; }, "'dropout' is not supported"},
      {[](json& d) { d["model"]["end_of_word_suffix"] = "</w>"; }, "'end_of_word_suffix' is not supported"},
      {[](json& d) { d["pre_tokenizer"] = nullptr; }, "BPE without a ByteLevel pre_tokenizer"},
      {[](json& d) { d["model"]["merges"] = {"a b c"}; }, "merge 'a b c' is not two tokens and one space"},
      {[](json& d) {
         d["model"]["merges"] = json::array({json::array({"a", "zz"})});
       },
       "needs tokens that the vocabulary lacks"},
      {[](json& d) {
         d["model"]["merges"] = json{{"a", "b"}};
       },
       "merges is not a list"},
      {[](json& d) {
         d["model"]["merges"] = {{"a", "b", "c"}};
       },
       "neither a string nor a pair"},
      {[](json& d) { d["model"]["vocab"]["a"] = -1; }, "token 'a': its id is not a whole number"},
      {[](json& d) { d["model"]["vocab"]["a"] = 99u; }, "id 99 is taken"},
      {[](json& d) { d["model"]["vocab"] = 3; }, "vocab is empty or not an object"},
      {[](json& d) { d["model"] = nullptr; }, "tokenizer.json: "},
      {[](json& d) { d.erase("model"); }, "tokenizer.json: "},
      {[](json& d) { d["added_tokens"] = {added(97, "<x>")}; }, "added token '<x>': its id 97 is that of 'a'"},
      {[](json& d) { d["added_tokens"] = {added(300, "")}; }, "an added token is empty"},
      {[](json& d) { d["added_tokens"] = {added(1u << 30, "<x>")}; }, "its id is not a whole number below"},
      {[](json& d) { d = json::array(); }, "tokenizer.json: "},
  };
  for (const auto& [edit, expected] : cases) {
    EXPECT_THAT(load_error(with(edit)), testing::AllOf(HasSubstr("tokenizer.json: "), HasSubstr(expected), testing::Not(HasSubstr("\n"))));
  }
  EXPECT_THAT(error_of([&] { load(small_bpe({})).encode("ab\xFF"); }), HasSubstr("not valid UTF-8 at byte 2"));
  EXPECT_THAT(error_of([&] { Tokenizer::load(folder_ / "absent"); }), HasSubstr("holds no tokenizer"));
  write_file(folder_ / "tokenizer.json", R"({"model":{"vocab":{"a":0,"a":1}}})");
  EXPECT_NE(error_of([&] { Tokenizer::load(folder_); }), "no error");
  write_file(folder_ / "tokenizer.json", R"({"version":1,"version":2})");
  EXPECT_THAT(error_of([&] { Tokenizer::load(folder_); }), HasSubstr("duplicate key 'version'"));
  json no_byte = small_bpe({});
  no_byte["model"]["vocab"].erase("a");
  EXPECT_THAT(error_of([&] { load(no_byte).encode("a"); }), HasSubstr("no token for byte 0x61"));
}

TEST_F(TokenizerTest, CharactersRoundTripThroughAFolder) {
  const Tokenizer made = Tokenizer::characters("0123456789+=\xC3\xA9\n");
  made.save(folder_);
  EXPECT_TRUE(Tokenizer::present(folder_));
  const Tokenizer loaded = Tokenizer::load(folder_);
  for (const Tokenizer& tokenizer : {made, loaded}) {
    EXPECT_THAT(tokenizer.encode("12+\xC3\xA9=\n<eos>"), ElementsAre(1, 2, 10, 12, 11, 13, 14));
    EXPECT_EQ(tokenizer.decode(Ids{1, 2, 10, 12, 11, 13, 14}), "12+\xC3\xA9=\n<eos>");
    EXPECT_EQ(tokenizer.decode(Ids{1, 14, 15, 2}, true), "12");
    EXPECT_EQ(tokenizer.vocab_size(), 16);
    EXPECT_EQ(tokenizer.eos_id(), 14);
    EXPECT_EQ(tokenizer.pad_id(), 15);
    EXPECT_THAT(error_of([&] { tokenizer.encode("1x"); }), HasSubstr("'x' is not in the vocabulary"));
  }
  fs::create_directories(folder_ / "again");
  loaded.save(folder_ / "again");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    EXPECT_EQ(read_file(folder_ / name), read_file(folder_ / "again" / name));
  }
  EXPECT_THAT(error_of([] { Tokenizer::characters("010"); }), HasSubstr("'0' twice"));
  EXPECT_THAT(error_of([] { Tokenizer::characters(""); }), HasSubstr("empty"));
}

TEST_F(TokenizerTest, CharOrds) {
  write_file(folder_ / "tokenizer_config.json", R"({"char_ords":[48,44,233]})");
  EXPECT_TRUE(Tokenizer::present(folder_));
  const Tokenizer tokenizer = Tokenizer::load(folder_);
  EXPECT_THAT(tokenizer.encode("0,\xC3\xA9?"), ElementsAre(4, 5, 6, 3));
  EXPECT_EQ(tokenizer.eos_id(), 1);
  EXPECT_EQ(tokenizer.vocab_size(), 7);
  write_file(folder_ / "tokenizer_config.json", R"({"char_ords":[55296]})");
  EXPECT_THAT(error_of([&] { Tokenizer::load(folder_); }), HasSubstr("char_ords: not a code point"));
}

TEST_F(TokenizerTest, WordLevelVocabulary) {
  const json description = {
      {"pre_tokenizer", {{"type", "Whitespace"}}},
      {"model", {{"type", "WordLevel"}, {"vocab", {{"[UNK]", 0u}, {"hello", 1u}, {"!", 2u}}}, {"unk_token", "[UNK]"}}}};
  const Tokenizer tokenizer = load(description);
  EXPECT_THAT(tokenizer.encode(" hello you!"), ElementsAre(1, 0, 2));
  EXPECT_EQ(tokenizer.decode(Ids{1, 2}), "hello !");
}

TEST_F(TokenizerTest, ManyThreadsSeeTheSameIds) {
  const Tokenizer tokenizer = load(small_bpe({{"a", "b"}, {"ab", "ab"}, {"c", "a"}}));
  std::string text;
  for (std::uint64_t i = 0; i < 2000; ++i) text += "abc "[random_below({.seed = 1}, i, 4)];
  const Ids expected = tokenizer.encode(text);
  std::vector<Ids> seen(4);
  {
    const Tokenizer fresh = load(small_bpe({{"a", "b"}, {"ab", "ab"}, {"c", "a"}}));
    std::vector<std::jthread> threads;
    for (Ids& ids : seen) threads.emplace_back([&ids, fresh, &text] { ids = fresh.encode(text); });
  }
  for (const Ids& ids : seen) EXPECT_EQ(ids, expected);
}

/// Merging as defined: over and over the leftmost pair of the lowest rank.
Ids merged_plainly(std::string_view word, const std::vector<Bpe::Merge>& merges) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::pair<std::size_t, std::int32_t>> rank_of;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) rank_of[{merges[rank].left, merges[rank].right}] = {rank, merges[rank].result};
  Ids ids;
  for (const char c : word) ids.push_back(static_cast<unsigned char>(c));
  while (true) {
    auto best = rank_of.end();
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto it = rank_of.find({ids[i], ids[i + 1]});
      if (it == rank_of.end() || (best != rank_of.end() && it->second.first >= best->second.first)) continue;
      best = it;
      at = i;
    }
    if (best == rank_of.end()) return ids;
    ids[at] = best->second.second;
    ids.erase(ids.begin() + std::ptrdiff_t(at) + 1);
  }
}

/// A vocabulary of all bytes and of `count` random merges over "abc".
struct RandomBpe {
  explicit RandomBpe(std::uint64_t seed, std::size_t count) {
    for (int b = 0; b < 256; ++b) tokens.emplace_back(1, char(b));
    for (std::uint64_t draw = 0; merges.size() < count; ++draw) {
      const auto pick = [&](std::uint64_t side) {
        const auto i = std::size_t(random_below({.seed = seed}, 2 * draw + side, 3 + merges.size()));
        return std::int32_t(i < 3 ? 'a' + i : 256 + i - 3);
      };
      const std::int32_t left = pick(0), right = pick(1);
      const std::string whole = tokens[std::size_t(left)] + tokens[std::size_t(right)];
      if (std::find(tokens.begin(), tokens.end(), whole) != tokens.end()) continue;
      merges.push_back({left, right, std::int32_t(tokens.size())});
      tokens.push_back(whole);
    }
    for (std::size_t i = 0; i < tokens.size(); ++i) ids.emplace(tokens[i], std::int32_t(i));
  }
  std::deque<std::string> tokens;
  std::vector<Bpe::Merge> merges;
  std::unordered_map<std::string_view, std::int32_t> ids;
};

TEST(BpeTest, ShortAndLongWordsMergeAsDefined) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const RandomBpe random(seed, 3 + seed * 2);
    const Bpe bpe(random.ids, random.merges, false);
    for (std::uint64_t trial = 0; trial < 40; ++trial) {
      std::string word;
      for (std::uint64_t i = 0; i < trial * 2; ++i)
        word += char('a' + random_below({.seed = seed, .step = 1, .draw = std::uint32_t(trial)}, i, 3));
      Ids ids;
      bpe.encode(word, ids);
      ASSERT_EQ(ids, merged_plainly(word, random.merges)) << seed << " " << word;
    }
  }
}

TEST(BpeTest, HundredKilobytesOfOneLetterInLessThanASecond) {
  const RandomBpe random(3, 30);
  const Bpe bpe(random.ids, random.merges, false);
  Ids ids;
  const auto start = std::chrono::steady_clock::now();
  bpe.encode(std::string(100000, 'a'), ids);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  std::string back;
  for (const std::int32_t id : ids) back += random.tokens[std::size_t(id)];
  EXPECT_EQ(back, std::string(100000, 'a'));
}

std::vector<std::string> split(const json& description, const std::string& text) {
  std::deque<std::string> storage;
  std::vector<std::string> out;
  for (const std::string_view word : PreTokenizer(description).split(text, storage)) out.emplace_back(word);
  return out;
}
json split_by(const std::string& kind, const std::string& pattern, const std::string& behavior, bool invert = false) {
  return {{"type", "Split"}, {"pattern", {{kind, pattern}}}, {"behavior", behavior}, {"invert", invert}};
}

TEST(PreTokenizerTest, BehaviorsOfSplit) {
  const std::string text = "the-final--countdown";
  EXPECT_THAT(split(split_by("String", "-", "Removed"), text), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(split(split_by("String", "-", "Isolated"), text), ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(split(split_by("String", "-", "MergedWithPrevious"), text), ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(split(split_by("String", "-", "MergedWithNext"), text), ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(split(split_by("String", "-", "Contiguous"), text), ElementsAre("the", "-", "final", "--", "countdown"));
  EXPECT_THAT(split(split_by("Regex", "[a-z]+", "Removed", true), text), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(split(split_by("String", "a.b", "Isolated"), "axb a.b"), ElementsAre("axb ", "a.b"));
  EXPECT_THAT(split(split_by("Regex", "(?=X)", "Isolated"), "aXbX"), ElementsAre("a", "Xb", "X"));
  EXPECT_THAT(split(nullptr, text), ElementsAre(text));
  EXPECT_THAT(split(split_by("String", "-", "Removed"), ""), ElementsAre());
}

TEST(PreTokenizerTest, OtherStages) {
  EXPECT_THAT(split({{"type", "Digits"}, {"individual_digits", true}}, "ab12\xD9\xA3"), ElementsAre("ab", "1", "2", "\xD9\xA3"));
  EXPECT_THAT(split({{"type", "Digits"}, {"individual_digits", false}}, "ab12 3"), ElementsAre("ab", "12", " ", "3"));
  EXPECT_THAT(split({{"type", "WhitespaceSplit"}}, " a  b\t"), ElementsAre("a", "b"));
  EXPECT_THAT(split({{"type", "Whitespace"}}, "a b!?"), ElementsAre("a", "b", "!?"));
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}};
  EXPECT_THAT(split(byte_level, "it's  me1"), ElementsAre(" it", "'s", " ", " me", "1"));
  EXPECT_THAT(split({{"type", "Sequence"}, {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, byte_level}}}, "a 12"),
              ElementsAre(" a", " ", " 1", " 2"));
}

TEST(PreTokenizerTest, EscapesMeanWhatTheOtherLibrarySays) {
  const std::string vowel_separator = "\xE1\xA0\x8E";  // U+180E: horizontal space for PCRE2 only
  EXPECT_THAT(split(split_by("Regex", "\\s", "Removed"), "a" + vowel_separator +
                                                             "b\xC2\x85"
                                                             "c"),
              ElementsAre("a" + vowel_separator + "b", "c"));
  EXPECT_THAT(split(split_by("Regex", "[\\s]", "Removed"), "a" + vowel_separator +
                                                               "b\xC2\x85"
                                                               "c"),
              ElementsAre("a" + vowel_separator + "b", "c"));
  EXPECT_THAT(split(split_by("Regex", "\\w+", "Isolated"), "e\xCC\x81t_\xE2\x80\xBF!"), ElementsAre("e\xCC\x81t_\xE2\x80\xBF", "!"));
  EXPECT_THAT(split(split_by("Regex", "\\w", "Removed"), "\xC2\xBD\xE2\x85\xA7\xE2\x92\xB6\xE0\xA7\xB4."), ElementsAre("\xE0\xA7\xB4."));
  EXPECT_THAT(split(split_by("Regex", "a\\b", "Isolated"),
                    "aa\xE2\x80\xBF"
                    "a"),
              ElementsAre("aa\xE2\x80\xBF", "a"));
  EXPECT_THAT(split(split_by("Regex", "a\\B", "Isolated"), "aa"), ElementsAre("a", "a"));
  EXPECT_THAT(split(split_by("Regex", "^b", "Isolated"), "b\nbb"), ElementsAre("b", "\n", "b", "b"));
  EXPECT_THAT(split(split_by("Regex", "[]x]+", "Isolated"), "a]xa"), ElementsAre("a", "]x", "a"));
  for (const char* pattern : {"(", "\\h", "[a&&b]", "[a[b]]", "(?m).", "[\\W]"}) {
    EXPECT_THAT(error_of([&] { split(split_by("Regex", pattern, "Isolated"), "x"); }), HasSubstr(std::string("pattern '") + pattern));
  }
  EXPECT_THAT(error_of([&] { split(split_by("Regex", "", "Isolated"), "x"); }), HasSubstr("an empty pattern"));
  EXPECT_THAT(error_of([&] { split(split_by("Regex", "a", "Sideways"), "x"); }), HasSubstr("behavior 'Sideways'"));
}

TEST(PreTokenizerTest, LongRunsDoNotOverflowTheMatcher) {
  const std::string text = std::string(200000, 'x') + std::string(200000, ' ') + "y";
  EXPECT_THAT(split(split_by("Regex", "(?:x|y)+|\\s+(?!\\S)|\\s+", "Isolated"), text),
              ElementsAre(std::string(200000, 'x'), std::string(199999, ' '), " ", "y"));
}

}  // namespace
}  // namespace plumb
