#include "model/tokenizer/added_tokens.h"

#include <algorithm>

#include "kernels/core/error.h"
#include "model/tokenizer/unicode.h"

namespace plumb {

void AddedTokenFinder::add(AddedToken token) {
  require(!token.content.empty(), "an added token is empty");
  auto& list = by_first_byte_[static_cast<unsigned char>(token.content[0])];
  const auto place =
      std::find_if(list.begin(), list.end(), [&](const AddedToken& other) { return other.content.size() < token.content.size(); });
  list.insert(place, std::move(token));
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text) const {
  for (const AddedToken& token : by_first_byte_[static_cast<unsigned char>(text[0])]) {
    if (text.starts_with(token.content)) return &token;
  }
  return nullptr;
}

std::vector<AddedTokenFinder::Segment> AddedTokenFinder::split(std::string_view text) const {
  std::vector<Segment> out;
  std::size_t done = 0;  // everything before is in `out`
  std::size_t i = 0;
  while (i < text.size()) {
    const AddedToken* token = longest_at(text.substr(i));
    if (token == nullptr) {
      ++i;
      continue;
    }
    std::size_t begin = i;
    std::size_t end = i + token->content.size();
    i = end;
    if (token->single_word) {
      const bool word_before = begin > 0 && is_word(last_code_point(text.substr(0, begin)).code);
      const bool word_after = end < text.size() && is_word(first_code_point(text.substr(end)).code);
      if (word_before || word_after) continue;
    }
    while (token->lstrip && begin > done) {
      const CodePoint before = last_code_point(text.substr(done, begin - done));
      if (!is_white_space(before.code)) break;
      begin -= before.bytes;
    }
    while (token->rstrip && end < text.size()) {
      const CodePoint after = first_code_point(text.substr(end));
      if (!is_white_space(after.code)) break;
      end += after.bytes;
    }
    if (begin > done) out.push_back({text.substr(done, begin - done), -1});
    out.push_back({text.substr(begin, end - begin), token->id});
    done = end;
    i = end;
  }
  if (done < text.size()) out.push_back({text.substr(done), -1});
  return out;
}

}  // namespace plumb
