#include "model/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <deque>
#include <set>

#include "kernels/core/error.h"
#include "model/files/files.h"
#include "model/tokenizer/tokenizer_data.h"
#include "model/tokenizer/unicode.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kMostCachedWords = 1 << 16;
constexpr std::size_t kLongestCachedWord = 64;  // bytes

bool is_there(const fs::path& path) {
  std::error_code unreadable;  // counts as not there
  return fs::exists(path, unreadable);
}

/// Runs `build`; whatever is wrong is said to be wrong with `where`.
template <class Build>
void build_from(const fs::path& where, Build&& build) {
  try {
    build();
  } catch (const json::exception& error) {
    throw Error(fmt::format("{}: not a tokenizer that can be read: {}", where.string(), error.what()));
  } catch (const Error& error) {
    const std::string_view what = error.what();
    if (what.starts_with(where.string())) throw;
    throw Error(fmt::format("{}: {}", where.string(), what));
  }
}

}  // namespace

bool WordCache::find(std::string_view word, std::vector<std::int32_t>& out) const {
  const std::lock_guard lock(mutex_);
  const auto it = words_.find(word);
  if (it == words_.end()) return false;
  out.insert(out.end(), it->second.begin(), it->second.end());
  return true;
}

void WordCache::add(std::string_view word, std::span<const std::int32_t> ids) {
  const std::lock_guard lock(mutex_);
  if (words_.size() < kMostCachedWords) words_.emplace(word, std::vector<std::int32_t>(ids.begin(), ids.end()));
}

void TokenizerData::encode_words(std::string_view text, std::vector<std::int32_t>& out) const {
  std::deque<std::string> storage;
  for (const std::string_view word : pre_tokenizer->split(text, storage)) {
    if (!bpe) {
      const auto it = ids.find(word);
      if (it == ids.end() && !unknown_id) throw Error(fmt::format("{} is not in the vocabulary", in_quotes(word)));
      out.push_back(it == ids.end() ? *unknown_id : it->second);
      continue;
    }
    const bool cached = word.size() <= kLongestCachedWord;
    if (cached && cache.find(word, out)) continue;
    const std::size_t before = out.size();
    bpe->encode(word, out);
    if (cached) cache.add(word, std::span(out).subspan(before));
  }
}

bool Tokenizer::present(const fs::path& folder) {
  if (is_there(folder / "tokenizer.json") || (is_there(folder / "vocab.json") && is_there(folder / "merges.txt"))) return true;
  const auto config = folder / "tokenizer_config.json";
  return is_there(config) && read_json(config).contains("char_ords");
}

Tokenizer Tokenizer::load(const fs::path& folder) {
  auto data = std::make_shared<TokenizerData>();
  json config = json::object();
  for (const char* name : {"tokenizer.json", "vocab.json", "merges.txt", "special_tokens_map.json", "tokenizer_config.json"}) {
    const auto path = folder / name;
    if (is_there(path)) data->files[name] = read_file(path);
  }
  for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"}) {
    if (!data->files.contains(name)) continue;
    const json part = parse_json(data->files[name], (folder / name).string());
    if (!part.is_object()) throw Error(fmt::format("{}: not a JSON object", (folder / name).string()));
    config.update(part);
  }
  if (data->files.contains("tokenizer.json")) {
    const auto path = folder / "tokenizer.json";
    build_from(path, [&] { build_tokenizer(parse_tokenizer_file(data->files["tokenizer.json"], path.string()), *data); });
  } else if (data->files.contains("vocab.json") && data->files.contains("merges.txt")) {
    build_from(folder / "vocab.json", [&] { build_tokenizer(describe_vocab_and_merges(folder, config), *data); });
  } else if (config.contains("char_ords")) {
    // Its special tokens have no names in the file.
    config.update({{"eos_token", "<eos>"}, {"pad_token", "<pad>"}});
    build_from(folder / "tokenizer_config.json", [&] { build_tokenizer(describe_char_ords(config), *data); });
  } else {
    throw Error(fmt::format("{}: holds no tokenizer (tokenizer.json, or vocab.json and merges.txt)", folder.string()));
  }
  build_from(folder / "tokenizer_config.json", [&] { set_special_ids(config, *data); });
  return Tokenizer(std::move(data));
}

Tokenizer Tokenizer::characters(std::string_view alphabet) {
  if (const auto at = invalid_utf8_at(alphabet)) throw Error(fmt::format("the alphabet is not valid UTF-8 at byte {}", *at));
  std::vector<std::string> tokens;
  std::set<std::string> seen;
  for (std::size_t i = 0; i < alphabet.size();) {
    tokens.emplace_back(alphabet.substr(i, first_code_point(alphabet.substr(i)).bytes));
    i += tokens.back().size();
    if (!seen.insert(tokens.back()).second) throw Error(fmt::format("the alphabet has {} twice", in_quotes(tokens.back())));
  }
  require(!tokens.empty(), "the alphabet is empty");
  const std::vector<std::string> special = {"<eos>", "<pad>"};
  tokens.insert(tokens.end(), special.begin(), special.end());
  const json config = {{"clean_up_tokenization_spaces", false},
                       {"eos_token", "<eos>"},
                       {"pad_token", "<pad>"},
                       {"tokenizer_class", "PreTrainedTokenizerFast"}};
  auto data = std::make_shared<TokenizerData>();
  data->files["tokenizer.json"] = describe_characters(tokens, special, "<unk>");
  data->files["tokenizer_config.json"] = config.dump(2) + "\n";
  build_tokenizer(parse_tokenizer_file(data->files["tokenizer.json"], "characters"), *data);
  set_special_ids(config, *data);
  return Tokenizer(std::move(data));
}

void Tokenizer::save(const fs::path& folder) const {
  for (const auto& [name, text] : data_->files) write_file(folder / name, text);
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  if (const auto at = invalid_utf8_at(text)) throw Error(fmt::format("text is not valid UTF-8 at byte {}", *at));
  std::vector<std::int32_t> out;
  if (add_special) out = data_->prefix;
  for (const auto& raw : data_->raw_added.split(text)) {
    if (raw.id >= 0) {
      out.push_back(raw.id);
      continue;
    }
    const std::string normalized = data_->nfc ? to_nfc(raw.text) : std::string(raw.text);
    for (const auto& segment : data_->normalized_added.split(normalized)) {
      if (segment.id >= 0) {
        out.push_back(segment.id);
      } else {
        data_->encode_words(segment.text, out);
      }
    }
  }
  if (add_special) out.insert(out.end(), data_->suffix.begin(), data_->suffix.end());
  return out;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string out;
  bool first = true;
  for (const std::int32_t id : ids) {
    if (skip_special && is_special(id)) continue;
    if (!first) out += data_->separator;
    out += token_bytes(id);
    first = false;
  }
  return out;
}

int Tokenizer::vocab_size() const { return int(data_->tokens.size()); }

std::optional<std::int32_t> Tokenizer::id_of(std::string_view bytes) const {
  if (const auto it = data_->added_ids.find(bytes); it != data_->added_ids.end()) return it->second;
  if (const auto it = data_->ids.find(bytes); it != data_->ids.end()) return it->second;
  return std::nullopt;
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const {
  return id >= 0 && id < vocab_size() ? std::string_view(data_->tokens[std::size_t(id)].bytes) : std::string_view();
}

bool Tokenizer::is_special(std::int32_t id) const { return id >= 0 && id < vocab_size() && data_->tokens[std::size_t(id)].special; }
std::string_view Tokenizer::separator() const { return data_->separator; }
std::optional<std::int32_t> Tokenizer::bos_id() const { return data_->special.bos; }
std::optional<std::int32_t> Tokenizer::eos_id() const { return data_->special.eos; }
std::optional<std::int32_t> Tokenizer::pad_id() const { return data_->special.pad; }

}  // namespace plumb
