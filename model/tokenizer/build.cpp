// From tokenizer.json's object to the parts of a tokenizer.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/core/error.h"
#include "model/files/files.h"
#include "model/tokenizer/tokenizer_data.h"
#include "model/tokenizer/unicode.h"

namespace plumb {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(std::string_view part, std::string_view what) {
  throw Error(fmt::format("{} {} is not supported", part, in_quotes(what)));
}

/// Null and an absent key are the same.
const json& at_or_null(const json& object, const char* key) {
  static const json null;
  const auto it = object.find(key);
  return it == object.end() ? null : *it;
}

std::int32_t checked_id(const json& value, std::string_view token) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= kMostTokenIds) {
    throw Error(fmt::format("token {}: its id is not a whole number below {}", in_quotes(token), kMostTokenIds));
  }
  return value.get<std::int32_t>();
}

TokenizerData::Token& token_at(TokenizerData& data, std::int32_t id) {
  if (std::size_t(id) >= data.tokens.size()) data.tokens.resize(std::size_t(id) + 1);
  return data.tokens[std::size_t(id)];
}

/// The bytes that a token of a byte-level vocabulary stands for; nothing when it has other characters.
std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string out;
  for (std::size_t i = 0; i < token.size();) {
    const CodePoint c = first_code_point(token.substr(i));
    const int byte = byte_of_character(c.code);
    if (byte < 0) return std::nullopt;
    out += static_cast<char>(byte);
    i += c.bytes;
  }
  return out;
}

/// Fills tokens and ids. Tokens with characters that no byte has stay as they are and no text leads to them.
void read_vocab(const TokenizerFile& file, bool byte_level, TokenizerData& data) {
  if (file.vocab.empty()) throw Error("the model's vocab is empty or not an object");
  std::int32_t last = 0;
  for (const auto& [token, id] : file.vocab) last = std::max(last, id);
  data.tokens.resize(std::size_t(last) + 1);
  data.ids.reserve(file.vocab.size());
  std::vector<char> taken(data.tokens.size(), 0);
  for (const auto& [token, id] : file.vocab) {
    if (taken[std::size_t(id)] != 0) throw Error(fmt::format("token {}: id {} is taken", in_quotes(token), id));
    taken[std::size_t(id)] = 1;
    auto bytes = byte_level ? bytes_of_token(token) : std::optional(token);
    std::string& place = data.tokens[std::size_t(id)].bytes;
    place = bytes ? std::move(*bytes) : token;
    if (bytes && !data.ids.emplace(place, id).second) throw Error(fmt::format("token {} comes twice", in_quotes(token)));
  }
}

std::vector<Bpe::Merge> read_merges(const TokenizerFile& file, const TokenizerData& data) {
  const auto id_of = [&](const std::optional<std::string>& bytes, const auto& merge) {
    const auto it = bytes ? data.ids.find(*bytes) : data.ids.end();
    if (it == data.ids.end()) {
      throw Error(fmt::format("merge {} {}: needs tokens that the vocabulary lacks", in_quotes(merge.first), in_quotes(merge.second)));
    }
    return it->second;
  };
  std::vector<Bpe::Merge> out;
  out.reserve(file.merges.size());
  for (const auto& merge : file.merges) {
    auto left = bytes_of_token(merge.first);
    const auto right = bytes_of_token(merge.second);
    const std::int32_t left_id = id_of(left, merge);
    const std::int32_t right_id = id_of(right, merge);
    left->append(*right);
    out.push_back({left_id, right_id, id_of(left, merge)});
  }
  return out;
}

void read_bpe(const TokenizerFile& file, TokenizerData& data) {
  const json& model = file.rest.at("model");
  if (!data.pre_tokenizer->byte_level()) refuse("model", "BPE without a ByteLevel pre_tokenizer");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json& value = at_or_null(model, key);
    if (!value.is_null() && value != "") refuse("BPE with", key);
  }
  const json& dropout = at_or_null(model, "dropout");
  if (!dropout.is_null() && dropout != 0) refuse("BPE with", "dropout");
  if (model.value("byte_fallback", false)) refuse("BPE with", "byte_fallback");
  if (!at_or_null(model, "merges").is_null()) throw Error("the model's merges is not a list");
  read_vocab(file, true, data);
  for (int b = 0; b < 256 && !at_or_null(model, "unk_token").is_null(); ++b) {
    const char byte = static_cast<char>(b);
    if (!data.ids.contains(std::string_view(&byte, 1))) refuse("BPE with", "unk_token and a vocabulary that lacks bytes");
  }
  data.bpe.emplace(data.ids, read_merges(file, data), model.value("ignore_merges", false));
}

void read_word_level(const TokenizerFile& file, TokenizerData& data) {
  if (data.pre_tokenizer->byte_level()) refuse("model", "WordLevel with a ByteLevel pre_tokenizer");
  read_vocab(file, false, data);
  const json& unknown = at_or_null(file.rest.at("model"), "unk_token");
  if (!unknown.is_string()) return;
  if (const auto it = data.ids.find(unknown.get_ref<const std::string&>()); it != data.ids.end()) data.unknown_id = it->second;
}

void read_normalizer(const json& normalizer, TokenizerData& data) {
  if (normalizer.is_null()) return;
  const std::string type = normalizer.at("type");
  if (type == "NFC") {
    data.nfc = true;
  } else if (type == "Sequence") {
    for (const json& part : normalizer.at("normalizers")) read_normalizer(part, data);
  } else {
    refuse("normalizer", type);
  }
}

void read_post_processor(const json& processor, TokenizerData& data) {
  if (processor.is_null()) return;
  const std::string type = processor.at("type");
  if (type == "ByteLevel") return;  // moves offsets, not ids
  if (type == "Sequence") {
    for (const json& part : processor.at("processors")) read_post_processor(part, data);
    return;
  }
  if (type != "TemplateProcessing") refuse("post_processor", type);
  bool before = true;
  for (const json& piece : processor.at("single")) {
    if (piece.contains("Sequence")) {
      before = false;
      continue;
    }
    const std::string name = piece.at("SpecialToken").at("id");
    for (const json& id : processor.at("special_tokens").at(name).at("ids")) {
      (before ? data.prefix : data.suffix).push_back(checked_id(id, name));
    }
  }
}

/// Sets whether tokens are decoded with spaces between them, as tokenizers do that have no decoder.
void read_decoder(const json& decoder, TokenizerData& data) {
  if (decoder.is_null()) {
    if (data.bpe) refuse("decoder", "none");
    data.separator = " ";
    return;
  }
  const std::string type = decoder.at("type");
  if (type == "Sequence") {
    for (const json& part : decoder.at("decoders")) read_decoder(part, data);
  } else if (type != (data.bpe ? "ByteLevel" : "Fuse")) {
    refuse("decoder", type);
  }
}

void read_added_tokens(const json& list, TokenizerData& data) {
  if (list.is_null()) return;
  for (const json& entry : list) {
    AddedToken token{.content = entry.at("content").get<std::string>(),
                     .special = entry.value("special", false),
                     .normalized = entry.value("normalized", true),
                     .single_word = entry.value("single_word", false),
                     .lstrip = entry.value("lstrip", false),
                     .rstrip = entry.value("rstrip", false)};
    token.id = checked_id(entry.at("id"), token.content);
    TokenizerData::Token& place = token_at(data, token.id);
    if (place.bytes.empty()) place.bytes = token.content;
    if (place.bytes != token.content) {
      throw Error(fmt::format("added token {}: its id {} is that of {}", in_quotes(token.content), token.id, in_quotes(place.bytes)));
    }
    place.special = token.special;
    data.added_ids.emplace(token.content, token.id);
    if (token.normalized && data.nfc) token.content = to_nfc(token.content);
    (token.normalized ? data.normalized_added : data.raw_added).add(std::move(token));
  }
}

}  // namespace

void build_tokenizer(const TokenizerFile& file, TokenizerData& data) {
  const json& description = file.rest;
  if (!description.is_object()) throw Error("not a JSON object");
  // `truncation` and `padding` belong to whoever batches texts; libraries set them per call.
  read_normalizer(at_or_null(description, "normalizer"), data);
  data.pre_tokenizer.emplace(at_or_null(description, "pre_tokenizer"));
  const json& model = description.at("model");
  const json& type = at_or_null(model, "type");
  if (type == "BPE" || (type.is_null() && model.contains("merges"))) {
    read_bpe(file, data);
  } else if (type == "WordLevel") {
    read_word_level(file, data);
  } else {
    refuse("model", type.is_string() ? type.get<std::string>() : "of no type");
  }
  read_added_tokens(at_or_null(description, "added_tokens"), data);
  read_post_processor(at_or_null(description, "post_processor"), data);
  read_decoder(at_or_null(description, "decoder"), data);
}

void set_special_ids(const json& config, TokenizerData& data) {
  const auto id_of = [&](const char* key) -> std::optional<std::int32_t> {
    const json& value = at_or_null(config, key);
    const json& content = value.is_object() ? at_or_null(value, "content") : value;
    if (!content.is_string()) return std::nullopt;
    const auto& name = content.get_ref<const std::string&>();
    if (const auto it = data.added_ids.find(name); it != data.added_ids.end()) return it->second;
    if (const auto it = data.ids.find(name); it != data.ids.end()) return it->second;
    return std::nullopt;
  };
  data.special.bos = id_of("bos_token");
  data.special.eos = id_of("eos_token");
  data.special.pad = id_of("pad_token");
}

}  // namespace plumb
