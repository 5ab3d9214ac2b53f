// Text that arrives token by token: whole code points only, and an end at the first stop string.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace plumb {

/// Gives out valid UTF-8 only: bytes that begin a code point wait for the rest of it, bytes that cannot be part of one
/// become U+FFFD. All that push() and finish() return, joined, does not depend on how the bytes were cut into tokens.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  /// What was held back, as one U+FFFD.
  std::string finish();

 private:
  std::string held_;  // the beginning of a code point
};

/// Decodes ids one at a time.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, bool skip_special = true) : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}
  /// The text that this id completes; may be empty.
  std::string push(std::int32_t id);
  std::string finish() { return stream_.finish(); }

 private:
  Tokenizer tokenizer_;
  bool skip_special_;
  bool first_ = true;
  Utf8Stream stream_;
};

/// Watches for stop strings, which may be split over pieces. The stop string that ends first counts, of those that end
/// together the longest; it and all that follows is not given out. The result does not depend on how text is cut into pieces.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);  // throws UsageError for an empty stop string

  /// The text that is known not to belong to a stop string. After a stop: empty.
  std::string push(std::string_view piece);
  /// What was held back because a stop string could have begun there.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // the longest end of the text that begins a stop string
  bool stopped_ = false;
};

}  // namespace plumb
