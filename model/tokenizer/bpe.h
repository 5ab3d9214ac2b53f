// Byte-pair encoding: start from single bytes, merge the pair of lowest rank (the leftmost of equals) until none is left.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace plumb {

class Bpe {
 public:
  struct Merge {
    std::int32_t left;
    std::int32_t right;
    std::int32_t result;
  };
  /// `token_ids`: bytes of a token to its id (the keys must outlive this). `merges` in order of rank; a pair that comes
  /// twice counts where it comes last. `ignore_merges`: a word that is a token becomes it whatever the merges say.
  Bpe(const std::unordered_map<std::string_view, std::int32_t>& token_ids, const std::vector<Merge>& merges, bool ignore_merges);

  /// Appends the ids of one word. Throws Error for a byte that is no token. O(n log n) in the word's bytes.
  void encode(std::string_view word, std::vector<std::int32_t>& out) const;

 private:
  struct Entry {
    std::uint64_t pair = kNoPair;
    std::int32_t rank = 0;
    std::int32_t result = 0;
  };
  static constexpr std::uint64_t kNoPair = ~std::uint64_t(0);
  static constexpr std::size_t kShort = 32;  // up to here a scan per merge beats a heap

  const Entry* find(std::int32_t left, std::int32_t right) const;
  std::size_t slot(std::uint64_t pair) const { return std::size_t((pair * 0x9E3779B97F4A7C15u) >> shift_); }
  void merge_short(std::string_view word, std::vector<std::int32_t>& out) const;
  void merge_long(std::string_view word, std::vector<std::int32_t>& out) const;
  std::int32_t byte_id(char byte) const;

  std::vector<Entry> table_;  // open addressing, at most half full
  int shift_ = 0;
  std::array<std::int32_t, 256> byte_ids_{};
  const std::unordered_map<std::string_view, std::int32_t>* whole_words_ = nullptr;  // with ignore_merges
};

/// The printable character that byte-level vocabularies write for each byte, and back (-1: none).
const std::array<std::int32_t, 256>& byte_level_characters();
int byte_of_character(std::int32_t code);

}  // namespace plumb
