// Micro-batches: consecutive sequences packed into one forward, and which of its rows the LM head sees.
//
// The head sees, of each sequence, the rows that predict response tokens, widened to an even first row and an even end: a
// row keeps the parity that it has in its sequence, so that the weight gradient's chain over pairs of rows is the one over
// all rows (rows without a target add exact zeros to it), wherever the sequence stands and however the step is split.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "model/qwen.h"

namespace plumb {

/// One sequence to learn from or to score. The trained positions are tokens[prompt_len..]; each is predicted by its predecessor.
struct TrainSequence {
  std::span<const std::int32_t> tokens;  // (T)
  std::int64_t prompt_len = 1;           // >= 1
  std::int64_t response_len() const { return std::int64_t(tokens.size()) - prompt_len; }
};

/// Rows that a sequence takes in a batch: its length, made even.
inline std::int64_t packed_rows(std::int64_t length) { return length + (length & 1); }

/// Throws Error naming the sequence for an impossible one (empty, too long, prompt_len or token out of range).
void check_sequences(std::span<const TrainSequence>, std::int64_t max_sequence, std::int64_t vocab_size);

class MicroBatch {
 public:
  /// max_rows: even; the token budget. Allocates everything here.
  explicit MicroBatch(std::int64_t max_rows);
  /// Packs sequences from `first` on while they fit, at least one; returns how many.
  std::size_t pack(std::span<const TrainSequence>, std::size_t first);

  Batch batch() const;
  std::int64_t rows() const { return std::int64_t(tokens_.size()); }            // N
  std::int64_t head_rows() const { return std::int64_t(row_of_head_.size()); }  // M <= N
  std::int64_t responses() const { return std::int64_t(head_of_response_.size()); }
  const std::int32_t* row_of_head() const { return row_of_head_.data(); }            // (M)
  const std::int32_t* head_of_row() const { return head_of_row_.data(); }            // (N); -1: the head does not see the row
  const std::int32_t* targets() const { return targets_.data(); }                    // (M); -1: none
  const std::int32_t* head_of_response() const { return head_of_response_.data(); }  // head row of each response token in order
  std::size_t memory_bytes() const { return memory_bytes(max_rows_); }
  static std::size_t memory_bytes(std::int64_t max_rows);

 private:
  void add(const TrainSequence&);

  std::int64_t max_rows_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> positions_;
  std::vector<SequenceRows> sequences_;
  std::vector<std::int32_t> row_of_head_;
  std::vector<std::int32_t> head_of_row_;
  std::vector<std::int32_t> targets_;
  std::vector<std::int32_t> head_of_response_;
};

}  // namespace plumb
