// Files of lines: text, or a JSON object a line. Every error names the file and the line; lines of white space only are passed over.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace plumb {

/// Nothing but white space.
bool blank(std::string_view text);

/// Calls f(line, its number from 1 on) for every line that is not blank, without its end (LF or CRLF). Throws Error naming the file.
void for_each_line(const std::filesystem::path& file, const std::function<void(std::string_view, std::int64_t)>& f);

/// A line's object, with the errors that it can be refused by. Each getter throws Error with file, line and key.
struct JsonLine {
  const std::filesystem::path& file;
  std::int64_t number = 0;  // 1-based
  nlohmann::json object;

  std::string where() const;  // "file:line"
  [[noreturn]] void fail(const std::string& what) const;

  bool has(const char* key) const { return object.contains(key); }
  const nlohmann::json& at(const char* key) const;
  const std::string& text(const char* key) const;
  std::int64_t integer(const char* key) const;
  /// A finite number.
  double number_of(const char* key, const nlohmann::json& value) const;
  std::vector<double> numbers(const char* key) const;
  /// Token ids below vocab_size.
  std::vector<std::int32_t> ids(const char* key, std::int64_t vocab_size) const;
};
void for_each_json_line(const std::filesystem::path& file, const std::function<void(const JsonLine&)>& f);

/// The tokens of a recorded answer and a number for each token of the response.
struct RecordedTokens {
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> response;
  std::vector<double> logprobs;  // (response) of the sampler; finite, at most 0
};
/// Of the keys prompt_ids, response_ids and `logprobs_key`.
RecordedTokens recorded_tokens(const JsonLine&, std::int64_t vocab_size, const std::string& logprobs_key = "logprobs");

}  // namespace plumb
