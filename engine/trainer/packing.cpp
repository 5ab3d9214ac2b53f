#include "engine/trainer/packing.h"

#include <fmt/format.h>

#include "kernels/core/error.h"

namespace plumb {
namespace {

constexpr std::int32_t kNone = -1;

void check_sequence(const TrainSequence& s, std::size_t index, std::int64_t max_sequence, std::int64_t vocab_size) {
  const std::int64_t length = std::int64_t(s.tokens.size());
  if (length < 1) throw Error(fmt::format("sequence {} has no tokens", index));
  if (length > max_sequence) throw Error(fmt::format("sequence {} has {} tokens; at most {} fit", index, length, max_sequence));
  if (s.prompt_len < 1 || s.prompt_len > length)
    throw Error(fmt::format("sequence {} of {} tokens: prompt_len is {}; it must be 1 to {}", index, length, s.prompt_len, length));
  for (const std::int32_t token : s.tokens)
    if (token < 0 || token >= vocab_size)
      throw Error(fmt::format("sequence {}: token id {} is not in the vocabulary of {}", index, token, vocab_size));
}

}  // namespace

void check_sequences(std::span<const TrainSequence> sequences, std::int64_t max_sequence, std::int64_t vocab_size) {
  for (std::size_t i = 0; i < sequences.size(); ++i) check_sequence(sequences[i], i, max_sequence, vocab_size);
}

MicroBatch::MicroBatch(std::int64_t max_rows) : max_rows_(max_rows) {
  const auto n = std::size_t(max_rows);
  tokens_.reserve(n);
  positions_.reserve(n);
  sequences_.reserve(n / 2);
  row_of_head_.reserve(n);
  head_of_row_.reserve(n);
  targets_.reserve(n);
  head_of_response_.reserve(n);
}

std::size_t MicroBatch::memory_bytes(std::int64_t max_rows) {
  return std::size_t(max_rows) * (6 * sizeof(std::int32_t)) + std::size_t(max_rows / 2) * sizeof(SequenceRows);
}

std::size_t MicroBatch::pack(std::span<const TrainSequence> sequences, std::size_t first) {
  tokens_.clear();
  positions_.clear();
  sequences_.clear();
  row_of_head_.clear();
  head_of_row_.clear();
  targets_.clear();
  head_of_response_.clear();
  std::size_t next = first;
  while (next < sequences.size()) {
    if (rows() + packed_rows(std::int64_t(sequences[next].tokens.size())) > max_rows_) break;
    add(sequences[next++]);
  }
  require(next > first, "internal: a sequence longer than the micro-batch");
  return next - first;
}

void MicroBatch::add(const TrainSequence& s) {
  const std::int64_t first_row = rows();
  const std::int64_t length = std::int64_t(s.tokens.size());
  sequences_.push_back({.first_row = first_row, .rows = length});
  tokens_.insert(tokens_.end(), s.tokens.begin(), s.tokens.end());
  for (std::int64_t p = 0; p < length; ++p) positions_.push_back(std::int32_t(p));
  if (length & 1) {
    tokens_.push_back(kNone);
    positions_.push_back(0);
  }
  head_of_row_.resize(tokens_.size(), kNone);
  if (s.response_len() == 0) return;

  const std::int64_t first_predicting = s.prompt_len - 1;
  const std::int64_t begin = first_predicting - (first_predicting & 1);
  const std::int64_t end = packed_rows(length - 1);
  for (std::int64_t p = begin; p < end; ++p) {
    const auto head = std::int32_t(row_of_head_.size());
    const bool predicts = p >= first_predicting && p + 1 < length;
    row_of_head_.push_back(std::int32_t(first_row + p));
    head_of_row_[std::size_t(first_row + p)] = head;
    targets_.push_back(predicts ? s.tokens[std::size_t(p + 1)] : kNone);
    if (predicts) head_of_response_.push_back(head);
  }
}

Batch MicroBatch::batch() const {
  return {.rows = rows(),
          .tokens = tokens_.data(),
          .positions = positions_.data(),
          .sequences = sequences_.data(),
          .n_sequences = std::int64_t(sequences_.size())};
}

}  // namespace plumb
