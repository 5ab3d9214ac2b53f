#include "model/kv_cache.h"

#include <algorithm>

#include "kernels/core/error.h"

namespace plumb {

KvCache::KvCache(const ModelConfig& config, DType dtype, std::int64_t positions)
    : dtype_(dtype),
      positions_(positions),
      layers_(config.layers),
      cols_(config.kv_cols()),
      data_(std::size_t(positions) * bytes_per_position(config, dtype)),
      free_{{0, positions}} {
  require(positions >= 1, "KV cache: it must hold at least one position");
  free_.reserve(std::size_t(std::min<std::int64_t>(positions, 65536)));
}

std::size_t KvCache::bytes_per_position(const ModelConfig& config, DType dtype) {
  return 2 * std::size_t(config.layers) * std::size_t(config.kv_cols()) * bytes_of(dtype);
}

std::int64_t KvCache::allocate(std::int64_t length) {
  require(length >= 1, "internal: an empty KV segment");
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->length < length) continue;
    const std::int64_t first = it->first;
    it->first += length;
    it->length -= length;
    if (it->length == 0) free_.erase(it);
    return first;
  }
  return -1;
}

void KvCache::release(std::int64_t first_row, std::int64_t length) {
  const auto after = std::find_if(free_.begin(), free_.end(), [&](const Free& f) { return f.first >= first_row; });
  const bool inside = first_row >= 0 && length >= 1 && first_row + length <= positions_;
  const bool clear_after = after == free_.end() || first_row + length <= after->first;
  const bool clear_before = after == free_.begin() || std::prev(after)->first + std::prev(after)->length <= first_row;
  require(inside && clear_after && clear_before, "internal: a KV segment is released that was not allocated");
  auto it = free_.insert(after, {first_row, length});
  if (const auto next = std::next(it); next != free_.end() && it->first + it->length == next->first) {
    it->length += next->length;
    free_.erase(next);
  }
  if (it == free_.begin()) return;
  const auto before = std::prev(it);
  if (before->first + before->length != it->first) return;
  before->length += it->length;
  free_.erase(it);
}

Mat KvCache::k(int layer) const {
  char* data = static_cast<char*>(data_.data()) + std::size_t(layer) * std::size_t(positions_) * std::size_t(cols_) * bytes_of(dtype_);
  return make_mat(data, positions_, cols_, dtype_);
}

Mat KvCache::v(int layer) const {
  const Mat keys = k(layer);
  char* data = static_cast<char*>(keys.data) + std::size_t(layers_) * std::size_t(positions_) * std::size_t(cols_) * bytes_of(dtype_);
  return make_mat(data, positions_, cols_, dtype_);
}

}  // namespace plumb
