#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/tokenizer/regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <optional>

#include "kernels/core/error.h"
#include "model/files/files.h"
#include "model/tokenizer/unicode.h"

namespace plumb {
namespace {

[[noreturn]] void refuse_pattern(std::string_view pattern, std::string_view what) {
  throw Error(fmt::format("pattern {}: {}", in_quotes(pattern), what));
}

/// What \w is there, found by trying every code point; PCRE2's has letters and numbers only.
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\xB2\\xB3\\xB9\\xBC-\\xBE";

/// Oniguruma's escapes in PCRE2's words. Its \s has no U+180E, which PCRE2's has.
std::string translate_escape(std::string_view pattern, char escape, bool in_class) {
  switch (escape) {
    case 's': return "\\p{White_Space}";
    case 'S': return "\\P{White_Space}";
    case 'w': return in_class ? std::string(kWord) : fmt::format("[{}]", kWord);
    case 'W':
      if (in_class) refuse_pattern(pattern, "\\W inside a class is not supported");
      return fmt::format("[^{}]", kWord);
    case 'b':
      if (in_class) return "\\b";
      return fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", kWord);
    case 'B':
      if (in_class) refuse_pattern(pattern, "\\B inside a class is not supported");
      return fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", kWord);
    case 'h':
    case 'H': refuse_pattern(pattern, "\\h and \\H are not supported");
    default: return {'\\', escape};
  }
}

std::string translate(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const std::string_view rest = pattern.substr(i);
    if (c == '\\' && rest.size() > 1) {
      out += translate_escape(pattern, rest[1], in_class);
      ++i;
      continue;
    }
    if (in_class && c == '[' && !rest.starts_with("[:")) refuse_pattern(pattern, "a class inside a class is not supported");
    if (in_class && rest.starts_with("&&")) refuse_pattern(pattern, "&& inside a class is not supported");
    if (!in_class && rest.starts_with("(?m")) refuse_pattern(pattern, "(?m is not supported");
    out += c;
    if (in_class && rest.starts_with("[:")) {  // [:name:] up to its own bracket
      const auto end = rest.find(":]");
      if (end == std::string_view::npos) refuse_pattern(pattern, "[: without :]");
      out.append(rest.substr(1, end + 1));
      i += end + 1;
      continue;
    }
    if (!in_class && c == '[') {
      in_class = true;
      // A bracket that comes first in a class is a literal.
      std::size_t next = i + 1;
      if (next < pattern.size() && pattern[next] == '^') out += pattern[next++];
      if (next < pattern.size() && pattern[next] == ']') out += pattern[next++];
      i = next - 1;
    } else if (in_class && c == ']') {
      in_class = false;
    }
  }
  return out;
}

std::string message_of(int error) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Regex::Code {
  std::string pattern;
  pcre2_code* code = nullptr;

  explicit Code(std::string_view text) : pattern(text) {
    const std::string translated = translate(text);
    const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(pcre2_compile_context_create(nullptr),
                                                                                                &pcre2_compile_context_free);
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    int error = 0;
    PCRE2_SIZE offset = 0;
    // ^ and $ are line anchors in Oniguruma's default syntax.
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get());
    if (code == nullptr) refuse_pattern(pattern, message_of(error));
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without JIT the interpreter gives the same matches
  }
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  /// The first match at or after `start`. The text is known to be valid UTF-8.
  std::optional<TextRange> find(std::string_view text, std::size_t start, pcre2_match_data* data) const {
    const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    int result = pcre2_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK, data, nullptr);
    // The interpreter keeps its state on the heap, where a long match fits.
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
      result = pcre2_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, nullptr);
    }
    if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (result < 0) refuse_pattern(pattern, message_of(result));
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data);
    if (ends[0] > ends[1]) refuse_pattern(pattern, "\\K in an assertion is not supported");
    return TextRange{ends[0], ends[1], true};
  }
};

Regex::Regex(std::string_view pattern) : code_(std::make_shared<const Code>(pattern)) {}

std::vector<TextRange> Regex::split(std::string_view text) const {
  std::vector<TextRange> out;
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(pcre2_match_data_create_from_pattern(code_->code, nullptr),
                                                                                 &pcre2_match_data_free);
  std::size_t done = 0;   // everything before is in `out`
  std::size_t start = 0;  // where to look next
  bool matched_before = false;
  while (start <= text.size()) {
    const auto found = code_->find(text, start, data.get());
    if (!found) break;
    const bool empty = found->begin == found->end;
    // An empty match right after a match is none; look on behind the next character.
    if (!(empty && matched_before && found->begin == done)) {
      if (found->begin > done) out.push_back({done, found->begin, false});
      out.push_back(*found);
      done = found->end;
      matched_before = true;
    }
    start = found->end;
    if (empty) start += start < text.size() ? first_code_point(text.substr(start)).bytes : 1;
  }
  if (done < text.size()) out.push_back({done, text.size(), false});
  return out;
}

std::string escaped_pattern(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || byte <= 0x20;
    if (!plain) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace plumb
