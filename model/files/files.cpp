#include "model/files/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utf8proc.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "kernels/core/error.h"
#include "model/files/replaceable.h"
#include "model/files/strict_json.h"

namespace plumb {
namespace {

/// strerror is not thread-safe; this is.
std::string reason(int error) { return std::generic_category().message(error); }

/// Closes a descriptor that is only needed for a while.
struct Descriptor {
  int fd;
  explicit Descriptor(int opened) : fd(opened) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

Descriptor open_regular(const std::filesystem::path& path, std::size_t& size) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd < 0) throw Error(fmt::format("{}: cannot open: {}", path.string(), reason(errno)));
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) throw Error(fmt::format("{}: cannot stat: {}", path.string(), reason(errno)));
  if (!S_ISREG(info.st_mode)) throw Error(fmt::format("{}: not a regular file", path.string()));
  size = std::size_t(info.st_size);
  return Descriptor(std::exchange(file.fd, -1));
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kMost = 200;
  std::string out = "'";
  std::size_t i = 0;
  while (i < text.size() && out.size() < kMost) {
    utf8proc_int32_t code = 0;
    const auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + i, utf8proc_ssize_t(text.size() - i), &code);
    if (n <= 0 || code < 0x20 || code == 0x7F) {
      out += fmt::format("\\x{:02X}", static_cast<unsigned char>(text[i]));
      ++i;
      continue;
    }
    out.append(text, i, std::size_t(n));
    i += std::size_t(n);
  }
  return out + (i < text.size() ? "...'" : "'");
}

std::string read_file(const std::filesystem::path& path) {
  std::size_t size = 0;
  const Descriptor file = open_regular(path, size);
  std::string text(size, '\0');
  std::size_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(file.fd, text.data() + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(fmt::format("{}: cannot read: {}", path.string(), reason(errno)));
    if (n == 0) break;
    done += std::size_t(n);
  }
  text.resize(done);
  return text;
}

nlohmann::json parse_json(std::string_view text, const std::string& where) {
  StrictJsonBuilder builder(where);
  parse_strict(text, where, builder);
  return std::move(builder.result());
}

nlohmann::json read_json(const std::filesystem::path& path) { return parse_json(read_file(path), path.string()); }

void release_pages(std::span<const std::byte> mapped) {
  constexpr std::uintptr_t kPage = 4096;
  const auto begin = (reinterpret_cast<std::uintptr_t>(mapped.data()) + kPage - 1) / kPage * kPage;
  const auto end = reinterpret_cast<std::uintptr_t>(mapped.data() + mapped.size()) / kPage * kPage;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);  // a wish: failure costs memory only
}

void for_each_chunk(const std::filesystem::path& path, const std::function<void(std::span<const std::byte>)>& f) {
  std::size_t size = 0;
  const Descriptor file = open_regular(path, size);
  std::vector<std::byte> chunk(std::size_t(1) << 20);
  for (;;) {
    const ssize_t n = ::read(file.fd, chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(fmt::format("{}: cannot read: {}", path.string(), reason(errno)));
    if (n == 0) return;
    f(std::span(chunk).first(std::size_t(n)));
  }
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  std::size_t size = 0;
  const Descriptor file = open_regular(path, size);
  if (size == 0) return;  // an empty mapping is not allowed; no bytes are
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) throw Error(fmt::format("{}: cannot map: {}", path.string(), reason(errno)));
  data_ = static_cast<const std::byte*>(data);
  size_ = size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

std::filesystem::path replaceable(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  const auto refuse = [&](const char* what) {
    throw Error(fmt::format("{}: {}; the name of a file to write is right", path.string(), what));
  };
  std::error_code error;
  const auto itself = fs::symlink_status(path, error);
  if (!fs::exists(itself)) return path;  // what is wrong with the folder, if anything, shows when the file is created
  const auto target = fs::status(path, error);
  if (fs::is_directory(target)) refuse("is a folder");
  if (!fs::exists(target)) refuse("is a symbolic link that leads to nothing");
  if (!fs::is_regular_file(target)) refuse("is not a regular file, and is left alone");
  if (!fs::is_symlink(itself)) return path;
  fs::path real = fs::canonical(path, error);
  if (error) refuse("is a symbolic link that cannot be followed");
  return real;
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(replaceable(path)) {
  temporary_ = path_;
  temporary_ += fmt::format(".{}.tmp", ::getpid());
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("create");
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* doing) const { throw Error(fmt::format("{}: cannot {}: {}", path_.string(), doing, reason(errno))); }

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write");
    bytes = bytes.subspan(std::size_t(n));
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) fail("write");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename into place");
  ::close(std::exchange(fd_, -1));
  const auto folder = path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
  const Descriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // The file is in place; some file systems cannot sync a folder, which only matters at a power cut.
  if (directory.fd >= 0) (void)::fsync(directory.fd);
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace plumb
