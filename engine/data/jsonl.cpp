#include "engine/data/jsonl.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "engine/data/json_lines.h"
#include "kernels/core/error.h"

namespace plumb {
namespace {

std::vector<std::int32_t> encode(const JsonLine& line, const JsonlOptions& options, const std::string& text) {
  if (!options.encode) line.fail("this is text, but there is no tokenizer; give {\"ids\": [...], \"prompt_len\": n}");
  return options.encode(text);
}

/// True when the line is to be skipped as empty.
bool refuse_empty(const JsonLine& line, const JsonlOptions& options, const char* key) {
  if (!blank(line.text(key))) return false;
  if (!options.skip_empty) line.fail(fmt::format("\"{}\" is empty (skip_empty: true passes over such lines)", key));
  return true;
}

std::optional<SftExample> from_prompt(const JsonLine& line, const JsonlOptions& options) {
  if (refuse_empty(line, options, "prompt") || refuse_empty(line, options, "response")) return std::nullopt;
  SftExample example{.tokens = encode(line, options, line.text("prompt")), .line = line.number};
  example.prompt_len = std::int64_t(example.tokens.size());
  const std::vector<std::int32_t> response = encode(line, options, line.text("response"));
  example.tokens.insert(example.tokens.end(), response.begin(), response.end());
  if (options.eos_id) example.tokens.push_back(*options.eos_id);
  return example;
}

std::optional<SftExample> from_text(const JsonLine& line, const JsonlOptions& options) {
  if (refuse_empty(line, options, "text")) return std::nullopt;
  return SftExample{.tokens = encode(line, options, line.text("text")), .line = line.number};
}

std::optional<SftExample> from_ids(const JsonLine& line, const JsonlOptions& options) {
  SftExample example{.tokens = line.ids("ids", options.vocab_size), .prompt_len = line.integer("prompt_len"), .line = line.number};
  const auto length = std::int64_t(example.tokens.size());
  if (length == 0 && options.skip_empty) return std::nullopt;
  if (length == 0) line.fail("\"ids\" is empty (skip_empty: true passes over such lines)");
  if (example.prompt_len < 1 || example.prompt_len > length)
    line.fail(fmt::format("\"prompt_len\" is {}; it must be 1 to {}, the number of ids", example.prompt_len, length));
  return example;
}

std::optional<SftExample> sft_example(const JsonLine& line, const JsonlOptions& options) {
  if (line.has("ids")) return from_ids(line, options);
  if (line.has("text")) return from_text(line, options);
  if (line.has("prompt") || line.has("response")) return from_prompt(line, options);
  line.fail("keys are missing: a line has \"prompt\" and \"response\", or \"text\", or \"ids\" and \"prompt_len\"");
}

std::int64_t trained_tokens(const SftExample& e) { return std::int64_t(e.tokens.size()) - e.prompt_len; }

/// Whether there is a token to train on. Throws Error when there is none and skip_empty does not pass over it.
bool trains(const JsonLine& line, const JsonlOptions& options, const SftExample& example) {
  if (trained_tokens(example) > 0) return true;
  if (!options.skip_empty) line.fail("there is nothing to train on, only a prompt (skip_empty: true passes over such lines)");
  return false;
}

/// Applies too_long; false when the example is to be dropped.
bool fit(const JsonLine& line, const JsonlOptions& options, SftExample& example, SftData& data) {
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
    case TooLong::right: example.tokens.resize(std::size_t(options.max_tokens)); break;
  }
  const bool anything_left = trained_tokens(example) > 0;
  ++(anything_left ? data.truncated : data.dropped);
  return anything_left;
}

void read_outcome(const JsonLine& line, RecordedRollout& rollout) {
  if (line.has("reward") == line.has("advantages")) line.fail("give either \"reward\" or \"advantages\"");
  if (line.has("reward")) {
    rollout.reward = line.number_of("reward", line.at("reward"));
    return;
  }
  const nlohmann::json& value = line.at("advantages");
  if (value.is_number()) {
    rollout.advantages.assign(rollout.response.size(), float(line.number_of("advantages", value)));
    return;
  }
  const std::vector<double> each = line.numbers("advantages");
  rollout.advantages.assign(each.begin(), each.end());
  if (rollout.advantages.size() != rollout.response.size())
    line.fail(fmt::format("{} \"advantages\" for {} response tokens", rollout.advantages.size(), rollout.response.size()));
}

}  // namespace

SftData read_sft_jsonl(const std::filesystem::path& file, const JsonlOptions& options) {
  SftData data;
  for_each_json_line(file, [&](const JsonLine& line) {
    std::optional<SftExample> example = sft_example(line, options);
    if (!example || !trains(line, options, *example)) {
      ++data.skipped_empty;
    } else if (fit(line, options, *example, data)) {
      data.examples.push_back(std::move(*example));
    }
  });
  if (data.examples.empty()) throw Error(fmt::format("{}: no examples", file.string()));
  return data;
}

std::vector<RecordedRollout> read_rollouts_jsonl(const std::filesystem::path& file, std::int64_t vocab_size, std::int64_t max_tokens) {
  std::vector<RecordedRollout> out;
  for_each_json_line(file, [&](const JsonLine& line) {
    RecordedTokens tokens = recorded_tokens(line, vocab_size);
    RecordedRollout r{.prompt = std::move(tokens.prompt),
                      .response = std::move(tokens.response),
                      .logprobs = {tokens.logprobs.begin(), tokens.logprobs.end()},
                      .group = line.integer("group"),
                      .line = line.number};
    if (r.prompt.empty()) line.fail("\"prompt_ids\" is empty");
    if (r.response.empty()) line.fail("\"response_ids\" is empty");
    const auto length = std::int64_t(r.prompt.size() + r.response.size());
    if (length > max_tokens) line.fail(fmt::format("{} tokens; at most {} fit", length, max_tokens));
    if (line.has("finish")) r.finished = line.text("finish") != "length";
    read_outcome(line, r);
    out.push_back(std::move(r));
  });
  if (out.empty()) throw Error(fmt::format("{}: no rollouts", file.string()));
  return out;
}

}  // namespace plumb
