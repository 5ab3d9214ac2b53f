// Patterns of tokenizer.json (Oniguruma syntax) on PCRE2 with Unicode properties and, where the machine allows it, JIT.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace plumb {

/// A stretch of text, matched by a pattern or lying between matches.
struct TextRange {
  std::size_t begin;
  std::size_t end;
  bool match;
};

class Regex {
 public:
  /// Throws Error with the pattern when it is malformed or uses syntax whose meaning differs between the two libraries.
  explicit Regex(std::string_view pattern);

  /// Cuts valid UTF-8 into its matches and what lies between them, in order and without gaps; thread-safe.
  std::vector<TextRange> split(std::string_view text) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

/// A pattern that matches exactly `text`.
std::string escaped_pattern(std::string_view text);

}  // namespace plumb
