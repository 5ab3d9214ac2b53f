#include "model/tokenizer/bpe.h"

#include <fmt/format.h>

#include <bit>
#include <limits>
#include <queue>

#include "kernels/core/error.h"

namespace plumb {
namespace {

constexpr std::int32_t kNoRank = std::numeric_limits<std::int32_t>::max();

std::uint64_t pair_of(std::int32_t left, std::int32_t right) { return (std::uint64_t(std::uint32_t(left)) << 32) | std::uint32_t(right); }

}  // namespace

const std::array<std::int32_t, 256>& byte_level_characters() {
  static const auto characters = [] {
    std::array<std::int32_t, 256> out{};
    int next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
      out[std::size_t(b)] = printable ? b : next++;
    }
    return out;
  }();
  return characters;
}

int byte_of_character(std::int32_t code) {
  static const auto bytes = [] {
    std::array<int, 512> out{};
    out.fill(-1);
    for (int b = 0; b < 256; ++b) out[std::size_t(byte_level_characters()[std::size_t(b)])] = b;
    return out;
  }();
  return code >= 0 && code < int(bytes.size()) ? bytes[std::size_t(code)] : -1;
}

Bpe::Bpe(const std::unordered_map<std::string_view, std::int32_t>& token_ids, const std::vector<Merge>& merges, bool ignore_merges)
    : whole_words_(ignore_merges ? &token_ids : nullptr) {
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    const auto it = token_ids.find(std::string_view(&byte, 1));
    byte_ids_[std::size_t(b)] = it == token_ids.end() ? -1 : it->second;
  }
  const std::size_t size = std::bit_ceil(2 * merges.size() + 2);
  shift_ = 64 - std::countr_zero(size);
  table_.resize(size);
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::uint64_t pair = pair_of(merges[rank].left, merges[rank].right);
    std::size_t i = slot(pair);
    while (table_[i].pair != kNoPair && table_[i].pair != pair) i = (i + 1) & (size - 1);
    table_[i] = {pair, std::int32_t(rank), merges[rank].result};
  }
}

const Bpe::Entry* Bpe::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  for (std::size_t i = slot(pair); table_[i].pair != kNoPair; i = (i + 1) & (table_.size() - 1)) {
    if (table_[i].pair == pair) return &table_[i];
  }
  return nullptr;
}

std::int32_t Bpe::byte_id(char byte) const {
  const std::int32_t id = byte_ids_[static_cast<unsigned char>(byte)];
  if (id < 0) throw Error(fmt::format("the vocabulary has no token for byte 0x{:02X}", static_cast<unsigned char>(byte)));
  return id;
}

void Bpe::encode(std::string_view word, std::vector<std::int32_t>& out) const {
  if (whole_words_ != nullptr) {
    if (const auto it = whole_words_->find(word); it != whole_words_->end()) {
      out.push_back(it->second);
      return;
    }
  }
  word.size() <= kShort ? merge_short(word, out) : merge_long(word, out);
}

void Bpe::merge_short(std::string_view word, std::vector<std::int32_t>& out) const {
  std::array<std::int32_t, kShort> ids;
  std::array<std::int32_t, kShort> ranks;  // of the pair (i, i + 1)
  std::size_t n = word.size();
  const auto rank_at = [&](std::size_t i) {
    const Entry* entry = i + 1 < n ? find(ids[i], ids[i + 1]) : nullptr;
    return entry == nullptr ? kNoRank : entry->rank;
  };
  for (std::size_t i = 0; i < n; ++i) ids[i] = byte_id(word[i]);
  for (std::size_t i = 0; i < n; ++i) ranks[i] = rank_at(i);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < n; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoRank) break;
    ids[best] = find(ids[best], ids[best + 1])->result;
    for (std::size_t i = best + 1; i + 1 < n; ++i) {
      ids[i] = ids[i + 1];
      ranks[i] = ranks[i + 1];
    }
    --n;
    ranks[best] = rank_at(best);
    if (best > 0) ranks[best - 1] = rank_at(best - 1);
  }
  out.insert(out.end(), ids.begin(), ids.begin() + std::ptrdiff_t(n));
}

void Bpe::merge_long(std::string_view word, std::vector<std::int32_t>& out) const {
  struct Symbol {
    std::int32_t id;
    std::ptrdiff_t previous;
    std::ptrdiff_t next;  // -1: the last
  };
  struct Candidate {
    std::int32_t rank;
    std::ptrdiff_t at;
    std::int32_t left;
    std::int32_t right;
    std::int32_t result;
    bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };
  const auto n = std::ptrdiff_t(word.size());
  std::vector<Symbol> symbols(word.size());
  for (std::ptrdiff_t i = 0; i < n; ++i) symbols[std::size_t(i)] = {byte_id(word[std::size_t(i)]), i - 1, i + 1 < n ? i + 1 : -1};
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](std::ptrdiff_t at) {
    if (at < 0 || symbols[std::size_t(at)].next < 0) return;
    const std::int32_t left = symbols[std::size_t(at)].id;
    const std::int32_t right = symbols[std::size_t(symbols[std::size_t(at)].next)].id;
    if (const Entry* entry = find(left, right)) queue.push({entry->rank, at, left, right, entry->result});
  };
  for (std::ptrdiff_t i = 0; i < n; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[std::size_t(best.at)];
    // Merged away (-1) or with another neighbour by now: a newer candidate stands for it.
    if (left.id != best.left || left.next < 0 || symbols[std::size_t(left.next)].id != best.right) continue;
    Symbol& right = symbols[std::size_t(left.next)];
    left.id = best.result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[std::size_t(left.next)].previous = best.at;
    offer(left.previous);
    offer(best.at);
  }
  for (std::ptrdiff_t i = 0; i >= 0; i = symbols[std::size_t(i)].next) out.push_back(symbols[std::size_t(i)].id);
}

}  // namespace plumb
