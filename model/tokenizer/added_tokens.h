// Tokens that are found in the text before anything else is done to it, such as <|im_end|>.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace plumb {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;
  bool normalized = false;   // looked for in the normalized text, else in the raw text
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
};

/// Finds tokens from left to right, the longest first.
class AddedTokenFinder {
 public:
  struct Segment {
    std::string_view text;
    std::int32_t id;  // -1: text between tokens
  };

  void add(AddedToken token);  // throws Error for empty content
  /// The text in order, as tokens and what lies between them.
  std::vector<Segment> split(std::string_view text) const;

 private:
  const AddedToken* longest_at(std::string_view text) const;

  std::array<std::vector<AddedToken>, 256> by_first_byte_;  // longest first
};

}  // namespace plumb
