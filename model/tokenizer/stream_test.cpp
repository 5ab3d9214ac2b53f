#include "model/tokenizer/stream.h"

#include <gtest/gtest.h>

#include "kernels/core/error.h"
#include "kernels/core/rng.h"
#include "model/tokenizer/unicode.h"

namespace plumb {
namespace {

const std::string kReplacement = "\xEF\xBF\xBD";

std::string stream(const std::vector<std::string>& pieces) {
  Utf8Stream stream;
  std::string out;
  for (const std::string& piece : pieces) {
    const std::string text = stream.push(piece);
    EXPECT_FALSE(invalid_utf8_at(text));
    out += text;
  }
  return out + stream.finish();
}

TEST(Utf8StreamTest, HoldsACodePointUntilItIsComplete) {  // case 39
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.push("\x98"), "");
  EXPECT_EQ(stream.push("\x80z"), "\xF0\x9F\x98\x80z");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Utf8StreamTest, ReplacesWhatCannotBecomeText) {
  EXPECT_EQ(stream({"a\xFFz"}), "a" + kReplacement + "z");
  EXPECT_EQ(stream({"\x80"}), kReplacement);
  EXPECT_EQ(stream({"\xF0\x9F", "z"}), kReplacement + "z");
  EXPECT_EQ(stream({"\xF0\x9F"}), kReplacement);
  EXPECT_EQ(stream({"\xC0\x80"}), kReplacement + kReplacement);                                        // overlong
  EXPECT_EQ(stream({"\xED\xA0\x80"}), kReplacement + kReplacement + kReplacement);                     // a surrogate
  EXPECT_EQ(stream({"\xF4\x90\x80\x80"}), kReplacement + kReplacement + kReplacement + kReplacement);  // over U+10FFFF
  EXPECT_EQ(stream({"\xE4\xB8\xE4\xB8\xAD"}), kReplacement + "\xE4\xB8\xAD");
}

TEST(Utf8StreamTest, DoesNotDependOnTheCuts) {
  for (std::uint32_t trial = 0; trial < 300; ++trial) {
    const RandomKey key{.seed = 7, .step = trial};
    std::string bytes;
    for (std::uint64_t i = 0; i < 40; ++i) {
      // Mostly bytes that almost fit together.
      const std::uint64_t kind = random_below(key, 2 * i, 4);
      const std::uint64_t r = random_below(key, 2 * i + 1, 256);
      bytes += char(kind == 0 ? r : kind == 1 ? 0xE0 + r % 21 : kind == 2 ? 0x80 + r % 64 : 'a' + r % 26);
    }
    std::vector<std::string> single;
    for (const char c : bytes) single.emplace_back(1, c);
    const std::string whole = stream({bytes});
    ASSERT_EQ(stream(single), whole);
    ASSERT_EQ(stream({bytes.substr(0, trial % 40), bytes.substr(trial % 40)}), whole);
    ASSERT_TRUE(invalid_utf8_at(bytes) || whole == bytes);
  }
}

TEST(StreamDecoderTest, LeavesSpecialTokensOut) {
  const Tokenizer tokenizer = Tokenizer::characters("ab");
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(1), "b");
  EXPECT_EQ(decoder.push(*tokenizer.eos_id()), "");
  StreamDecoder verbose(tokenizer, false);
  EXPECT_EQ(verbose.push(*tokenizer.eos_id()), "<eos>");
  EXPECT_EQ(verbose.finish(), "");
}

struct Stopped {
  std::string text;
  bool stopped;
  friend bool operator==(const Stopped&, const Stopped&) = default;
};
Stopped match(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher(stops);
  std::string out;
  for (const std::string& piece : pieces) out += matcher.push(piece);
  return {out + matcher.finish(), matcher.stopped()};
}

TEST(StopMatcherTest, FindsStopsAcrossPieces) {  // case 39
  EXPECT_EQ(match({"</answer>"}, {"4", "2</ans", "wer", ">x"}), (Stopped{"42", true}));
  EXPECT_EQ(match({"END"}, {"ab", "E", "N", "D", "cd"}), (Stopped{"ab", true}));
  EXPECT_EQ(match({"END"}, {"abE", "NOT"}), (Stopped{"abENOT", false}));
  EXPECT_EQ(match({"aab"}, {"aa", "aab"}), (Stopped{"aa", true}));
  EXPECT_EQ(match({"abc", "b"}, {"xab", "c"}), (Stopped{"xa", true}));
  EXPECT_EQ(match({"b", "ab"}, {"xab"}), (Stopped{"x", true}));
  EXPECT_EQ(match({}, {"x", "y"}), (Stopped{"xy", false}));
  EXPECT_THROW(StopMatcher({""}), UsageError);
}

TEST(StopMatcherTest, HoldsBackOnlyWhatMayBecomeAStop) {
  StopMatcher matcher({"\n\nQ:"});
  EXPECT_EQ(matcher.push("a\n"), "a");
  EXPECT_EQ(matcher.push("\n"), "");
  EXPECT_EQ(matcher.push("\n"), "\n");
  EXPECT_EQ(matcher.push("Q"), "");
  EXPECT_EQ(matcher.push("R"), "\n\nQR");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcherTest, AgreesWithASearchOfTheWholeTextAtAnyCut) {
  const std::vector<std::string> stops = {"aba", "bb", "cab"};
  for (std::uint32_t trial = 0; trial < 500; ++trial) {
    const RandomKey key{.seed = 11, .step = trial};
    std::string text;
    std::vector<std::string> pieces(1);
    for (std::uint64_t i = 0; i < 12; ++i) {
      text += char('a' + random_below(key, i, 3));
      pieces.back() += text.back();
      if (random_below(key, 100 + i, 2) == 0) pieces.emplace_back();
    }
    std::size_t first_end = std::string::npos, begin = 0;
    for (const std::string& stop : stops) {
      const std::size_t at = text.find(stop);
      if (at == std::string::npos) continue;
      const std::size_t end = at + stop.size();
      if (end < first_end || (end == first_end && at < begin)) {
        first_end = end;
        begin = at;
      }
    }
    const bool found = first_end != std::string::npos;
    ASSERT_EQ(match(stops, pieces), (Stopped{found ? text.substr(0, begin) : text, found})) << text;
  }
}

}  // namespace
}  // namespace plumb
