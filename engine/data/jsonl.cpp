#include "engine/data/jsonl.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/core/error.h"
#include "model/files/files.h"

namespace plumb {
namespace {

using nlohmann::json;

bool blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

/// One line of a file, with the errors that it can be refused by.
struct Line {
  const std::filesystem::path& file;
  std::int64_t number;
  json object;

  std::string where() const { return fmt::format("{}:{}", file.string(), number); }
  [[noreturn]] void fail(const std::string& what) const { throw Error(fmt::format("{}: {}", where(), what)); }

  bool has(const char* key) const { return object.contains(key); }
  const json& at(const char* key) const {
    const auto it = object.find(key);
    if (it == object.end()) fail(fmt::format("key \"{}\" is missing", key));
    return *it;
  }
  const std::string& text(const char* key) const {
    const json& value = at(key);
    if (!value.is_string()) fail(fmt::format("\"{}\" must be a string", key));
    return value.get_ref<const std::string&>();
  }
  std::int64_t integer(const char* key) const {
    const json& value = at(key);
    if (!value.is_number_integer()) fail(fmt::format("\"{}\" must be an integer", key));
    return value.get<std::int64_t>();
  }
  double number_of(const char* key, const json& value) const {
    if (!value.is_number() || !std::isfinite(value.get<double>())) fail(fmt::format("\"{}\" must be a finite number", key));
    return value.get<double>();
  }
  const json& array(const char* key) const {
    const json& value = at(key);
    if (!value.is_array()) fail(fmt::format("\"{}\" must be a list", key));
    return value;
  }
  std::vector<std::int32_t> ids(const char* key, std::int64_t vocab_size) const {
    std::vector<std::int32_t> out;
    for (const json& value : array(key)) {
      if (!value.is_number_integer()) fail(fmt::format("\"{}\" must be a list of token ids (integers)", key));
      const auto id = value.get<std::int64_t>();
      if (id < 0 || id >= vocab_size) fail(fmt::format("\"{}\": token id {} is not in the vocabulary of {}", key, id, vocab_size));
      out.push_back(std::int32_t(id));
    }
    return out;
  }
  std::vector<float> numbers(const char* key) const {
    std::vector<float> out;
    for (const json& value : array(key)) out.push_back(float(number_of(key, value)));
    return out;
  }
};

/// Calls f(Line) for every line that is not blank.
template <class F>
void for_each_line(const std::filesystem::path& file, F&& f) {
  const std::string text = read_file(file);
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const auto content = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (blank(content)) continue;
    Line line{file, number, {}};
    line.object = parse_json(content, line.where());
    if (!line.object.is_object()) line.fail("each line must be a JSON object");
    f(line);
  }
}

std::vector<std::int32_t> encode(const Line& line, const JsonlOptions& options, const std::string& text) {
  if (!options.encode) line.fail("this is text, but there is no tokenizer; give {\"ids\": [...], \"prompt_len\": n}");
  return options.encode(text);
}

/// True when the line is to be skipped as empty.
bool refuse_empty(const Line& line, const JsonlOptions& options, const char* key) {
  if (!blank(line.text(key))) return false;
  if (!options.skip_empty) line.fail(fmt::format("\"{}\" is empty (skip_empty: true passes over such lines)", key));
  return true;
}

std::optional<SftExample> from_prompt(const Line& line, const JsonlOptions& options) {
  if (refuse_empty(line, options, "prompt") || refuse_empty(line, options, "response")) return std::nullopt;
  SftExample example{.tokens = encode(line, options, line.text("prompt")), .line = line.number};
  example.prompt_len = std::int64_t(example.tokens.size());
  const std::vector<std::int32_t> response = encode(line, options, line.text("response"));
  example.tokens.insert(example.tokens.end(), response.begin(), response.end());
  if (options.eos_id) example.tokens.push_back(*options.eos_id);
  return example;
}

std::optional<SftExample> from_text(const Line& line, const JsonlOptions& options) {
  if (refuse_empty(line, options, "text")) return std::nullopt;
  return SftExample{.tokens = encode(line, options, line.text("text")), .line = line.number};
}

std::optional<SftExample> from_ids(const Line& line, const JsonlOptions& options) {
  SftExample example{.tokens = line.ids("ids", options.vocab_size), .prompt_len = line.integer("prompt_len"), .line = line.number};
  const auto length = std::int64_t(example.tokens.size());
  if (length == 0 && options.skip_empty) return std::nullopt;
  if (length == 0) line.fail("\"ids\" is empty (skip_empty: true passes over such lines)");
  if (example.prompt_len < 1 || example.prompt_len > length)
    line.fail(fmt::format("\"prompt_len\" is {}; it must be 1 to {}, the number of ids", example.prompt_len, length));
  return example;
}

std::optional<SftExample> sft_example(const Line& line, const JsonlOptions& options) {
  if (line.has("ids")) return from_ids(line, options);
  if (line.has("text")) return from_text(line, options);
  if (line.has("prompt") || line.has("response")) return from_prompt(line, options);
  line.fail("keys are missing: a line has \"prompt\" and \"response\", or \"text\", or \"ids\" and \"prompt_len\"");
}

/// Applies too_long; false when the example is to be dropped.
bool fit(const Line& line, const JsonlOptions& options, SftExample& example, SftData& data) {
  const auto length = std::int64_t(example.tokens.size());
  const std::int64_t excess = options.max_tokens == 0 ? 0 : length - options.max_tokens;
  if (excess <= 0) return true;
  switch (options.too_long) {
    case TooLong::error:
      line.fail(fmt::format("{} tokens; at most {} fit (too_long: drop, left or right passes over or cuts such lines)", length,
                            options.max_tokens));
    case TooLong::drop: ++data.dropped; return false;
    case TooLong::left:
      example.tokens.erase(example.tokens.begin(), example.tokens.begin() + excess);
      example.prompt_len = std::max<std::int64_t>(1, example.prompt_len - excess);
      break;
    case TooLong::right:
      example.tokens.resize(std::size_t(options.max_tokens));
      example.prompt_len = std::min(example.prompt_len, options.max_tokens);
      break;
  }
  ++data.truncated;
  return true;
}

void read_outcome(const Line& line, RecordedRollout& rollout) {
  if (line.has("reward") == line.has("advantages")) line.fail("give either \"reward\" or \"advantages\"");
  if (line.has("reward")) {
    rollout.reward = line.number_of("reward", line.at("reward"));
    return;
  }
  const json& value = line.at("advantages");
  if (value.is_number()) {
    rollout.advantages.assign(rollout.response.size(), float(line.number_of("advantages", value)));
    return;
  }
  rollout.advantages = line.numbers("advantages");
  if (rollout.advantages.size() != rollout.response.size())
    line.fail(fmt::format("{} \"advantages\" for {} response tokens", rollout.advantages.size(), rollout.response.size()));
}

}  // namespace

SftData read_sft_jsonl(const std::filesystem::path& file, const JsonlOptions& options) {
  SftData data;
  for_each_line(file, [&](const Line& line) {
    std::optional<SftExample> example = sft_example(line, options);
    if (!example) {
      ++data.skipped_empty;
    } else if (fit(line, options, *example, data)) {
      data.examples.push_back(std::move(*example));
    }
  });
  if (data.examples.empty()) throw Error(fmt::format("{}: no examples", file.string()));
  return data;
}

std::vector<RecordedRollout> read_rollouts_jsonl(const std::filesystem::path& file, const JsonlOptions& options) {
  std::vector<RecordedRollout> out;
  for_each_line(file, [&](const Line& line) {
    RecordedRollout r{.prompt = line.ids("prompt_ids", options.vocab_size),
                      .response = line.ids("response_ids", options.vocab_size),
                      .logprobs = line.numbers("logprobs"),
                      .group = line.integer("group"),
                      .line = line.number};
    if (r.prompt.empty()) line.fail("\"prompt_ids\" is empty");
    if (r.response.empty()) line.fail("\"response_ids\" is empty");
    if (r.logprobs.size() != r.response.size())
      line.fail(fmt::format("{} \"logprobs\" for {} response tokens", r.logprobs.size(), r.response.size()));
    const auto length = std::int64_t(r.prompt.size() + r.response.size());
    if (options.max_tokens > 0 && length > options.max_tokens)
      line.fail(fmt::format("{} tokens; at most {} fit", length, options.max_tokens));
    if (line.has("finish")) r.finished = line.text("finish") != "length";
    read_outcome(line, r);
    out.push_back(std::move(r));
  });
  if (out.empty()) throw Error(fmt::format("{}: no rollouts", file.string()));
  return out;
}

}  // namespace plumb
