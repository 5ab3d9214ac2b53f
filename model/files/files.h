// Whole files: read, map read-only, write so that a reader sees the old file or the new one and nothing between.
#pragma once
#include <cstddef>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

namespace plumb {

/// `text` between single quotes on one line: control characters and invalid UTF-8 as \xNN, long text cut. For messages.
std::string in_quotes(std::string_view text);

/// The file's bytes. Throws Error naming the file.
std::string read_file(const std::filesystem::path& path);

/// Parses strict JSON (UTF-8, no comments, no duplicate keys at any depth). `where` names the text in the Error thrown.
nlohmann::json parse_json(std::string_view text, const std::string& where);
nlohmann::json read_json(const std::filesystem::path& path);

/// A file mapped read-only for the life of the object.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);  // throws Error: missing, not a regular file, unreadable
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Bytes of a mapped file that are not needed soon: the system may drop them from memory (reading them again reads the file).
void release_pages(std::span<const std::byte> mapped);

/// Calls f(bytes) for the file's consecutive pieces, without keeping the whole in memory. Throws Error naming the file.
void for_each_chunk(const std::filesystem::path& path, const std::function<void(std::span<const std::byte>)>& f);

/// Writes `path` under a temporary name beside it; commit() syncs and renames. Without commit, as after an exception,
/// nothing is left. Every failure (full disk, missing folder, ...) throws Error naming the file and the reason.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();

 private:
  [[noreturn]] void fail(const char* doing) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int fd_ = -1;
};

/// AtomicFile in one call.
void write_file(const std::filesystem::path& path, std::string_view text);

}  // namespace plumb
