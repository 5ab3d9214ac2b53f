#include "model/safetensors/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>

#include "kernels/core/error.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_folder.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// A folder of this test's own, removed at its end.
class SafetensorsTest : public testing::Test {
 protected:
  /// A file with this header text and data.
  fs::path raw(const std::string& header, const std::string& data, const std::string& name = "raw.safetensors") const {
    std::string text(8, '\0');
    const std::uint64_t length = header.size();
    std::memcpy(text.data(), &length, 8);
    write_file(folder_ / name, text + header + data);
    return folder_ / name;
  }

  const test::TempFolder folder_;
};

std::string open_error(const fs::path& path) {
  return error_of([&] { SafetensorsFile file(path); });
}

template <class T>
StoredTensor tensor_of(const std::string& name, StoredType dtype, std::vector<std::int64_t> shape, const std::vector<T>& values) {
  return {.name = name, .dtype = dtype, .shape = std::move(shape), .data = std::as_bytes(std::span(values))};
}

TEST_F(SafetensorsTest, OnlyARegularFileIsWrittenOver) {
  const auto error = [&](const std::string& name) { return error_of([&] { write_file(folder_ / name, "new"); }); };
  fs::create_directory(folder_ / "folder");
  EXPECT_THAT(error("folder"), HasSubstr("folder: is a folder"));
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error("pipe"), HasSubstr("is not a regular file"));
  fs::create_symlink("pipe", folder_ / "to_pipe");
  EXPECT_THAT(error("to_pipe"), HasSubstr("is not a regular file"));
  fs::create_symlink("absent", folder_ / "to_nothing");
  EXPECT_THAT(error("to_nothing"), HasSubstr("leads to nothing"));
  EXPECT_TRUE(fs::is_fifo(folder_ / "pipe"));
  EXPECT_TRUE(fs::is_symlink(folder_ / "to_pipe") && fs::is_symlink(folder_ / "to_nothing"));

  write_file(folder_ / "file", "old");
  fs::create_symlink("file", folder_ / "to_file");
  write_file(folder_ / "to_file", "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "to_file"));
  EXPECT_EQ(read_file(folder_ / "file"), "new");
}

TEST_F(SafetensorsTest, WritesAndReadsBackEveryTypeAndMetadata) {
  const std::vector<float> f32 = {1.5f, -0.0f, std::numeric_limits<float>::infinity()};
  const std::vector<std::uint16_t> half = {0x3C00, 0x0001, 0xFC00};
  const std::vector<std::int64_t> i64 = {-1, std::numeric_limits<std::int64_t>::max()};
  const std::vector<std::uint8_t> u8 = {1, 2, 3};
  const auto path = folder_ / "a.safetensors";
  const std::vector<StoredTensor> tensors = {
      tensor_of("z", StoredType::u8, {3}, u8),    tensor_of("w\"\xC3\xA9\n", StoredType::f32, {3, 1}, f32),
      tensor_of("h", StoredType::f16, {3}, half), tensor_of("b", StoredType::bf16, {1, 3}, half),
      tensor_of("n", StoredType::i64, {2}, i64),  tensor_of("none", StoredType::f32, {4, 0}, std::vector<float>{})};
  write_safetensors(path, tensors, {{"format", "pt"}});
  const SafetensorsFile file(path);
  EXPECT_THAT(file.names(), testing::ElementsAre("b", "h", "n", "none", "w\"\xC3\xA9\n", "z"));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  for (const StoredTensor& expected : tensors) {
    const StoredTensor& got = file.get(expected.name);
    EXPECT_EQ(got.dtype, expected.dtype);
    EXPECT_EQ(got.shape, expected.shape);
    EXPECT_TRUE(std::equal(got.data.begin(), got.data.end(), expected.data.begin(), expected.data.end()));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(got.data.data()) % bytes_of(got.dtype), 0u) << expected.name;
  }
  EXPECT_THAT(read_f32(file.get("h")), testing::ElementsAre(1.f, 0x1p-24f, -std::numeric_limits<float>::infinity()));
  EXPECT_EQ(read_f32(file.get("b"))[0], 0.0078125f);
  EXPECT_TRUE(std::signbit(read_f32(file.get("w\"\xC3\xA9\n"))[1]));
  EXPECT_EQ(read_i64(file.get("n")), i64);
  EXPECT_EQ(file.find("nothing"), nullptr);
  EXPECT_THAT(error_of([&] { file.get("nothing"); }), AllOf(HasSubstr("a.safetensors"), HasSubstr("'nothing'")));
  EXPECT_THAT(error_of([&] { read_f32(file.get("z")); }), HasSubstr("'z' is U8"));
}

TEST_F(SafetensorsTest, ConvertsEveryFp16Value) {
  std::vector<std::uint16_t> half(65536);
  for (std::size_t i = 0; i < half.size(); ++i) half[i] = std::uint16_t(i);
  const auto out = read_f32(tensor_of("h", StoredType::f16, {65536}, half));
  for (std::size_t i = 0; i < half.size(); ++i) {
    const int exponent = (half[i] >> 10) & 31;
    const int fraction = half[i] & 1023;
    const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(out[i]), fraction != 0);
      ASSERT_EQ(std::isinf(out[i]), fraction == 0);
    } else {
      ASSERT_EQ(out[i], (half[i] & 0x8000 ? -magnitude : magnitude)) << i;
    }
    ASSERT_EQ(std::signbit(out[i]), (half[i] & 0x8000) != 0) << i;
  }
}

TEST_F(SafetensorsTest, BytesDoNotDependOnTheOrderOfTheArguments) {
  const std::vector<float> a = {1, 2};
  const std::vector<std::uint16_t> b = {3};
  std::vector<StoredTensor> tensors = {tensor_of("a", StoredType::f32, {2}, a), tensor_of("b", StoredType::bf16, {1}, b)};
  write_safetensors(folder_ / "1", tensors);
  std::swap(tensors[0], tensors[1]);
  write_safetensors(folder_ / "2", tensors);
  EXPECT_EQ(read_file(folder_ / "1"), read_file(folder_ / "2"));
  std::uint64_t length = 0;
  std::memcpy(&length, read_file(folder_ / "1").data(), 8);
  EXPECT_EQ(length % 8, 0u);
}

TEST_F(SafetensorsTest, RefusesMalformedFilesByNameOfFileAndTensor) {
  const std::string four(4, 'x');
  struct Case {
    std::string header;
    std::string data;
    std::string expected;
  };
  const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return fmt::format(R"({{"t":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
  };
  const std::vector<Case> cases = {
      {entry("\"F32\"", "[1]", "[0,4]"), four + "y", "1 trailing bytes"},
      {entry("\"F32\"", "[1]", "[0,4]"), "xxx", "'t': truncated"},
      {entry("\"F32\"", "[2]", "[0,4]"), four, "'t': F32 [2] takes 8 bytes"},
      {entry("\"F31\"", "[1]", "[0,4]"), four, "'t': unknown dtype 'F31'"},
      {entry("3", "[1]", "[0,4]"), four, "'t': dtype is not a string"},
      {entry("\"F32\"", "[-1]", "[0,4]"), four, "'t': shape holds"},
      {entry("\"F32\"", "[1.0]", "[0,4]"), four, "'t': shape holds"},
      {entry("\"F32\"", "1", "[0,4]"), four, "'t': shape is not a list"},
      {entry("\"F32\"", "[1]", "[4,0]"), four, "'t': data_offsets [4, 0] run backwards"},
      {entry("\"F32\"", "[1]", "[0,4,4]"), four, "'t': data_offsets is not a pair"},
      {entry("\"F32\"", "[1]", "[1,5]"), four + "y", "'t': leaves a hole at byte 1, expected to start at 0"},
      {entry("\"F32\"", "[4611686018427387904,4]", "[0,4]"), four, "'t': shape overflows"},
      {R"({"t":{"dtype":"F32","shape":[1]}})", four, "'t': no data_offsets"},
      {R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", four, "'t': unknown header key 'x'"},
      {R"({"t":[1]})", four, "'t': its header entry is not an object"},
      {R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"u":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})", four,
       "'u': overlaps"},
      {R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"t":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})", four,
       "duplicate key 't'"},
      {R"({"__metadata__":{"a":1}})", "", "__metadata__ 'a' is not a string"},
      {R"({"__metadata__":{"a":"b","a":"b"}})", "", "duplicate key 'a'"},
      {R"({"__metadata__":3})", "", "__metadata__ is not an object"},
      {"[1]", "", "the header is not a JSON object"},
      {"{} x", "", "not valid JSON"},
      {"", "", "not valid JSON"},
      {std::string("{}\0", 3), "", "not valid JSON"},
      {"\xEF\xBB\xBF{}", "", "not valid JSON"},
      {"{\"a\xFF\":1}", "", "not valid JSON"},
      {std::string(100000, '['), "", "not valid JSON"},
      {"{\"t\\n\":1}", "", "'t\\x0A'"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(open_error(raw(c.header, c.data)), AllOf(HasSubstr("raw.safetensors: "), HasSubstr(c.expected), Not(HasSubstr("\n"))))
        << c.header;
  }
  EXPECT_THAT(open_error(folder_ / "absent"), AllOf(HasSubstr("absent"), HasSubstr("No such file")));
  EXPECT_THAT(open_error(folder_), HasSubstr("not a regular file"));
}

TEST_F(SafetensorsTest, EveryTruncationOfAFileIsRefused) {
  const std::vector<float> a = {1, 2};
  write_safetensors(folder_ / "a", {tensor_of("a", StoredType::f32, {2}, a)});
  const std::string whole = read_file(folder_ / "a");
  for (std::size_t n = 0; n < whole.size(); ++n) {
    write_file(folder_ / "cut", whole.substr(0, n));
    EXPECT_THAT(open_error(folder_ / "cut"), HasSubstr("cut: ")) << n;
  }
}

TEST_F(SafetensorsTest, EmptyDataMayLieAnywhereAtABoundary) {
  const SafetensorsFile file(
      raw(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[2,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
          R"("c":{"dtype":"F64","shape":[0,3],"data_offsets":[0,0]}})",
          "xy"));
  EXPECT_EQ(file.get("a").elements(), 0);
  EXPECT_EQ(file.get("b").elements(), 2);
}

TEST_F(SafetensorsTest, RefusesToWriteWhatItCouldNotRead) {
  const std::vector<float> a = {1, 2};
  const auto tensor = tensor_of("a", StoredType::f32, {2}, a);
  const auto path = folder_ / "out";
  EXPECT_THAT(error_of([&] { write_safetensors(path, {tensor, tensor}); }), HasSubstr("'a': is written twice"));
  EXPECT_THAT(error_of([&] { write_safetensors(path, {tensor_of("a", StoredType::f32, {3}, a)}); }), HasSubstr("size of its shape"));
  EXPECT_THAT(error_of([&] { write_safetensors(path, {tensor_of("\xFF", StoredType::f32, {2}, a)}); }), HasSubstr("not UTF-8"));
  EXPECT_THAT(error_of([&] { write_safetensors(folder_ / "no" / "out", {tensor}); }), HasSubstr("cannot create: No such file"));
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(SafetensorsTest, AFailedWriteLeavesTheOldFileAndNothingElse) {
  const std::vector<float> small = {1};
  const std::vector<float> large(1 << 20);
  const auto path = folder_ / "out";
  write_safetensors(path, {tensor_of("a", StoredType::f32, {1}, small)});
  const std::string before = read_file(path);
  // A file size limit fails like a full disk: in the middle of a write.
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit tight{.rlim_cur = 1 << 16, .rlim_max = old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  const std::string error = error_of([&] { write_safetensors(path, {tensor_of("a", StoredType::f32, {1 << 20}, large)}); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(error, AllOf(HasSubstr(path.string()), HasSubstr("cannot write: ")));
  EXPECT_EQ(read_file(path), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

class ShardsTest : public SafetensorsTest {
 protected:
  void SetUp() override {
    SafetensorsTest::SetUp();
    write_safetensors(folder_ / "s1", {tensor_of("a", StoredType::f32, {2}, values_)});
    write_safetensors(folder_ / "s2", {tensor_of("b", StoredType::f32, {1, 2}, values_)});
  }
  std::string index_error(const std::string& weight_map) const {
    write_file(folder_ / "model.safetensors.index.json", R"({"metadata":{"total_size":16},"weight_map":)" + weight_map + "}");
    return error_of([&] { ShardedSafetensors shards(folder_); });
  }
  const std::vector<float> values_ = {1, 2};
};

TEST_F(ShardsTest, UnifiesTheShards) {
  EXPECT_THAT(error_of([&] { ShardedSafetensors shards(folder_); }), HasSubstr("neither model.safetensors nor"));
  EXPECT_EQ(index_error(R"({"a":"s1","b":"s2"})"), "no error");
  const ShardedSafetensors shards(folder_);
  EXPECT_THAT(shards.names(), testing::ElementsAre("a", "b"));
  EXPECT_EQ(read_f32(shards.get("b")), values_);
  EXPECT_EQ(shards.find("c"), nullptr);
  EXPECT_THAT(error_of([&] { shards.get("c"); }), HasSubstr("no tensor 'c'"));
}

TEST_F(ShardsTest, ASingleFileIsEnough) {
  write_safetensors(folder_ / "model.safetensors", {tensor_of("x", StoredType::f32, {2}, values_)});
  EXPECT_THAT(ShardedSafetensors(folder_).names(), testing::ElementsAre("x"));
}

TEST_F(ShardsTest, NamesWhatIsMissing) {  // cases 36 and 37
  EXPECT_THAT(index_error(R"({"a":"s1","b":"s3"})"), HasSubstr("shard 's3' is missing"));
  EXPECT_THAT(index_error(R"({"a":"s1","b":"s2","c":"s2"})"), HasSubstr("tensor 'c' is not in its shard 's2'"));
  EXPECT_THAT(index_error(R"({"a":"s1"})"), HasSubstr("no error"));  // a shard that the index does not name is not read
  EXPECT_THAT(index_error(R"({"a":"s2","b":"s2"})"), HasSubstr("tensor 'a' is not in its shard 's2'"));
  EXPECT_THAT(index_error(R"({"a":"../s1"})"), HasSubstr("not a plain file name"));
  EXPECT_THAT(index_error(R"({"a":1})"), HasSubstr("'a' is not a file name"));
  EXPECT_THAT(index_error("[]"), HasSubstr("no weight_map"));
  write_safetensors(folder_ / "s1", {tensor_of("a", StoredType::f32, {2}, values_), tensor_of("extra", StoredType::f32, {2}, values_)});
  EXPECT_THAT(index_error(R"({"a":"s1","b":"s2"})"), HasSubstr("does not place tensor 'extra' in 's1'"));
  write_file(folder_ / "s1", "short");
  EXPECT_THAT(index_error(R"({"a":"s1","b":"s2"})"), HasSubstr("s1: not a safetensors file"));
}

TEST(SafetensorsConformanceTest, EveryCaseOfTheManifest) {
  const char* shared = std::getenv("PLUMB_SHARED");
  if (shared == nullptr) GTEST_SKIP() << "set PLUMB_SHARED to the folder with the golden values";
  const fs::path folder = fs::path(shared) / "conformance/safetensors";
  int seen = 0;
  for (const auto& entry : read_json(folder / "manifest.json")) {
    const auto name = entry.at("file").get<std::string>();
    const auto expect = entry.at("expect").get<std::string>();
    const std::string error = open_error(folder / name);
    ++seen;
    if (expect.starts_with("Ok")) {
      EXPECT_EQ(error, "no error") << name;
    } else {
      EXPECT_THAT(error, AllOf(HasSubstr(name), Not(HasSubstr("\n")))) << expect;
    }
  }
  EXPECT_EQ(seen, 17);
  EXPECT_THAT(open_error(folder / "test_json_attack.safetensors"), HasSubstr("overlaps"));
}

}  // namespace
}  // namespace plumb
