// The safetensors format: 8 bytes of header length (little endian), a JSON object, then the tensors' bytes without a gap.
// A file is checked as a whole when it is opened; what a SafetensorsFile hands out needs no more checks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/files/files.h"

namespace plumb {

/// Element types of the format that have a whole number of bytes.
enum class StoredType : std::uint8_t { boolean, u8, i8, f8_e4m3, f8_e5m2, i16, u16, f16, bf16, i32, u32, f32, i64, u64, f64 };

std::size_t bytes_of(StoredType type);
/// The format's name, such as "BF16".
const char* name_of(StoredType type);

/// A view of one tensor of an open file. `data` is row-major, little endian and may be unaligned: copy, do not cast.
struct StoredTensor {
  std::string name;
  StoredType dtype = StoredType::f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;

  std::int64_t elements() const { return std::int64_t(data.size() / bytes_of(dtype)); }
};

/// "F32 [2, 3]", for messages.
std::string describe(const StoredTensor& tensor);

/// Exact conversion to FP32 of an F32, BF16 or F16 tensor; `out` has elements() places. Throws Error for other types.
void read_f32(const StoredTensor& tensor, std::span<float> out);
std::vector<float> read_f32(const StoredTensor& tensor);
/// The integers of an I64 or I32 tensor. Throws Error for other types.
std::vector<std::int64_t> read_i64(const StoredTensor& tensor);

class SafetensorsFile {
 public:
  /// Maps and checks the file. Throws Error with one line that names the file, and the tensor where it is about one.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  /// In the order of their names.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  std::vector<std::string> names() const;
  /// nullptr when there is none of that name.
  const StoredTensor* find(std::string_view name) const;
  /// Throws Error that names file and tensor.
  const StoredTensor& get(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// Writes a file that is a function of its arguments byte for byte: largest element type first and then by name (so that
/// every tensor is aligned), the header padded with spaces to a multiple of 8. Written beside, synced and renamed:
/// on Error (duplicate name, size that does not fit the shape, full disk) the old file, if any, is untouched.
void write_safetensors(const std::filesystem::path& path, std::vector<StoredTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// The weights of a Hugging Face folder: `model.safetensors`, or the shards that `model.safetensors.index.json` names.
class ShardedSafetensors {
 public:
  /// Opens and checks everything. Throws Error naming what is missing: the folder's files, a shard, a tensor of the index
  /// that its shard lacks, a tensor of a shard that the index lacks.
  explicit ShardedSafetensors(const std::filesystem::path& folder);

  std::vector<std::string> names() const;
  const StoredTensor* find(std::string_view name) const;
  const StoredTensor& get(std::string_view name) const;
  const std::vector<SafetensorsFile>& files() const { return files_; }

 private:
  void open_index(const std::filesystem::path& index_path);

  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, const StoredTensor*, std::less<>> tensors_;  // views into files_
};

}  // namespace plumb
