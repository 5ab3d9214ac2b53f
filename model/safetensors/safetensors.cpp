#include "model/safetensors/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "kernels/core/dtype.h"
#include "kernels/core/error.h"

namespace plumb {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian and is read without swapping");

constexpr std::uint64_t kMostHeaderBytes = 100'000'000;

struct TypeInfo {
  const char* name;
  std::size_t bytes;
};
// In the order of StoredType.
constexpr std::array<TypeInfo, 15> kTypes = {{{"BOOL", 1},
                                              {"U8", 1},
                                              {"I8", 1},
                                              {"F8_E4M3", 1},
                                              {"F8_E5M2", 1},
                                              {"I16", 2},
                                              {"U16", 2},
                                              {"F16", 2},
                                              {"BF16", 2},
                                              {"I32", 4},
                                              {"U32", 4},
                                              {"F32", 4},
                                              {"I64", 8},
                                              {"U64", 8},
                                              {"F64", 8}}};

std::optional<StoredType> type_of(std::string_view name) {
  for (std::size_t i = 0; i < kTypes.size(); ++i) {
    if (name == kTypes[i].name) return StoredType(i);
  }
  return std::nullopt;
}

/// The bytes that a tensor of this type and shape takes; nothing when the number does not fit.
std::optional<std::uint64_t> bytes_needed(StoredType dtype, const std::vector<std::int64_t>& shape) {
  std::int64_t total = 1;
  for (const std::int64_t n : shape) {
    if (__builtin_mul_overflow(total, n, &total)) return std::nullopt;
  }
  if (__builtin_mul_overflow(total, std::int64_t(bytes_of(dtype)), &total)) return std::nullopt;
  return std::uint64_t(total);
}

/// One file's header on its way to tensors. Messages start with the file, then the tensor.
class HeaderReader {
 public:
  HeaderReader(const std::filesystem::path& path, std::span<const std::byte> file) : where_(path.string()), file_(file) {}

  void read(std::vector<StoredTensor>& tensors, std::map<std::string, std::string>& metadata) {
    const nlohmann::json header = parse();
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") {
        read_metadata(value, metadata);
        continue;
      }
      placed_.push_back(read_entry(name, value));
    }
    check_layout();
    for (auto& [tensor, begin, end] : placed_) {
      tensor.data = data_.subspan(begin, end - begin);
      tensors.push_back(std::move(tensor));
    }
  }

 private:
  struct Placed {
    StoredTensor tensor;
    std::uint64_t begin;
    std::uint64_t end;
  };

  [[noreturn]] void fail(const std::string& what) const { throw Error(fmt::format("{}: {}", where_, what)); }
  [[noreturn]] void fail(const std::string& tensor, const std::string& what) const {
    throw Error(fmt::format("{}: tensor {}: {}", where_, in_quotes(tensor), what));
  }

  nlohmann::json parse() {
    if (file_.size() < 8) fail(fmt::format("not a safetensors file: {} bytes, shorter than its 8-byte header length", file_.size()));
    std::uint64_t length = 0;
    std::memcpy(&length, file_.data(), 8);
    if (length > kMostHeaderBytes)
      fail(fmt::format("not a safetensors file: header length {} is over the limit of {} bytes", length, kMostHeaderBytes));
    if (length > file_.size() - 8) fail(fmt::format("truncated: the header should take {} bytes, {} follow", length, file_.size() - 8));
    data_ = file_.subspan(8 + length);
    const std::string_view text(reinterpret_cast<const char*>(file_.data()) + 8, length);
    nlohmann::json header = parse_json(text, where_ + ": header");
    if (!header.is_object()) fail("the header is not a JSON object");
    return header;
  }

  void read_metadata(const nlohmann::json& value, std::map<std::string, std::string>& metadata) const {
    if (!value.is_object()) fail("__metadata__ is not an object");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) fail(fmt::format("__metadata__ {} is not a string", in_quotes(key)));
      metadata[key] = text.get<std::string>();
    }
  }

  const nlohmann::json& field(const std::string& tensor, const nlohmann::json& entry, const char* key) const {
    const auto it = entry.find(key);
    if (it == entry.end()) fail(tensor, fmt::format("no {} in the header", key));
    return *it;
  }

  Placed read_entry(const std::string& name, const nlohmann::json& entry) const {
    if (!entry.is_object()) fail(name, "its header entry is not an object");
    for (const auto& [key, value] : entry.items()) {
      if (key != "dtype" && key != "shape" && key != "data_offsets") fail(name, fmt::format("unknown header key {}", in_quotes(key)));
    }
    Placed placed{};
    placed.tensor.name = name;
    const auto& dtype = field(name, entry, "dtype");
    if (!dtype.is_string()) fail(name, "dtype is not a string");
    const auto type = type_of(dtype.get_ref<const std::string&>());
    if (!type) fail(name, fmt::format("unknown dtype {}", in_quotes(dtype.get_ref<const std::string&>())));
    placed.tensor.dtype = *type;

    const auto& shape = field(name, entry, "shape");
    if (!shape.is_array()) fail(name, "shape is not a list");
    for (const auto& n : shape) {
      if (!n.is_number_unsigned()) fail(name, "shape holds something that is not a whole number >= 0");
      if (n.get<std::uint64_t>() > std::uint64_t(INT64_MAX)) fail(name, "shape overflows");
      placed.tensor.shape.push_back(n.get<std::int64_t>());
    }
    const auto& offsets = field(name, entry, "data_offsets");
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
      fail(name, "data_offsets is not a pair of whole numbers");
    }
    placed.begin = offsets[0].get<std::uint64_t>();
    placed.end = offsets[1].get<std::uint64_t>();
    if (placed.begin > placed.end) fail(name, fmt::format("data_offsets [{}, {}] run backwards", placed.begin, placed.end));
    const auto bytes = bytes_needed(*type, placed.tensor.shape);
    if (!bytes) fail(name, "shape overflows");
    if (*bytes != placed.end - placed.begin) {
      fail(name, fmt::format("{} [{}] takes {} bytes, its data_offsets span {}", name_of(*type), fmt::join(placed.tensor.shape, ", "),
                             *bytes, placed.end - placed.begin));
    }
    return placed;
  }

  /// The tensors fill the data exactly, in some order, from 0 to its end.
  void check_layout() {
    std::stable_sort(placed_.begin(), placed_.end(),
                     [](const Placed& a, const Placed& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
    std::uint64_t end = 0;
    for (const Placed& placed : placed_) {
      if (placed.begin != end) {
        fail(placed.tensor.name, fmt::format("{} at byte {}, expected to start at {}",
                                             placed.begin < end ? "overlaps the tensor before it" : "leaves a hole", placed.begin, end));
      }
      end = placed.end;
      if (end > data_.size()) fail(placed.tensor.name, fmt::format("truncated: ends at byte {} of {} bytes of data", end, data_.size()));
    }
    if (end != data_.size()) fail(fmt::format("{} trailing bytes after the last tensor", data_.size() - end));
  }

  std::string where_;
  std::span<const std::byte> file_;
  std::span<const std::byte> data_;
  std::vector<Placed> placed_;
};

float f16_to_float(std::uint16_t h) {
  const std::uint32_t sign = std::uint32_t(h & 0x8000u) << 16;
  const std::uint32_t exponent = (h >> 10) & 0x1Fu;
  const std::uint32_t fraction = h & 0x3FFu;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | (fraction << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float magnitude = float(fraction) * 0x1p-24f;  // a denormal of FP16 is a normal FP32
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

template <class From, class To, class Convert>
void convert(std::span<const std::byte> from, std::span<To> to, Convert&& value) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    From raw;
    std::memcpy(&raw, from.data() + i * sizeof(From), sizeof(From));
    to[i] = value(raw);
  }
}

}  // namespace

std::size_t bytes_of(StoredType type) { return kTypes[std::size_t(type)].bytes; }
const char* name_of(StoredType type) { return kTypes[std::size_t(type)].name; }

std::string describe(const StoredTensor& tensor) { return fmt::format("{} [{}]", name_of(tensor.dtype), fmt::join(tensor.shape, ", ")); }

void read_f32(const StoredTensor& tensor, std::span<float> out) {
  require(out.size() == std::size_t(tensor.elements()), "read_f32: the output does not have the tensor's size");
  switch (tensor.dtype) {
    case StoredType::f32:
      if (!out.empty()) std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
      return;
    case StoredType::bf16: return convert<std::uint16_t>(tensor.data, out, [](std::uint16_t bits) { return to_float(BF16{bits}); });
    case StoredType::f16: return convert<std::uint16_t>(tensor.data, out, f16_to_float);
    default: throw Error(fmt::format("tensor {} is {}: expected F32, BF16 or F16", in_quotes(tensor.name), name_of(tensor.dtype)));
  }
}

std::vector<float> read_f32(const StoredTensor& tensor) {
  std::vector<float> out(std::size_t(tensor.elements()));
  read_f32(tensor, out);
  return out;
}

std::vector<std::int64_t> read_i64(const StoredTensor& tensor) {
  std::vector<std::int64_t> out(std::size_t(tensor.elements()));
  const auto widen = [](auto x) { return std::int64_t(x); };
  if (tensor.dtype == StoredType::i64) {
    convert<std::int64_t>(tensor.data, std::span(out), widen);
  } else if (tensor.dtype == StoredType::i32) {
    convert<std::int32_t>(tensor.data, std::span(out), widen);
  } else {
    throw Error(fmt::format("tensor {} is {}: expected I64 or I32", in_quotes(tensor.name), name_of(tensor.dtype)));
  }
  return out;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path), file_(path) {
  HeaderReader(path_, file_.bytes()).read(tensors_, metadata_);
  std::sort(tensors_.begin(), tensors_.end(), [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> out;
  for (const StoredTensor& tensor : tensors_) out.push_back(tensor.name);
  return out;
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto it =
      std::lower_bound(tensors_.begin(), tensors_.end(), name, [](const StoredTensor& a, std::string_view b) { return a.name < b; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

const StoredTensor& SafetensorsFile::get(std::string_view name) const {
  const StoredTensor* tensor = find(name);
  if (tensor == nullptr) throw Error(fmt::format("{}: no tensor {}", path_.string(), in_quotes(name)));
  return *tensor;
}

void write_safetensors(const std::filesystem::path& path, std::vector<StoredTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    const auto bytes_a = bytes_of(a.dtype), bytes_b = bytes_of(b.dtype);
    return bytes_a != bytes_b ? bytes_a > bytes_b : a.name < b.name;
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  std::set<std::string_view> seen;
  for (const StoredTensor& tensor : tensors) {
    const auto fail = [&](const char* what) { throw Error(fmt::format("{}: tensor {}: {}", path.string(), in_quotes(tensor.name), what)); };
    if (tensor.name == "__metadata__") fail("is a reserved name");
    if (!seen.insert(tensor.name).second) fail("is written twice");
    if (std::any_of(tensor.shape.begin(), tensor.shape.end(), [](std::int64_t n) { return n < 0; })) fail("negative shape");
    const auto bytes = bytes_needed(tensor.dtype, tensor.shape);
    if (!bytes || *bytes != tensor.data.size()) fail("its data does not have the size of its shape");
    header[tensor.name] = {{"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + *bytes}}};
    offset += *bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::type_error&) {
    throw Error(fmt::format("{}: a tensor name or metadata string is not UTF-8", path.string()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  require(length <= kMostHeaderBytes, path.string() + ": too many tensors for one safetensors header");

  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(text);
  for (const StoredTensor& tensor : tensors) file.write(tensor.data);
  file.commit();
}

ShardedSafetensors::ShardedSafetensors(const std::filesystem::path& folder) : folder_(folder) {
  std::error_code unreadable;  // counts as not there
  if (!std::filesystem::is_directory(folder, unreadable)) throw Error(fmt::format("{}: not a folder", folder.string()));
  const auto single = folder / "model.safetensors";
  const auto index = folder / "model.safetensors.index.json";
  if (std::filesystem::exists(single, unreadable)) {
    files_.emplace_back(single);
    for (const StoredTensor& tensor : files_[0].tensors()) tensors_[tensor.name] = &tensor;
    return;
  }
  if (!std::filesystem::exists(index, unreadable)) {
    throw Error(fmt::format("{}: holds neither model.safetensors nor model.safetensors.index.json", folder.string()));
  }
  open_index(index);
}

void ShardedSafetensors::open_index(const std::filesystem::path& index_path) {
  const auto fail = [&](const std::string& what) { throw Error(fmt::format("{}: {}", index_path.string(), what)); };
  const nlohmann::json index = read_json(index_path);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) fail("no weight_map object");
  std::map<std::string, std::size_t> shards;  // shard name to its place in files_
  for (const auto& [name, shard] : index["weight_map"].items()) {
    if (!shard.is_string()) fail(fmt::format("weight_map {} is not a file name", in_quotes(name)));
    const auto& file = shard.get_ref<const std::string&>();
    if (file.empty() || file.find('/') != std::string::npos) fail(fmt::format("shard {} is not a plain file name", in_quotes(file)));
    shards.emplace(file, 0);
  }
  for (auto& [shard, place] : shards) {
    std::error_code unreadable;
    if (!std::filesystem::exists(folder_ / shard, unreadable)) fail(fmt::format("shard {} is missing", in_quotes(shard)));
    place = files_.size();
    files_.emplace_back(folder_ / shard);
  }
  for (const auto& [name, shard] : index["weight_map"].items()) {
    const auto& file = shard.get_ref<const std::string&>();
    const StoredTensor* tensor = files_[shards.at(file)].find(name);
    if (tensor == nullptr) fail(fmt::format("tensor {} is not in its shard {}", in_quotes(name), in_quotes(file)));
    tensors_[name] = tensor;
  }
  for (const SafetensorsFile& file : files_) {
    for (const StoredTensor& tensor : file.tensors()) {
      const auto it = tensors_.find(tensor.name);
      if (it == tensors_.end() || it->second != &tensor) {
        fail(fmt::format("does not place tensor {} in {}, which holds it", in_quotes(tensor.name),
                         in_quotes(file.path().filename().string())));
      }
    }
  }
}

std::vector<std::string> ShardedSafetensors::names() const {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : tensors_) out.push_back(name);
  return out;
}

const StoredTensor* ShardedSafetensors::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : it->second;
}

const StoredTensor& ShardedSafetensors::get(std::string_view name) const {
  const StoredTensor* tensor = find(name);
  if (tensor == nullptr) throw Error(fmt::format("{}: no tensor {}", folder_.string(), in_quotes(name)));
  return *tensor;
}

}  // namespace plumb
