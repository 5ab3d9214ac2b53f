#include "engine/data/json_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/core/error.h"
#include "model/files/files.h"

namespace plumb {

using nlohmann::json;

bool blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

void for_each_line(const std::filesystem::path& file, const std::function<void(std::string_view, std::int64_t)>& f) {
  const std::string text = read_file(file);
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    auto content = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (content.ends_with('\r')) content.remove_suffix(1);
    if (!blank(content)) f(content, number);
  }
}

std::string JsonLine::where() const { return fmt::format("{}:{}", file.string(), number); }
void JsonLine::fail(const std::string& what) const { throw Error(fmt::format("{}: {}", where(), what)); }

const json& JsonLine::at(const char* key) const {
  const auto it = object.find(key);
  if (it == object.end()) fail(fmt::format("key \"{}\" is missing", key));
  return *it;
}

const std::string& JsonLine::text(const char* key) const {
  const json& value = at(key);
  if (!value.is_string()) fail(fmt::format("\"{}\" must be a string", key));
  return value.get_ref<const std::string&>();
}

std::int64_t JsonLine::integer(const char* key) const {
  const json& value = at(key);
  if (!value.is_number_integer()) fail(fmt::format("\"{}\" must be an integer", key));
  return value.get<std::int64_t>();
}

double JsonLine::number_of(const char* key, const json& value) const {
  if (!value.is_number() || !std::isfinite(value.get<double>())) fail(fmt::format("\"{}\" must be a finite number", key));
  return value.get<double>();
}

std::vector<double> JsonLine::numbers(const char* key) const {
  const json& list = at(key);
  if (!list.is_array()) fail(fmt::format("\"{}\" must be a list of numbers", key));
  std::vector<double> out;
  for (const json& value : list) out.push_back(number_of(key, value));
  return out;
}

std::vector<std::int32_t> JsonLine::ids(const char* key, std::int64_t vocab_size) const {
  const json& list = at(key);
  if (!list.is_array()) fail(fmt::format("\"{}\" must be a list of token ids", key));
  std::vector<std::int32_t> out;
  for (const json& value : list) {
    if (!value.is_number_integer()) fail(fmt::format("\"{}\" must be a list of token ids (integers)", key));
    const auto id = value.get<std::int64_t>();
    if (id < 0 || id >= vocab_size) fail(fmt::format("\"{}\": token id {} is not in the vocabulary of {}", key, id, vocab_size));
    out.push_back(std::int32_t(id));
  }
  return out;
}

void for_each_json_line(const std::filesystem::path& file, const std::function<void(const JsonLine&)>& f) {
  for_each_line(file, [&](std::string_view content, std::int64_t number) {
    JsonLine line{.file = file, .number = number, .object = {}};
    line.object = parse_json(content, line.where());
    if (!line.object.is_object()) line.fail("each line must be a JSON object");
    f(line);
  });
}

RecordedTokens recorded_tokens(const JsonLine& line, std::int64_t vocab_size, const std::string& logprobs_key) {
  RecordedTokens out{.prompt = line.ids("prompt_ids", vocab_size),
                     .response = line.ids("response_ids", vocab_size),
                     .logprobs = line.numbers(logprobs_key.c_str())};
  if (out.logprobs.size() != out.response.size())
    line.fail(fmt::format("{} \"{}\" for {} response tokens", out.logprobs.size(), logprobs_key, out.response.size()));
  const auto above = std::find_if(out.logprobs.begin(), out.logprobs.end(), [](double x) { return x > 0; });
  if (above != out.logprobs.end()) line.fail(fmt::format("\"{}\" holds {}; a log-prob is at most 0", logprobs_key, *above));
  return out;
}

}  // namespace plumb
