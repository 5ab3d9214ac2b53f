// tokenizer.json in memory. The two long lists are read straight into vectors, which is several times faster than JSON values.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace plumb {

struct TokenizerFile {
  nlohmann::json rest;                                      // everything else; model.vocab and model.merges are null
  std::vector<std::pair<std::string, std::int32_t>> vocab;  // token, id
  std::vector<std::pair<std::string, std::string>> merges;  // in order of rank
};

/// Ids of a tokenizer are below this.
constexpr std::uint64_t kMostTokenIds = 1 << 24;

/// Throws Error that starts with `where`.
TokenizerFile parse_tokenizer_file(std::string_view text, const std::string& where);

/// The two halves of "left right". Throws Error unless there is exactly one space.
std::pair<std::string, std::string> split_merge(std::string_view text);

}  // namespace plumb
