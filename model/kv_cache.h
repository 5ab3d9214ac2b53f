// Keys and values of sequences being generated: rows of one matrix per layer, handed out in contiguous segments.
// A group of samples shares the segment of its prompt.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/core/buffer.h"
#include "model/config.h"

namespace plumb {

class KvCache {
 public:
  /// positions: total rows of all segments together.
  KvCache(const ModelConfig&, DType, std::int64_t positions);
  DType dtype() const { return dtype_; }
  std::int64_t positions() const { return positions_; }
  /// First row of a free segment of `length` rows, or -1 when there is none (first fit; segments are freed in any order).
  std::int64_t allocate(std::int64_t length);
  void release(std::int64_t first_row, std::int64_t length);
  Mat k(int layer) const;  // (positions, KV*head_dim)
  Mat v(int layer) const;  // (positions, KV*head_dim)
  std::size_t memory_bytes() const { return data_.size(); }
  static std::size_t bytes_per_position(const ModelConfig&, DType);

 private:
  struct Free {
    std::int64_t first;
    std::int64_t length;
  };
  DType dtype_;
  std::int64_t positions_;
  int layers_;
  int cols_;
  Buffer data_;             // (2, L, positions, KV*head_dim)
  std::vector<Free> free_;  // sorted by first row, neighbours merged
};

}  // namespace plumb
