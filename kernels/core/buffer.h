// Owning memory for tensors, and a bump allocator over it. Everything above kernels/ gets tensor memory here and touches
// the contents of what it does not own as host memory only through read() and write().
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "kernels/core/error.h"
#include "kernels/core/tensor.h"

namespace plumb {

/// Zero-initialised, 4096-byte aligned memory (huge pages are asked for from 4 MiB on).
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes);
  void* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  explicit operator bool() const { return data_ != nullptr; }
  /// Copies between tensor memory and host memory; throws Error when out of range.
  void read(void* host, std::size_t offset, std::size_t bytes) const;
  void write(const void* host, std::size_t offset, std::size_t bytes);
  void zero();

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> data_;
  std::size_t size_ = 0;
};

/// Hands out 64-byte aligned pieces of one buffer until reset. With no buffer it only measures: run the same
/// allocations twice, first to learn the size. Throws Error when the buffer is exhausted.
class Arena {
 public:
  Arena() = default;  // measuring
  explicit Arena(Buffer& buffer) : base_(static_cast<char*>(buffer.data())), capacity_(buffer.size()), measuring_(false) {}
  void* bytes(std::size_t n) {
    const std::size_t at = used_;
    used_ += (n + 63) / 64 * 64;
    if (used_ > peak_) peak_ = used_;
    if (measuring_) return nullptr;
    require(used_ <= capacity_, "internal: an activation arena is too small");
    return base_ + at;
  }
  template <class T>
  T* array(std::int64_t count) {
    return static_cast<T*>(bytes(std::size_t(count) * sizeof(T)));
  }
  Mat mat(std::int64_t rows, std::int64_t cols, DType dtype) {
    return make_mat(bytes(std::size_t(rows * cols) * bytes_of(dtype)), rows, cols, dtype);
  }
  std::size_t used() const { return used_; }
  std::size_t peak() const { return peak_; }
  /// Back to an earlier used(): what was handed out since is free again.
  void rewind(std::size_t used) { used_ = used; }

 private:
  char* base_ = nullptr;
  std::size_t capacity_ = 0;
  std::size_t used_ = 0;
  std::size_t peak_ = 0;
  bool measuring_ = true;
};

}  // namespace plumb
