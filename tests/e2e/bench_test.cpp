// Every `plumb bench` runs and prints lines that make sense; how fast anything was is nobody's business here.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/e2e/process.h"

namespace plumb::e2e {
namespace {

class SlowBench : public testing::TestWithParam<const char*> {};

TEST_P(SlowBench, RunsAndPrintsItsLines) {
  const TempFolder tmp;
  const Finished f = plumb({"bench", GetParam(), "--repeats", "1", "--threads", "2", "--json", tmp / "figures.json"});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_EQ(f.err, "");
  const auto lines = nlohmann::json::parse(read_file(tmp / "figures.json"));
  ASSERT_GE(lines.size(), 1u);
  EXPECT_EQ(std::size_t(std::count(f.out.begin(), f.out.end(), '\n')), lines.size() + 1) << f.out;
  for (const auto& line : lines) {
    const std::string name = line["name"];
    EXPECT_NE(f.out.find(name), std::string::npos) << name;
    EXPECT_EQ(line["threads"], 2) << name;
    const auto& figures = line.contains("percent") ? line["percent"] : line["per_second"];
    for (const char* which : {"min", "median", "max"}) EXPECT_GT(figures[which].get<double>(), 0) << name;
    if (!line.contains("seconds")) continue;
    EXPECT_GT(line["seconds"]["median"].get<double>(), 0) << name;
    EXPECT_GT(line["flops_per_second"].get<double>(), 0) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Subcommands, SlowBench, testing::Values("machine", "matmul", "decode", "train", "grpo"),
                         [](const auto& p) { return std::string(p.param); });

TEST(Bench, WrongUseIsToldBeforeAnyWork) {
  const TempFolder tmp;
  expect_one_line(plumb({"bench", "machin"}), 2, "machine");
  expect_one_line(plumb({"bench", "machine", "--repeats", "0"}), 2, "--repeats is '0'");
  expect_one_line(plumb({"bench", "machine", "--threads", "100000"}), 2, "--threads is '100000'");
  expect_one_line(plumb({"bench", "machine", "--json", tmp}), 1, "is a folder");
}

}  // namespace
}  // namespace plumb::e2e
