#include "kernels/core/buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace plumb {

void Buffer::Free::operator()(void* p) const { std::free(p); }

Buffer::Buffer(std::size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kHugePage = std::size_t(2) << 20;
  const std::size_t align = bytes >= 2 * kHugePage ? kHugePage : kPage;
  void* p = std::aligned_alloc(align, (bytes + align - 1) / align * align);
  if (p == nullptr) throw std::bad_alloc();
  data_.reset(p);
  if (align == kHugePage) madvise(p, bytes, MADV_HUGEPAGE);  // a wish: failure costs speed only
  std::memset(p, 0, bytes);
}

void Buffer::read(void* host, std::size_t offset, std::size_t bytes) const {
  require(offset + bytes <= size_ && offset + bytes >= offset, "internal: read beyond the end of a buffer");
  std::memcpy(host, static_cast<const char*>(data_.get()) + offset, bytes);
}

void Buffer::write(const void* host, std::size_t offset, std::size_t bytes) {
  require(offset + bytes <= size_ && offset + bytes >= offset, "internal: write beyond the end of a buffer");
  std::memcpy(static_cast<char*>(data_.get()) + offset, host, bytes);
}

void Buffer::zero() {
  if (size_ != 0) std::memset(data_.get(), 0, size_);
}

}  // namespace plumb
