// Cuts text into the words that a tokenizer model sees one by one.
#pragma once
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/regex.h"

namespace plumb {

/// What becomes of the text that a Split pattern matches.
enum class SplitBehavior : std::uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

class PreTokenizer {
 public:
  /// From the `pre_tokenizer` of tokenizer.json (null: none): Sequence, Split, Digits, ByteLevel, Whitespace and
  /// WhitespaceSplit. Throws Error that names any other.
  explicit PreTokenizer(const nlohmann::json& description);

  /// Words that are not empty, in order. They are views into `text` or, where a space was put in front, into `storage`.
  std::vector<std::string_view> split(std::string_view text, std::deque<std::string>& storage) const;

  /// Whether words stand for their bytes in the alphabet of byte-level vocabularies.
  bool byte_level() const { return byte_level_; }

 private:
  struct Stage {
    bool prefix_space = false;   // put a space in front of words that do not start with one; else split by `pattern`
    std::vector<Regex> pattern;  // one, or none with prefix_space
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;
  };

  void add(const nlohmann::json& description);
  void add_split(std::string_view pattern, SplitBehavior behavior, bool invert);

  std::vector<Stage> stages_;
  bool byte_level_ = false;
};

}  // namespace plumb
