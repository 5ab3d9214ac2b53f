// Tokenizers that do not come as tokenizer.json, put into its words.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "kernels/core/error.h"
#include "model/files/files.h"
#include "model/tokenizer/tokenizer_data.h"
#include "model/tokenizer/unicode.h"

namespace plumb {
namespace {

using nlohmann::json;

constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

json added_token(std::uint64_t id, const std::string& content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", use_regex}};
}

/// One line, one merge, after an optional `#version` line.
std::vector<std::pair<std::string, std::string>> read_merges(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  std::vector<std::pair<std::string, std::string>> merges;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line(text.data() + begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const bool version = begin == 0 && line.starts_with("#version");
    if (!line.empty() && !version) merges.push_back(split_merge(line));
    begin = end + 1;
  }
  return merges;
}

}  // namespace

TokenizerFile describe_vocab_and_merges(const std::filesystem::path& folder, const nlohmann::json& config) {
  const std::string name = config.value("tokenizer_class", "");
  const bool qwen = name == "Qwen2Tokenizer" || name == "Qwen2TokenizerFast";
  const bool gpt2 = name == "GPT2Tokenizer" || name == "GPT2TokenizerFast";
  if (!qwen && !gpt2) throw Error(fmt::format("tokenizer_class {} is not supported without tokenizer.json", in_quotes(name)));
  TokenizerFile file{.rest = {{"model", {{"type", "BPE"}}}, {"decoder", byte_level(true)}, {"added_tokens", json::array()}},
                     .merges = read_merges(folder / "merges.txt")};
  const json vocab = read_json(folder / "vocab.json");
  for (const auto& [token, id] : vocab.items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= kMostTokenIds) {
      throw Error(fmt::format("token {}: its id is not a whole number below {}", in_quotes(token), kMostTokenIds));
    }
    file.vocab.emplace_back(token, id.get<std::int32_t>());
  }
  if (qwen) {
    const json split = {{"type", "Split"}, {"pattern", {{"Regex", kQwen2Pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
    file.rest["normalizer"] = {{"type", "NFC"}};
    file.rest["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", json::array({split, byte_level(false)})}};
  } else {
    file.rest["pre_tokenizer"] = byte_level(true);
  }
  if (!config.contains("added_tokens_decoder")) return file;
  for (const auto& [id, token] : config.at("added_tokens_decoder").items()) {
    if (id.empty() || id.size() > 8 || id.find_first_not_of("0123456789") != std::string::npos) {
      throw Error(fmt::format("added_tokens_decoder: {} is not an id", in_quotes(id)));
    }
    json entry = token;
    entry["id"] = std::uint64_t(std::stoul(id));
    file.rest["added_tokens"].push_back(std::move(entry));
  }
  return file;
}

std::string describe_characters(const std::vector<std::string>& tokens, const std::vector<std::string>& special,
                                const std::string& unknown) {
  json vocab = json::object();
  json added = json::array();
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (vocab.contains(tokens[id])) throw Error(fmt::format("character {} comes twice", in_quotes(tokens[id])));
    vocab[tokens[id]] = id;
    if (std::find(special.begin(), special.end(), tokens[id]) != special.end()) added.push_back(added_token(id, tokens[id], true));
  }
  const json description = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", std::move(added)},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "[\\s\\S]"}}}, {"behavior", "Isolated"}, {"invert", false}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "Fuse"}}},
      {"model", {{"type", "WordLevel"}, {"vocab", std::move(vocab)}, {"unk_token", unknown}}}};
  return description.dump(2) + "\n";
}

TokenizerFile describe_char_ords(const nlohmann::json& config) {
  const std::vector<std::string> special = {"<sep>", "<eos>", "<pad>", "<unk>"};
  std::vector<std::string> tokens = special;
  for (const json& code : config.at("char_ords")) {
    if (!code.is_number_unsigned() || code.get<std::uint64_t>() > 0x10FFFF) throw Error("char_ords: not a code point");
    append_utf8(tokens.emplace_back(), code.get<std::int32_t>());
    if (invalid_utf8_at(tokens.back())) throw Error("char_ords: not a code point");
  }
  return parse_tokenizer_file(describe_characters(tokens, special, "<unk>"), "char_ords");
}

}  // namespace plumb
