#include "model/tokenizer/unicode.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "kernels/core/error.h"

namespace plumb {

CodePoint first_code_point(std::string_view text) {
  utf8proc_int32_t code = 0;
  const auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), utf8proc_ssize_t(text.size()), &code);
  if (n <= 0) return {-1, 1};
  return {code, std::size_t(n)};
}

CodePoint last_code_point(std::string_view text) {
  std::size_t bytes = 1;
  while (bytes < 4 && bytes < text.size() && (static_cast<unsigned char>(text[text.size() - bytes]) & 0xC0) == 0x80) ++bytes;
  const CodePoint last = first_code_point(text.substr(text.size() - bytes));
  return last.bytes == bytes ? last : CodePoint{-1, 1};
}

std::optional<std::size_t> invalid_utf8_at(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const CodePoint c = first_code_point(text.substr(i));
    if (c.code < 0) return i;
    i += c.bytes;
  }
  return std::nullopt;
}

std::string to_nfc(std::string_view text) {
  const bool ascii = std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (ascii) return std::string(text);
  utf8proc_uint8_t* mapped = nullptr;
  const auto n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), utf8proc_ssize_t(text.size()), &mapped,
                              utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (n < 0) throw Error(fmt::format("cannot normalize text: {}", utf8proc_errmsg(n)));
  return std::string(reinterpret_cast<const char*>(mapped), std::size_t(n));
}

void append_utf8(std::string& out, std::int32_t code) {
  utf8proc_uint8_t bytes[4];
  const auto n = utf8proc_encode_char(code, bytes);
  out.append(reinterpret_cast<const char*>(bytes), std::size_t(n));
}

bool is_white_space(std::int32_t code) {
  if (code >= 0x09 && code <= 0x0D) return true;
  if (code >= 0x2000 && code <= 0x200A) return true;
  switch (code) {
    case 0x20:
    case 0x85:
    case 0xA0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202F:
    case 0x205F:
    case 0x3000: return true;
    default: return false;
  }
}

bool is_word(std::int32_t code) {
  if (code == 0x200C || code == 0x200D) return true;
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
  }
}

}  // namespace plumb
