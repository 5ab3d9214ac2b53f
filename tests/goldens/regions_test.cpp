// The three regions against golden values of PyTorch: transformers' eager code, what Inductor makes of it, and a serving
// engine's formulas, forward and backward, bit for bit. Needs PLUMB_SHARED.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/rope/rope.h"
#include "model/regions/region_goldens.h"
#include "model/safetensors/safetensors.h"

namespace plumb {
namespace {

class RegionGoldens : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("PLUMB_SHARED") == nullptr) GTEST_SKIP() << "PLUMB_SHARED is not set: the golden values of the regions are not there";
  }
  static std::filesystem::path folder() { return std::string(std::getenv("PLUMB_SHARED")) + "/conformance/regions"; }

  void open(const std::string& name) { file_ = std::make_unique<SafetensorsFile>(folder() / (name + ".safetensors")); }
  std::vector<float> get_floats(const std::string& name) const { return read_f32(file_->get(name)); }

  /// The share of elements that differ over all outputs of a case.
  double share(const std::filesystem::path& file, const RegionCase& c) {
    double differ = 0;
    double elements = 0;
    for (const RegionResult& r : check_region(ctx_, file, c)) {
      differ += double(r.differ);
      elements += double(r.elements);
    }
    return differ / elements;
  }

  Context ctx_{2};
  std::unique_ptr<SafetensorsFile> file_;
};

// Every bit, with the orders of the stacks' sums.
TEST_F(RegionGoldens, EveryFileUnderItsPresets) {
  std::int64_t elements = 0;
  int cases = 0;
  for (const auto& file : region_files(folder())) {
    for (const RegionCase& c : region_cases(file)) {
      ++cases;
      for (const RegionResult& r : check_region(ctx_, file, c)) {
        EXPECT_EQ(r.differ, 0) << "of " << r.elements << ": " << file << " " << c.mode << "." << r.output;
        elements += r.elements;
      }
    }
  }
  EXPECT_EQ(cases, 2 * 17);
  EXPECT_EQ(elements, 1969344);
}

// The same comparison under the preset of the other mode: a tenth of the elements and more differ.
TEST_F(RegionGoldens, TheOtherModesPresetDoesNotFit) {
  for (const auto& file : region_files(folder())) {
    auto cases = region_cases(file);
    ASSERT_EQ(cases.size(), 2u);
    std::swap(cases[0].numerics, cases[1].numerics);
    for (const RegionCase& c : cases) EXPECT_GT(share(file, c), 0.1) << file << " " << c.mode;
  }
}

const RopeTable& table_of(int head_dim) {
  static const RopeTable small(64, 1e4, 40960);
  static const RopeTable large(128, 1e6, 40960);
  return head_dim == 64 ? small : large;
}

/// The positions of make.py.
std::vector<std::int32_t> default_positions() {
  std::vector<std::int32_t> p;
  for (int i = 0; i < 32; ++i) p.push_back(i);
  for (int x : {127, 1000, 2047, 4095, 8191, 16383, 32767, 40959}) p.push_back(x);
  return p;
}

// PyTorch's pow, cos and sin are not correctly rounded, ours are: a few FP32 entries differ in their last bits, the BF16
// tables agree in every element.
TEST_F(RegionGoldens, RopeTables) {
  for (int d : {64, 128}) {
    open("rope_d" + std::to_string(d));
    const std::size_t half = std::size_t(d / 2);
    const RopeTable& table = table_of(d);
    const auto positions = default_positions();
    const auto frequencies = get_floats("inv_freq");
    std::vector<double> distance(half);
    std::size_t other_frequencies = 0;
    for (std::size_t j = 0; j < half; ++j) {
      distance[j] = std::abs(double(RopeTable::inverse_frequency(d, d == 64 ? 1e4 : 1e6, int(j))) - frequencies[j]);
      other_frequencies += distance[j] != 0;
      EXPECT_LE(distance[j], 0x1p-23 * frequencies[j]) << d << " " << j;
    }
    std::size_t differ[2] = {};
    for (const bool round : {false, true}) {
      const std::string suffix = round ? "_bf16" : "_f32";
      const auto cos = get_floats("table.cos" + suffix);
      const auto sin = get_floats("table.sin" + suffix);
      for (std::size_t i = 0; i < cos.size(); ++i) {
        const std::int32_t p = positions[i / half];
        const std::size_t j = i % half;
        differ[round] += std::size_t(table.cos(p, round)[j] != cos[i]) + std::size_t(table.sin(p, round)[j] != sin[i]);
        const double tolerance = (round ? 0x1p-8 : 0x1p-23) + 2 * p * distance[j];
        EXPECT_NEAR(table.cos(p, round)[j], cos[i], tolerance) << p << " " << j;
        EXPECT_NEAR(table.sin(p, round)[j], sin[i], tolerance) << p << " " << j;
      }
    }
    std::printf("rope_d%d: %zu of %zu inverse frequencies differ; of %zu table entries %zu differ in FP32, %zu in BF16\n", d,
                other_frequencies, half, std::size_t(40 * d), differ[0], differ[1]);
    EXPECT_EQ(differ[1], 0u);
  }
}

}  // namespace
}  // namespace plumb
