// Files with recorded tensors: every layout that may be given is read, everything else is refused in one line.
#include "model/probe/region_file.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/core/error.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_folder.h"

namespace plumb {
namespace {

/// A file in the making, of tensors whose element i is i (modulo 64, exact in BF16) plus a start.
class RegionFiles : public testing::Test {
 protected:
  void add(const std::string& name, std::vector<std::int64_t> shape, StoredType type = StoredType::bf16, int start = 0) {
    std::int64_t n = 1;
    for (const std::int64_t x : shape) n *= x;
    std::vector<std::byte> data(std::size_t(n) * bytes_of(type));
    for (std::int64_t i = 0; i < n; ++i) put(data, type, i, float(start + i % 64));
    set(name, std::move(shape), type, std::move(data));
  }
  void set(const std::string& name, std::vector<std::int64_t> shape, StoredType type, std::vector<std::byte> data) {
    tensors_[name] = {.name = name, .dtype = type, .shape = std::move(shape)};
    data_[name] = std::move(data);
  }
  void set_i64(const std::string& name, const std::vector<std::int64_t>& values) {
    std::vector<std::byte> data(values.size() * 8);
    std::memcpy(data.data(), values.data(), data.size());
    set(name, {std::int64_t(values.size())}, StoredType::i64, std::move(data));
  }
  void drop(const std::string& name) { tensors_.erase(name); }
  RegionFile file() {
    std::vector<StoredTensor> all;
    for (auto& [name, t] : tensors_) {
      t.data = data_[name];
      all.push_back(t);
    }
    write_safetensors(folder_ / "region.safetensors", all, metadata_);
    return RegionFile(folder_ / "region.safetensors");
  }
  std::string inputs_error() {
    return test::error_of([&] { file().inputs(); });
  }
  std::string outputs_error() {
    const RegionInputs in = file().inputs();
    return test::error_of([&] { file().observations(in); });
  }
  void rope() {
    metadata_ = {{"head_dim", "4"}, {"theta", "10000"}};
    add("in.q", {3, 8});
    add("in.k", {3, 4});
    set_i64("in.pos", {0, 5, 1000000000});
  }
  void swiglu() {
    add("in.gate", {2, 3});
    add("in.up", {2, 3});
    add("out.0", {2, 3});
  }
  std::map<std::string, std::string> metadata_;

 private:
  static void put(std::vector<std::byte>& data, StoredType type, std::int64_t i, float x) {
    const BF16 narrow = to_bf16(x);
    if (type == StoredType::bf16) std::memcpy(&data[std::size_t(2 * i)], &narrow, 2);
    if (type == StoredType::f32) std::memcpy(&data[std::size_t(4 * i)], &x, 4);
  }
  test::TempFolder folder_;
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::vector<std::byte>> data_;
};

testing::AssertionResult says(const std::string& error, const std::string& what) {
  if (error.find(what) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "not said: " << what << "; but: " << error;
}

TEST_F(RegionFiles, HeadsMayBeStoredInThreeLayouts) {
  rope();
  const RegionInputs rows = file().inputs();
  EXPECT_EQ(rows.region, Region::rope);
  EXPECT_EQ(rows.positions[2], 1000000000);
  add("in.q", {3, 2, 4});
  const RegionInputs three = file().inputs();
  EXPECT_EQ(rows.tensors.at("q").bytes(), three.tensors.at("q").bytes());
  add("in.q", {1, 2, 3, 4});  // heads outside: token 1 of head 1 begins at element 16
  const RegionInputs outside = file().inputs();
  EXPECT_EQ(outside.tensors.at("q").rows(), 3);
  EXPECT_EQ(outside.tensors.at("q").at(8 + 4), 16.0f);
  EXPECT_EQ(outside.tensors.at("q").at(8), 4.0f);
}

TEST_F(RegionFiles, TheTableMayBeGivenInFourForms) {
  rope();
  drop("in.pos");
  for (const std::int64_t cols : {2, 4}) {
    std::vector<std::byte> repeated(std::size_t(2 * 3 * cols));
    for (std::int64_t i = 0; i < 3 * cols; ++i) {
      const BF16 x = to_bf16(float(i / cols * 2 + i % 2));
      std::memcpy(&repeated[std::size_t(2 * i)], &x, 2);
    }
    set("in.const_cos", {1, 3, cols}, StoredType::bf16, repeated);
    set("in.const_sin", {3, cols}, StoredType::bf16, repeated);
    const RegionInputs in = file().inputs();
    EXPECT_TRUE(in.table_given_bf16);
    EXPECT_EQ(in.table.cos(2, false)[1], 5.0f);
    EXPECT_EQ(in.table.sin(1, false)[0], 2.0f);
  }
  add("in.const_table", {3, 4}, StoredType::f32);
  const RegionInputs in = file().inputs();
  EXPECT_FALSE(in.table_given_bf16);
  EXPECT_EQ(in.table.cos(1, false)[1], 5.0f);
  EXPECT_EQ(in.table.sin(1, false)[1], 7.0f);
}

TEST_F(RegionFiles, RefusesTablesThatDoNotFit) {
  rope();
  set_i64("in.pos", {0, 1});
  EXPECT_TRUE(says(inputs_error(), "in.pos has 2 positions for 3 tokens"));
  set_i64("in.pos", {0, 1, -1});
  EXPECT_TRUE(says(inputs_error(), "in.pos holds -1, which is no position"));
  set_i64("in.pos", {0, 1, std::int64_t(1) << 40});
  EXPECT_TRUE(says(inputs_error(), "which is no position"));
  add("in.pos", {3});
  EXPECT_TRUE(says(inputs_error(), "in.pos"));
  set_i64("in.pos", {0, 1, 2});
  metadata_.erase("theta");
  EXPECT_TRUE(says(inputs_error(), "metadata has no theta"));
  drop("in.pos");
  EXPECT_TRUE(says(inputs_error(), "holds no table"));
  add("in.const_cos", {3, 4});
  add("in.const_sin", {3, 4});
  EXPECT_TRUE(says(inputs_error(), "in.const_cos: its two halves differ"));
  add("in.const_cos", {2, 2});
  EXPECT_TRUE(says(inputs_error(), "in.const_cos is (2, 2); (3, 4) is right"));
  add("in.const_cos", {3, 2});
  drop("in.const_sin");
  EXPECT_TRUE(says(inputs_error(), "in.const_sin"));
}

TEST_F(RegionFiles, RefusesMetadataThatMakesNoSense) {
  rope();
  for (const char* bad : {"", "three", "-4", "3", "4.5", "2000", "nan", "inf", "4x"}) {
    metadata_["head_dim"] = bad;
    EXPECT_TRUE(says(inputs_error(), "head_dim")) << bad;
  }
  metadata_["head_dim"] = "4";
  metadata_["eps"] = "0";
  EXPECT_TRUE(says(inputs_error(), "metadata eps is '0'; a positive number is right"));
  metadata_["eps"] = "1e30";
  EXPECT_TRUE(says(inputs_error(), "a number up to 1 is right"));
  metadata_.erase("eps");
  for (const char* bad : {"0.5", "1e300"}) {
    metadata_["theta"] = bad;
    EXPECT_TRUE(says(inputs_error(), "a number from 1 to 1e+18 is right")) << bad;
  }
  metadata_.clear();
  EXPECT_TRUE(says(inputs_error(), "metadata has no head_dim"));
}

TEST_F(RegionFiles, RefusesInputsThatDoNotFit) {
  EXPECT_TRUE(says(inputs_error(), "holds the inputs of no region"));
  rope();
  add("in.q", {3, 6});
  EXPECT_TRUE(says(inputs_error(), "q has 6 columns, no multiple of head_dim 4"));
  add("in.q", {2, 1, 3, 4});
  EXPECT_TRUE(says(inputs_error(), "in.q is BF16 [2, 1, 3, 4]"));
  add("in.q", {});
  EXPECT_TRUE(says(inputs_error(), "in.q"));
  add("in.q", {3, 0});
  EXPECT_TRUE(says(inputs_error(), "at least one element"));
  add("in.q", {3, 8}, StoredType::f16);
  EXPECT_TRUE(says(inputs_error(), "in.q is F16; BF16 or F32 is right"));
  add("in.q", {3, 8});
  add("in.k", {4, 4});
  EXPECT_TRUE(says(inputs_error(), "k is (4, 4); (3, 4) is right"));
  add("in.k", {3, 4});
  add("in.wq", {5});
  EXPECT_TRUE(says(inputs_error(), "wq is (1, 5); (1, 4) is right"));
  add("in.wq", {4});
  EXPECT_TRUE(says(inputs_error(), "the input wk is missing"));
  drop("in.q");
  swiglu();
  add("in.up", {3, 3});
  EXPECT_TRUE(says(inputs_error(), "up is (3, 3); (2, 3) is right"));
}

TEST_F(RegionFiles, ReadsOutputsOfEveryModeInTheirDtypes) {
  swiglu();
  add("up.0", {2, 3});
  add("a.out.0", {2, 3}, StoredType::f32);
  add("a.b.grad.up", {2, 3});
  add("table.cos", {7});  // of no concern
  const auto all = file().observations(file().inputs());
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].mode, "");
  EXPECT_EQ(all[1].mode, "a");
  EXPECT_EQ(all[1].outputs.at("out.0").dtype(), DType::f32);
  EXPECT_EQ(all[2].mode, "a.b");
  EXPECT_TRUE(all[2].outputs.contains("grad.up"));
}

TEST_F(RegionFiles, RefusesOutputsThatDoNotFit) {
  swiglu();
  add("out.0", {2, 4});
  EXPECT_TRUE(says(outputs_error(), "out.0 is (2, 4); (2, 3) is right"));
  add("out.0", {2, 3});
  add("out.1", {2, 3});
  EXPECT_TRUE(says(outputs_error(), "out.1: the inputs give no out.1; they give out.0"));
  drop("out.1");
  add("x.grad.up", {2, 3});
  EXPECT_TRUE(says(outputs_error(), "x.grad.up: the inputs give no grad.up"));
  drop("x.grad.up");
  drop("out.0");
  EXPECT_TRUE(says(outputs_error(), "holds no outputs"));
}

}  // namespace
}  // namespace plumb
