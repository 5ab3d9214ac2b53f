#include "model/tokenizer/tokenizer_file.h"

#include <fmt/format.h>

#include "kernels/core/error.h"
#include "model/files/files.h"
#include "model/files/strict_json.h"

namespace plumb {
namespace {

/// Passes all events on to a builder but those inside model.vocab and model.merges.
class TokenizerFileReader {
 public:
  using json = nlohmann::json;

  TokenizerFileReader(std::string where, TokenizerFile& file) : where_(std::move(where)), builder_(where_), file_(file) {}

  json& rest() { return builder_.result(); }

  bool null() { return in_list() ? fail() : builder_.null(); }
  bool boolean(bool value) { return in_list() ? fail() : builder_.boolean(value); }
  bool number_integer(json::number_integer_t value) { return in_list() ? fail() : builder_.number_integer(value); }
  bool number_float(json::number_float_t value, const std::string& text) { return in_list() ? fail() : builder_.number_float(value, text); }
  bool binary(json::binary_t&) { return false; }
  bool number_unsigned(json::number_unsigned_t value) {
    if (!in_list()) return builder_.number_unsigned(value);
    if (list_ != List::vocab || value >= kMostTokenIds) return fail();
    file_.vocab.emplace_back(std::move(token_), std::int32_t(value));
    return true;
  }
  bool string(std::string& value) {
    if (!in_list()) return builder_.string(value);
    if (list_ != List::merges) return fail();
    if (!in_pair_) {
      file_.merges.push_back(split_merge(value));
    } else if (++halves_ == 1) {
      file_.merges.emplace_back(std::move(value), std::string());
    } else if (halves_ == 2) {
      file_.merges.back().second = std::move(value);
    }
    return true;
  }
  bool start_object(std::size_t n) {
    if (in_list()) return fail();
    if (begins("vocab")) return enter(List::vocab);
    return builder_.start_object(n);
  }
  bool end_object() {
    if (list_ == List::vocab) return leave();
    return builder_.end_object();
  }
  bool key(std::string& name) {
    if (in_list()) {
      token_ = std::move(name);
      return true;
    }
    if (builder_.depth() == 1) in_model_ = name == "model";
    last_key_ = name;
    return builder_.key(name);
  }
  bool start_array(std::size_t n) {
    if (list_ == List::vocab || in_pair_) return fail();
    if (list_ == List::merges) {
      in_pair_ = true;
      halves_ = 0;
      return true;
    }
    if (begins("merges")) return enter(List::merges);
    return builder_.start_array(n);
  }
  bool end_array() {
    if (!in_list()) return builder_.end_array();
    if (!in_pair_) return leave();
    if (halves_ != 2) return fail();
    in_pair_ = false;
    return true;
  }
  bool parse_error(std::size_t byte, const std::string& token, const nlohmann::detail::exception& error) {
    return builder_.parse_error(byte, token, error);
  }

 private:
  enum class List : std::uint8_t { none, vocab, merges };

  bool in_list() const { return list_ != List::none; }
  bool begins(std::string_view name) const { return builder_.depth() == 2 && in_model_ && last_key_ == name; }
  bool enter(List list) {
    list_ = list;
    return true;
  }
  bool leave() {
    list_ = List::none;
    return builder_.null();
  }
  [[noreturn]] bool fail() const {
    if (list_ == List::merges) throw Error(where_ + ": a merge is neither a string nor a pair of strings");
    throw Error(fmt::format("{}: token {}: its id is not a whole number below {}", where_, in_quotes(token_), kMostTokenIds));
  }

  std::string where_;
  StrictJsonBuilder builder_;
  TokenizerFile& file_;
  List list_ = List::none;
  std::string last_key_;
  bool in_model_ = false;
  std::string token_;     // the key in vocab that came last
  bool in_pair_ = false;  // inside [left, right]
  int halves_ = 0;        // of that pair, so far
};

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view text, const std::string& where) {
  TokenizerFile file;
  TokenizerFileReader reader(where, file);
  parse_strict(text, where, reader);
  file.rest = std::move(reader.rest());
  return file;
}

std::pair<std::string, std::string> split_merge(std::string_view text) {
  const auto space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
    throw Error(fmt::format("merge {} is not two tokens and one space", in_quotes(text)));
  }
  return {std::string(text.substr(0, space)), std::string(text.substr(space + 1))};
}

}  // namespace plumb
