// What a tokenizer is made of; for the files of this folder only.
#pragma once
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/pre_tokenizer.h"
#include "model/tokenizer/tokenizer_file.h"

namespace plumb {

/// Words that were encoded before. Bounded: text in which no word comes twice must not fill the memory.
class WordCache {
 public:
  bool find(std::string_view word, std::vector<std::int32_t>& out) const;
  void add(std::string_view word, std::span<const std::int32_t> ids);

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::vector<std::int32_t>, Hash, std::equal_to<>> words_;
};

struct TokenizerData {
  struct Token {
    std::string bytes;
    bool special = false;
  };
  struct SpecialIds {
    std::optional<std::int32_t> bos, eos, pad;
  };

  std::deque<Token> tokens;                                // by id; growing moves none
  std::unordered_map<std::string_view, std::int32_t> ids;  // of the model's vocabulary; views into `tokens`
  std::map<std::string, std::int32_t, std::less<>> added_ids;
  AddedTokenFinder raw_added;
  AddedTokenFinder normalized_added;
  bool nfc = false;
  std::optional<PreTokenizer> pre_tokenizer;
  std::optional<Bpe> bpe;                  // else one word, one token
  std::optional<std::int32_t> unknown_id;  // of word vocabularies
  std::string separator;
  std::vector<std::int32_t> prefix;  // what the post-processor puts around a sequence
  std::vector<std::int32_t> suffix;
  SpecialIds special;
  std::map<std::string, std::string> files;  // name to contents, for save()
  mutable WordCache cache;

  void encode_words(std::string_view text, std::vector<std::int32_t>& out) const;
};

/// Throws Error (without the file's name) for what is malformed or not supported.
void build_tokenizer(const TokenizerFile& file, TokenizerData& data);
/// Sets BOS, EOS and padding by the names that tokenizer_config.json gives them.
void set_special_ids(const nlohmann::json& config, TokenizerData& data);

/// What tokenizer.json would say, for vocab.json + merges.txt and for `char_ords`.
TokenizerFile describe_vocab_and_merges(const std::filesystem::path& folder, const nlohmann::json& config);
TokenizerFile describe_char_ords(const nlohmann::json& config);
/// tokenizer.json for a vocabulary of single characters and special tokens, ids in this order.
std::string describe_characters(const std::vector<std::string>& tokens, const std::vector<std::string>& special,
                                const std::string& unknown);

}  // namespace plumb
