// Text to token ids and back, as the folder of a Hugging Face model says.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace plumb {

struct TokenizerData;

/// Immutable, cheap to copy (copies share everything) and safe to use from several threads.
class Tokenizer {
 public:
  /// Reads, in this order of preference: tokenizer.json (byte-level BPE or WordLevel), vocab.json + merges.txt
  /// (Qwen2 and GPT-2 classes), or the `char_ords` of tokenizer_config.json (a character vocabulary: ids 0 <sep>, 1 <eos>,
  /// 2 <pad>, 3 <unk>, then the characters). Throws Error naming file and part for anything that is not supported.
  static Tokenizer load(const std::filesystem::path& folder);
  /// Whether load() would find a tokenizer in the folder.
  static bool present(const std::filesystem::path& folder);
  /// One token per character: id i is the i-th character of `alphabet` (UTF-8, no repeats), then come <eos> and <pad>.
  static Tokenizer characters(std::string_view alphabet);

  /// Writes the files that load() reads back; transformers loads them too. A loaded tokenizer writes what it read.
  void save(const std::filesystem::path& folder) const;

  /// The ids of valid UTF-8 text (else Error with the position). Added tokens are recognised in the text.
  /// `add_special`: with the tokens that the post-processor puts around one sequence, such as BOS.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special = false) const;
  /// The bytes of the ids, which need not be valid UTF-8. An id without a token, as in a padded vocabulary, has none.
  /// `skip_special`: leaves special tokens out.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;

  /// One more than the largest id.
  int vocab_size() const;
  /// The id of a token by its bytes (of an added token: its content).
  std::optional<std::int32_t> id_of(std::string_view bytes) const;
  /// The bytes that this id adds to decoded text; empty for an id without a token.
  std::string_view token_bytes(std::int32_t id) const;
  bool is_special(std::int32_t id) const;
  /// What decode() puts between two tokens: a space for word vocabularies, else nothing.
  std::string_view separator() const;

  std::optional<std::int32_t> bos_id() const;
  std::optional<std::int32_t> eos_id() const;
  std::optional<std::int32_t> pad_id() const;

 private:
  explicit Tokenizer(std::shared_ptr<const TokenizerData> data) : data_(std::move(data)) {}
  std::shared_ptr<const TokenizerData> data_;
};

}  // namespace plumb
