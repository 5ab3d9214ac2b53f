#include "engine/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <limits>

#include "engine/config/model_yaml.h"
#include "engine/config/sections.h"
#include "kernels/core/error.h"
#include "model/files/files.h"
#include "tests/paths.h"
#include "tests/support/temp_folder.h"

namespace plumb {

enum class Shape { round, square };
constexpr auto enum_names(Shape) { return std::array{std::pair{Shape::round, "round"}, std::pair{Shape::square, "square"}}; }

struct Inner {
  double rate = 0.5;
  std::vector<double> curve;
  std::optional<int> limit;
  friend bool operator==(const Inner&, const Inner&) = default;
};
template <class V>
void visit(V& v, Inner& c) {
  v.field("rate", c.rate, "a rate");
  v.field("curve", c.curve, "points");
  v.field("limit", c.limit, "a limit; null: none");
}

struct Everything {
  bool flag = false;
  int count = 3;
  std::int64_t wide = 0;
  std::uint64_t seed = 0;
  std::string name;
  Shape shape = Shape::round;
  std::vector<std::string> words;
  Inner inner;
  int threads = 0;
  friend bool operator==(const Everything&, const Everything&) = default;
};
template <class V>
void visit(V& v, Everything& c) {
  v.field("flag", c.flag, "a flag");
  v.field("count", c.count, "a count");
  v.field("wide", c.wide, "64 bits");
  v.field("seed", c.seed, "unsigned");
  v.field("name", c.name, "a name");
  v.field("shape", c.shape, "round or square");
  v.field("words", c.words, "some words");
  v.section("inner", c.inner, "a section");
  v.field("threads", c.threads, "how fast", KeyScope::execution);
}

struct Whole {
  OptimizerConfig optimizer;
  SamplingConfig sampling;
  ExecutionConfig execution;
};
template <class V>
void visit(V& v, Whole& c) {
  v.section("optimizer", c.optimizer, "AdamW");
  v.section("sampling", c.sampling, "sampling");
  v.section("execution", c.execution, "how fast", KeyScope::execution);
}

namespace {

Everything parse(const std::string& yaml, const std::vector<std::string>& sets = {}) {
  return parse_config<Everything>(yaml, "f.yaml", sets);
}

std::string message_of(const std::string& yaml, const std::vector<std::string>& sets = {}) {
  try {
    parse(yaml, sets);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

template <class C>
std::string error_in(const std::string& yaml) {
  try {
    parse_config<C>(yaml, "f.yaml");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Config, DefaultsStayWhereNothingIsSaid) {
  EXPECT_EQ(parse(""), Everything{});
  EXPECT_EQ(parse("# only a comment\n"), Everything{});
  EXPECT_EQ(parse("inner:\n"), Everything{});
}

TEST(Config, ReadsEveryType) {
  const Everything c = parse(
      "flag: true\ncount: -7\nwide: 9223372036854775807\nseed: 18446744073709551615\nname: 'two words'\nshape: square\n"
      "words: [a, 'b c', \"1\"]\ninner:\n  rate: 1e-6\n  curve: [1, .5, -2.5E3]\n  limit: 9\nthreads: 2\n");
  EXPECT_TRUE(c.flag);
  EXPECT_EQ(c.count, -7);
  EXPECT_EQ(c.wide, std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(c.seed, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(c.name, "two words");
  EXPECT_EQ(c.shape, Shape::square);
  EXPECT_THAT(c.words, testing::ElementsAre("a", "b c", "1"));
  EXPECT_EQ(c.inner.rate, 1e-6);  // cases.md 49
  EXPECT_THAT(c.inner.curve, testing::ElementsAre(1, .5, -2500));
  EXPECT_EQ(c.inner.limit, 9);
}

TEST(Config, NullEmptiesAnOptional) { EXPECT_EQ(parse("inner: {limit: 4}", {"inner.limit=null"}).inner.limit, std::nullopt); }

TEST(Config, UnknownKeysSuggestTheNearest) {
  // cases.md 49
  EXPECT_THAT(
      error_in<Whole>("optimizer:\n  learnign_rate: 1e-6\n"),
      testing::AllOf(testing::StartsWith("f.yaml:2: unknown key 'learnign_rate' in optimizer"), testing::HasSubstr("did you mean 'lr'?")));
  EXPECT_THAT(error_in<Whole>("optimiser:\n  lr: 1\n"),
              testing::HasSubstr("unknown key 'optimiser' at the top; did you mean 'optimizer'?"));
  EXPECT_THAT(error_in<Whole>("optimizer:\n  weigth_decay: 0\n"), testing::HasSubstr("did you mean 'weight_decay'?"));
  EXPECT_THAT(error_in<Whole>("optimizer:\n  max_grad_norm: 1\n"), testing::HasSubstr("did you mean 'grad_clip'?"));
  EXPECT_THAT(error_in<Whole>("top_p: 1\n"), testing::HasSubstr("did you mean 'sampling.top_p'?"));
  EXPECT_THAT(message_of("inner: {zzzzzzzzz: 1}"), testing::HasSubstr("known: rate, curve, limit"));
}

TEST(Config, DuplicateKeysAreRefusedWithBothLines) {
  EXPECT_EQ(message_of("count: 1\nflag: true\ncount: 2\n"), "f.yaml:3: duplicate key 'count', first given at f.yaml:1");
  EXPECT_EQ(message_of("inner:\n  rate: 1\n  rate: 1\n"), "f.yaml:3: duplicate key 'rate', first given at f.yaml:2");
  EXPECT_EQ(message_of("inner: {rate: 1}\ninner: {limit: 1}\n"), "f.yaml:2: duplicate key 'inner', first given at f.yaml:1");
}

TEST(Config, WrongTypesSayWhatWasFoundAndWhatIsRight) {
  EXPECT_EQ(message_of("flag: 1"), "f.yaml:1: flag: found '1'; true or false is right");
  EXPECT_EQ(message_of("flag: yes"), "f.yaml:1: flag: found 'yes'; true or false is right");
  EXPECT_EQ(message_of("\ncount: 1.0"), "f.yaml:2: count: found '1.0'; a whole number from -2147483648 to 2147483647 is right");
  EXPECT_THAT(message_of("count: 2147483648"), testing::HasSubstr("found '2147483648'; a whole number"));
  EXPECT_THAT(message_of("count: 1e3"), testing::HasSubstr("found '1e3'"));
  EXPECT_THAT(message_of("count: '5'"), testing::HasSubstr("found the text '5'"));
  EXPECT_THAT(message_of("count: [1]"), testing::HasSubstr("found a list"));
  EXPECT_THAT(message_of("count: {a: 1}"), testing::HasSubstr("found a section of keys"));
  EXPECT_THAT(message_of("count:"), testing::HasSubstr("found empty"));
  EXPECT_THAT(message_of("seed: -1"), testing::HasSubstr("a whole number from 0 to 18446744073709551615 is right"));
  EXPECT_THAT(message_of("inner: {rate: fast}"), testing::HasSubstr("inner.rate: found 'fast'; a number such as 0.5 or 1e-6 is right"));
  EXPECT_THAT(message_of("inner: {rate: nan}"), testing::HasSubstr("found 'nan'"));
  EXPECT_THAT(message_of("inner: {rate: .inf}"), testing::HasSubstr("found '.inf'"));
  EXPECT_THAT(message_of("inner: {rate: 1e999}"), testing::HasSubstr("found '1e999'"));
  EXPECT_THAT(message_of("inner: {curve: 1}"), testing::HasSubstr("a list such as [a, b] is right"));
  EXPECT_THAT(message_of("inner:\n  curve:\n    - 1\n    - x\n"), testing::StartsWith("f.yaml:4: inner.curve: found 'x'"));
  EXPECT_EQ(message_of("shape: sqare"), "f.yaml:1: shape: found 'sqare'; round or square is right (did you mean 'square'?)");
  EXPECT_THAT(message_of("inner: 3"), testing::HasSubstr("inner is a section of keys; found '3'"));
  EXPECT_THAT(message_of("- 3"), testing::HasSubstr("a configuration is a section of keys; found a list"));
}

TEST(Config, MalformedYamlHasALine) {
  EXPECT_THAT(message_of("a: [1\nb: 2\n"), testing::StartsWith("f.yaml:"));
  EXPECT_THAT(message_of("a: &x 1\nb: *x\n"), testing::HasSubstr("anchors"));
  EXPECT_THAT(message_of("count: !!int 3\n"), testing::HasSubstr("tags"));
  EXPECT_THAT(message_of("? [a]\n: 1\n"), testing::HasSubstr("a key must be plain text"));
  EXPECT_THAT(message_of("count: 1\n---\ncount: 2\n"), testing::HasSubstr("several YAML documents"));
  EXPECT_THAT(message_of("count: 1\nname: \xFF\n"), testing::HasSubstr("f.yaml:2: not UTF-8"));
  EXPECT_THAT(message_of(std::string(100000, '[')), testing::StartsWith("f.yaml:1: "));
}

TEST(Config, OverridesWinAndAreCheckedAlike) {
  const Everything c = parse("count: 1\ninner:\n  rate: 1\n", {"count=5", "inner.rate=1e-3", "words=[x, y]", "inner.rate=2", "name="});
  EXPECT_EQ(c.count, 5);
  EXPECT_EQ(c.inner.rate, 2);
  EXPECT_EQ(c.name, "");
  EXPECT_THAT(c.words, testing::ElementsAre("x", "y"));
  EXPECT_EQ(message_of("", {"inner.raet=1"}), "--set inner.raet: unknown key 'raet' in inner; did you mean 'rate'?");
  EXPECT_EQ(message_of("", {"count=x"}), "--set count: count: found 'x'; a whole number from -2147483648 to 2147483647 is right");
  EXPECT_THAT(message_of("", {"count"}), testing::HasSubstr("not of the form key=value"));
  EXPECT_THAT(message_of("", {"=3"}), testing::HasSubstr("not of the form key=value"));
  EXPECT_THAT(message_of("", {"count.x=3"}), testing::HasSubstr("found a section of keys"));
  EXPECT_THAT(message_of("", {".count=3"}), testing::HasSubstr("unknown key ''"));
}

TEST(Config, PrintedConfigLoadsBackToTheSame) {
  Everything c;
  c.flag = true;
  c.wide = std::numeric_limits<std::int64_t>::min();
  c.seed = std::numeric_limits<std::uint64_t>::max();
  c.shape = Shape::square;
  c.words = {"",    "true", "null", "~",   "1",          "1e3", "a: b", "- x", "\"q\" 'r' \\", "line\nbreak\ttab",
             "#no", "é✓",   "[a]",  "x,y", "plain-word", "\x7f"};
  c.inner = {.rate = 0.1 + 0.2, .curve = {1e-300, 5e-324, -0.0, 1.7976931348623157e308, 3}, .limit = -1};
  const std::string text = print_config(c);
  EXPECT_EQ(parse_config<Everything>(text, "printed"), c) << text;
  EXPECT_THAT(text, testing::HasSubstr("# round or square"));
  for (const std::string& word : c.words) {
    Everything one;
    one.name = word;
    EXPECT_EQ(parse_config<Everything>(print_config(one), "printed").name, word);
  }
  EXPECT_EQ(parse_config<Everything>(print_config(Everything{}), "printed"), Everything{});
}

TEST(Config, JsonKeepsOrderAndTypes) {
  EXPECT_EQ(config_json(Everything{}).dump(), R"({"flag":false,"count":3,"wide":0,"seed":0,"name":"","shape":"round","words":[],)"
                                              R"("inner":{"rate":0.5,"curve":[],"limit":null},"threads":0})");
}

TEST(Config, DifferencesAndHashKnowScopes) {
  Everything a, b;
  b.threads = 8;
  EXPECT_EQ(config_hash(a), config_hash(b));
  ASSERT_EQ(differing_keys(a, b).size(), 1u);
  EXPECT_EQ(differing_keys(a, b)[0].scope, KeyScope::execution);
  b.inner.rate = 0.25;
  EXPECT_NE(config_hash(a), config_hash(b));
  const auto differences = differing_keys(a, b);
  ASSERT_EQ(differences.size(), 2u);
  EXPECT_EQ(differences[0].key, "inner.rate");
  EXPECT_EQ(differences[0].a, "0.5");
  EXPECT_EQ(differences[0].b, "0.25");
  EXPECT_EQ(hash_text(0xAB), "00000000000000ab");
  // A section's scope covers its keys.
  Whole c, d;
  d.execution.threads = 3;
  EXPECT_EQ(config_hash(c), config_hash(d));
}

TEST(Config, HashIsThatOfTheChangedKeysAlone) {
  // Frozen: a change of this value would make every earlier run look different.
  Everything c;
  EXPECT_EQ(hash_text(config_hash(c)), "cbf29ce484222325");
  c.count = 4;
  EXPECT_EQ(hash_text(config_hash(c)), "6ea3f24300b8eee5");
}

TEST(Config, BaseIsAppliedFirstAndCyclesAreRefused) {
  const test::TempFolder folder;
  write_file(folder / "a.yaml", "count: 1\ninner: {rate: 7, limit: 3}\n");
  write_file(folder / "b.yaml", "base: a.yaml\ncount: 2\ninner: {rate: 8}\n");
  const auto c = load_config<Everything>(folder / "b.yaml");
  EXPECT_EQ(c.count, 2);
  EXPECT_EQ(c.inner.rate, 8);
  EXPECT_EQ(c.inner.limit, 3);
  write_file(folder / "c.yaml", "base: d.yaml\n");
  write_file(folder / "d.yaml", "base: c.yaml\n");
  EXPECT_THROW(load_config<Everything>(folder / "c.yaml"), UsageError);
  EXPECT_THROW(load_config<Everything>(folder / "missing.yaml"), Error);
}

TEST(ModelYaml, EveryShippedShapeLoads) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(test::source_dir) + "/configs/models")) {
    EXPECT_NO_THROW(read_model_yaml(entry.path())) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 3);
  const auto count = [](const char* file, int vocab) {
    ModelConfig model = read_model_yaml(std::string(test::source_dir) + "/configs/models/" + file);
    if (model.vocab_size == 0) model.vocab_size = vocab;
    return double(ParameterList(model).parameter_count());
  };
  EXPECT_NEAR(count("qwen3-25m.yaml", 0), 25.7e6, 0.05e6);
  EXPECT_NEAR(count("addition-167k.yaml", 14), 167e3, 1e3);
  EXPECT_NEAR(count("digit-0.8m.yaml", 15), 0.8e6, 0.02e6);
}

TEST(ModelYaml, BadShapesAreRefusedByName) {
  const test::TempFolder folder;
  const std::filesystem::path file = folder / "bad_shape.yaml";
  const auto error = [&](const char* text) -> std::string {
    write_file(file, text);
    try {
      read_model_yaml(file);
    } catch (const UsageError& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_THAT(error("hidden_size: 64\nintermediate_size: 8\nlayers: 1\nheads: 4\nkv_heads: 3\nmax_positions: 8\n"),
              testing::HasSubstr("must be a multiple"));  // cases.md 44
  EXPECT_THAT(error("family: gpt2\n"), testing::HasSubstr("qwen3, qwen2 or llama"));
  EXPECT_THAT(error("num_hidden_layers: 3\n"), testing::HasSubstr("did you mean 'layers'?"));
  EXPECT_THROW(find_model_yaml("no-such-model"), UsageError);
}

}  // namespace
}  // namespace plumb
