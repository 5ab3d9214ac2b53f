// Training data from JSONL files. Every error names the file and the line; lines of white space only are passed over.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace plumb {

/// What happens to an example longer than the window. left and right: tokens are cut off there.
enum class TooLong : std::uint8_t { error, drop, left, right };
constexpr auto enum_names(TooLong) {
  return std::array{std::pair{TooLong::error, "error"}, std::pair{TooLong::drop, "drop"}, std::pair{TooLong::left, "left"},
                    std::pair{TooLong::right, "right"}};
}

struct JsonlOptions {
  /// Text to token ids; null: a line with text is an error.
  std::function<std::vector<std::int32_t>(std::string_view)> encode;
  std::optional<std::int32_t> eos_id;  // appended to a response that is text
  std::int64_t vocab_size = 0;         // ids must be below
  std::int64_t max_tokens = 0;         // the window, in tokens; 0: any length
  TooLong too_long = TooLong::error;
  bool skip_empty = false;  // a line without text, or without a token to train on, is passed over and counted instead of an error
};

/// tokens[prompt_len..] are trained: one token or more.
struct SftExample {
  std::vector<std::int32_t> tokens;
  std::int64_t prompt_len = 1;
  std::int64_t line = 0;  // 1-based
};

struct SftData {
  std::vector<SftExample> examples;
  std::int64_t skipped_empty = 0;
  std::int64_t dropped = 0;    // too long, or with nothing to train on left where it was cut
  std::int64_t truncated = 0;  // too long
};

/// Lines {"prompt", "response"} (the response ends with eos_id), {"text"} (all but the first token is trained) or
/// {"ids", "prompt_len"}. Other keys are ignored. Throws Error.
SftData read_sft_jsonl(const std::filesystem::path& file, const JsonlOptions&);

/// An answer sampled elsewhere, with the log-probs that its sampler reported.
struct RecordedRollout {
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> response;
  std::vector<float> logprobs;  // of each response token
  std::optional<double> reward;
  std::vector<float> advantages;  // of each response token; empty when there is a reward instead
  std::int64_t group = 0;
  bool finished = true;   // `finish` is not "length"
  std::int64_t line = 0;  // 1-based
};

/// Lines {"prompt_ids", "response_ids", "logprobs", "group", and "reward" or "advantages" (one number for the whole answer,
/// or one per token)}, in file order; other keys are ignored. An answer of more than max_tokens with its prompt is an error: it is
/// evidence, not text to be cut. Throws Error.
std::vector<RecordedRollout> read_rollouts_jsonl(const std::filesystem::path& file, std::int64_t vocab_size, std::int64_t max_tokens);

}  // namespace plumb
