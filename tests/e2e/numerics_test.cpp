// `plumb numerics list|show|diff|check|probe` as a user meets them, bad input too.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/e2e/process.h"
#include "tests/paths.h"

namespace plumb::e2e {
namespace {

using nlohmann::json;

json printed(const std::vector<std::string>& arguments, int code = 0) {
  std::vector<std::string> all = {"numerics"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  all.push_back("--json");
  const Finished f = plumb(all);
  EXPECT_EQ(f.code, code) << f.err;
  return json::parse(f.out, nullptr, false);
}

TEST(NumericsCommand, ListsShowsAndComparesPresets) {
  const json list = printed({"list"});
  EXPECT_EQ(list.size(), 16u);
  std::set<std::string> names;
  for (const json& p : list) names.insert(p["name"]);
  EXPECT_TRUE(names.contains("hf_eager") && names.contains("vllm_cpu_compiled"));
  const json shown = printed({"show", "hf_compiled", "--set", "rope.cos_sin_table=b"});
  EXPECT_EQ(shown["facts"]["rope.cos_sin_table"], json({{"value", "b"}, {"knowledge", "set"}}));
  EXPECT_EQ(shown["facts"]["swiglu.silu"]["knowledge"], "proven");
  const json differences = printed({"diff", "hf_eager", "hf_compiled"})["differences"];
  EXPECT_EQ(differences["rope.products"], json({"b", "f"}));
  EXPECT_FALSE(differences.contains("rope.rotated"));
  EXPECT_EQ(printed({"diff", "fused", "fused"})["differences"], json::object());
  for (const char* sub : {"list", "show", "diff", "check", "probe"}) EXPECT_EQ(plumb({"numerics", sub, "--help"}).code, 0) << sub;
  EXPECT_NE(plumb({"numerics", "list"}).out.find("hf_autocast_fp32params"), std::string::npos);
  EXPECT_NE(plumb({"numerics", "show", "hf_eager"}).out.find("rope.rotated"), std::string::npos);
  EXPECT_NE(plumb({"numerics", "diff", "fused", "fused"}).out.find("compute the same"), std::string::npos);
}

TEST(NumericsCommand, RefusesWhatMakesNoSense) {
  TempFolder tmp;
  expect_one_line(plumb({"numerics", "show", "hf_eagre"}), 2, "hf_eager");
  expect_one_line(plumb({"numerics", "diff", "fused", "vllm_cpu_eagr"}), 2, "vllm_cpu_eager");
  expect_one_line(plumb({"numerics", "show", "fused", "--set", "rope.product=f"}), 2, "rope.products");
  expect_one_line(plumb({"numerics"}), 2, "numerics");
  expect_one_line(plumb({"numerics", "prob"}), 2, "prob");
  expect_one_line(plumb({"numerics", "check", tmp / "none"}), 1, "none");
  expect_one_line(plumb({"numerics", "check", tmp}), 1, "holds no .safetensors files");
  write_file(tmp / "cut.safetensors", std::string("\x10\0\0\0\0\0\0\0{}", 10));
  expect_one_line(plumb({"numerics", "check", tmp}), 1, "truncated");
}

class ProbeGoldens : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("PLUMB_SHARED") == nullptr) GTEST_SKIP() << "PLUMB_SHARED is not set: the golden values of the regions are not there";
  }
  static std::string file(const std::string& name) {
    return std::string(std::getenv("PLUMB_SHARED")) + "/conformance/regions/" + name + ".safetensors";
  }
};

TEST_F(ProbeGoldens, TheCommandFindsWhatRoundingMdSays) {
  const json found = printed({"probe", file("qknorm_rope_d64"), "--mode", "compiled"});
  ASSERT_EQ(found.size(), 1u);
  const json& sites = found[0]["sites"];
  EXPECT_EQ(sites["rope.rotated"], json({{"value", "b"}}));
  for (const char* kept : {"qk_norm.xhat", "qk_norm.out", "rope.cos_sin_table", "rope.products"})
    EXPECT_EQ(sites[kept]["value"], "f") << kept;
  EXPECT_EQ(found[0]["presets"], json({"hf_compiled"}));
  EXPECT_EQ(found[0]["backward"]["rope"], "fused");
  const Finished table = plumb({"numerics", "probe", file("qknorm_rope_d64")});
  EXPECT_EQ(table.code, 0);
  EXPECT_NE(table.out.find("inert: the copy is of a BF16 value"), std::string::npos) << table.out;
  expect_one_line(plumb({"numerics", "probe", file("swiglu"), "--mode", "compield"}), 2, "compiled");
  expect_one_line(plumb({"numerics", "probe", file("swiglu"), "--inputs", file("resid_norm_d48")}), 1, "the inputs give no");
  // A whole file, cut: nothing of it is believed.
  TempFolder tmp;
  const std::string whole = read_file(file("swiglu"));
  write_file(tmp / "cut.safetensors", whole.substr(0, whole.size() / 2));
  expect_one_line(plumb({"numerics", "probe", tmp / "cut.safetensors"}), 1, "truncated");
}

TEST(NumericsProbe, RefusesWhatMakesNoSense) {
  TempFolder tmp;
  const auto refused = [](std::vector<std::string> arguments, const std::string& says, int code = 2) {
    arguments.insert(arguments.begin(), {"numerics", "probe"});
    expect_one_line(plumb(arguments), code, says);
  };
  refused({}, "give one of FILE, --library and --write-inputs");
  refused({"a", "--library", "b"}, "give one of");
  refused({"a", "--region", "rope"}, "a file has its own");
  refused({"a", "--symbol", "f"}, "--library");
  refused({"--library", "b", "--region", "swiglu"}, "--symbol");
  refused({"--library", "b", "--symbol", "f"}, "--region is missing");
  refused({"--write-inputs", tmp / "x", "--region", "swigl"}, "swiglu");
  refused({"--write-inputs", tmp / "x", "--region", "rope", "--width", "33"}, "an even number from 8 to 512");
  refused({"--write-inputs", tmp / "no/folder/x", "--region", "swiglu"}, "no/folder/x", 1);
  refused({"a", "--tolerance", "50"}, "tolerance");
  refused({tmp / "none.safetensors"}, "none.safetensors", 1);
  write_file(tmp / "text", "this is no safetensors file at all");
  refused({tmp / "text"}, "not a safetensors file", 1);
  EXPECT_FALSE(std::filesystem::exists(tmp / "x"));
}

TEST(NumericsProbe, WritesTheSameInputsEveryTimeAndHasNoOutputsInThem) {
  TempFolder tmp;
  for (const char* name : {"a", "b"})
    EXPECT_EQ(plumb({"numerics", "probe", "--region", "rope", "--width", "32", "--write-inputs", tmp / name}).code, 0);
  EXPECT_EQ(read_file(tmp / "a"), read_file(tmp / "b"));
  expect_one_line(plumb({"numerics", "probe", tmp / "a"}), 1, "holds no outputs");
}

class NumericsBlackBox : public testing::Test {
 protected:
  static std::vector<std::string> library(const std::string& symbol, const std::string& region) {
    return {"probe", "--library", std::string(test::binary_dir) + "/black_box.so", "--symbol", symbol, "--region", region};
  }
  static json found(std::vector<std::string> arguments) {
    const json all = printed(arguments);
    return all.size() == 1 ? all[0] : json();
  }
  static void refused(const std::string& symbol, const std::string& says) {
    std::vector<std::string> arguments = library(symbol, "swiglu");
    arguments.insert(arguments.begin(), "numerics");
    expect_one_line(plumb(arguments), 1, says);
  }
  static std::string value(const json& probed, const std::string& site) { return probed["sites"][site]["value"]; }
};

TEST_F(NumericsBlackBox, SwiGluEagerAndFused) {
  EXPECT_EQ(value(found(library("swiglu_eager", "swiglu")), "swiglu.silu"), "b");
  auto arguments = library("swiglu_fused", "swiglu");
  EXPECT_EQ(value(found(arguments), "swiglu.silu"), "f");
  arguments.insert(arguments.end(), {"--backward", "swiglu_fused_backward", "--width", "100"});
  EXPECT_EQ(value(found(arguments), "swiglu.silu"), "f");
  // Eager's forward with the fused backward is what Liger does.
  auto liger = library("swiglu_eager", "swiglu");
  liger.insert(liger.end(), {"--backward", "swiglu_fused_backward"});
  const json probed = found(liger);
  EXPECT_EQ(value(probed, "swiglu.silu"), "b");
  EXPECT_EQ(probed["backward"]["swiglu"], "fused");
  const std::vector<std::string> presets = probed["presets"];
  EXPECT_NE(std::find(presets.begin(), presets.end(), "liger"), presets.end());
}

TEST_F(NumericsBlackBox, RopeWithAndWithoutQkNorm) {
  for (const char* region : {"rope", "qk_norm_rope"}) {
    const json probed = found(library("rope_legacy", region));
    for (const char* site : {"rope.cos_sin_table", "rope.products", "rope.out"}) EXPECT_EQ(value(probed, site), "b") << region << site;
    EXPECT_EQ(value(probed, "rope.rotated"), "ambiguous");
    EXPECT_EQ(probed["sites"]["rope.rotated"]["reason"], "inert: the copy is of a BF16 value");
    const std::vector<std::string> same = probed["same_sites"];
    EXPECT_NE(std::find(same.begin(), same.end(), "vllm_cuda_legacy"), same.end()) << region;
  }
}

TEST_F(NumericsBlackBox, ANormThatReadsTheUnroundedSum) {
  for (const char* stream : {"bf16", "f32"}) {
    auto arguments = library("norm_of_unrounded_sum", "resid_norm");
    arguments.insert(arguments.end(), {"--stream", stream});
    const json probed = found(arguments);
    EXPECT_EQ(value(probed, "resid.store"), std::string(stream) == "f32" ? "f" : "b");
    EXPECT_EQ(value(probed, "resid.sum_to_var"), "f");
    EXPECT_EQ(value(probed, "resid.sum_to_scale"), "f");
    EXPECT_EQ(value(probed, "norm.xhat"), "b");
  }
}

TEST_F(NumericsBlackBox, MisbehaviourIsToldInOneLine) {
  refused("swiglu_that_is_not_there", "has no function swiglu_that_is_not_there");
  refused("swiglu_that_fails", "swiglu_that_fails returned 7");
  refused("swiglu_that_crashes", "crashed (Aborted)");
  refused("swiglu_that_exits", "ended the process with code 3");
  refused("swiglu_that_overruns", "wrote outside out.0");
  refused("swiglu_that_underruns", "wrote outside out.0");
  refused("swiglu_that_stops_early", "did not write element");
  refused("swiglu_of_two_minds", "when called again with the same inputs");
  refused("swiglu_that_writes_its_input", "wrote into its input gate");
  TempFolder tmp;
  expect_one_line(plumb({"numerics", "probe", "--library", tmp / "none.so", "--symbol", "f", "--region", "swiglu"}), 1,
                  "there is no such file");
  write_file(tmp / "text.so", "no library");
  expect_one_line(plumb({"numerics", "probe", "--library", tmp / "text.so", "--symbol", "f", "--region", "swiglu"}), 1, "cannot be loaded");
}

TEST_F(NumericsBlackBox, AnotherFormulaFitsNothing) {
  std::vector<std::string> arguments = library("swiglu_of_another_formula", "swiglu");
  arguments.insert(arguments.begin(), "numerics");
  const Finished f = plumb(arguments);
  EXPECT_EQ(f.code, 1);
  EXPECT_NE(f.out.find("no choice of sites gives these outputs"), std::string::npos) << f.out;
  arguments.erase(arguments.begin());
  EXPECT_EQ(printed(arguments, 1)[0]["found"], false);
}

}  // namespace
}  // namespace plumb::e2e
