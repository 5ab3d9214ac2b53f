// The little Unicode that tokenizers need, over UTF-8 in std::string_view.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace plumb {

/// A code point and the bytes it took; `code` is -1 (and `bytes` 1) where the text is not valid UTF-8.
struct CodePoint {
  std::int32_t code;
  std::size_t bytes;
};
CodePoint first_code_point(std::string_view text);  // text not empty
CodePoint last_code_point(std::string_view text);   // text not empty

/// Position of the first byte that does not belong to valid UTF-8.
std::optional<std::size_t> invalid_utf8_at(std::string_view text);
/// Normalization form C of valid UTF-8.
std::string to_nfc(std::string_view text);
void append_utf8(std::string& out, std::int32_t code);

bool is_white_space(std::int32_t code);  // the property White_Space
bool is_word(std::int32_t code);         // letters, marks, decimal and letter numbers, connectors, joiners

}  // namespace plumb
