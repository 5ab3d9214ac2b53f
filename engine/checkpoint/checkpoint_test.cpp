#include "engine/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <thread>

#include "kernels/core/error.h"
#include "model/files/files.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_folder.h"

namespace plumb {

struct Moments {
  Buffer m;
  std::int64_t steps = 0;
};
template <class V>
void visit_state(V& v, Moments& s) {
  v.buffer("optimizer/m", s.m, std::int64_t(s.m.size() / 4), DType::f32);
  v.value("steps", s.steps);
}

struct Odds {
  bool flag = false;
  std::int32_t small = 0;
  std::uint32_t word = 0;
  std::int64_t wide = 0;
  std::uint64_t seed = 0;
  double x = 0;
  std::string text;
  std::vector<std::int64_t> list;
  std::vector<std::uint64_t> seeds;
  std::vector<double> curve;
  std::vector<std::string> names;
};
template <class V>
void visit_state(V& v, Odds& s) {
  v.value("flag", s.flag);
  v.value("small", s.small);
  v.value("word", s.word);
  v.value("wide", s.wide);
  v.value("seed", s.seed);
  v.value("x", s.x);
  v.value("text", s.text);
  v.value("list", s.list);
  v.value("seeds", s.seeds);
  v.value("curve", s.curve);
  v.value("names", s.names);
}

namespace {

namespace fs = std::filesystem;
using test::error_of;

constexpr std::size_t kFloats = 20'000;

Moments moments_of(std::int64_t step, std::size_t floats = kFloats) {
  Moments s{.m = Buffer(floats * 4), .steps = step};
  std::vector<float> values(floats);
  for (std::size_t i = 0; i < floats; ++i) values[i] = float(step) + float(i) / 1024;
  s.m.write(values.data(), 0, floats * 4);
  return s;
}

std::vector<float> floats_of(const Moments& s) {
  std::vector<float> values(s.m.size() / 4);
  s.m.read(values.data(), 0, s.m.size());
  return values;
}

fs::path save(CheckpointStore& store, std::int64_t step, std::optional<double> metric = std::nullopt, std::size_t floats = kFloats) {
  Moments state = moments_of(step, floats);
  return store.save(
      step,
      [&](CheckpointWriter& writer) {
        writer.save("trainer", state);
        write_file(writer.model_folder() / "config.json", "{}");
      },
      metric);
}

void expect_whole(const fs::path& checkpoint, std::int64_t step) {
  const CheckpointReader reader(checkpoint);
  EXPECT_EQ(reader.manifest().step, step);
  Moments state = moments_of(0);
  reader.load("trainer", state);
  EXPECT_EQ(state.steps, step);
  EXPECT_EQ(floats_of(state), floats_of(moments_of(step)));
}

std::vector<std::int64_t> steps_of(const CheckpointStore& store) {
  std::vector<std::int64_t> steps;
  for (const auto& [step, _] : store.list()) steps.push_back(step);
  return steps;
}

const CheckpointIdentity kIdentity = {.config_hash = 0xABC, .rollout_numerics = 1, .update_numerics = ~std::uint64_t(0)};

TEST(Checkpoint, EveryValueReturnsExactly) {
  const test::TempFolder folder;
  CheckpointStore store(folder, kIdentity, {});
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  Odds a = {.flag = true,
            .small = -5,
            .word = ~0u,
            .wide = std::numeric_limits<std::int64_t>::min(),
            .seed = ~std::uint64_t(0),
            .x = 0.1 + 0.2,
            .text = "a \"b\"\n é",
            .list = {1, -2},
            .seeds = {~std::uint64_t(0), 0},
            .curve = {5e-324, -0.0, inf, -inf, nan, 1.7976931348623157e308, 3},
            .names = {"", "x"}};
  const auto path = store.save(7, [&](CheckpointWriter& writer) { writer.save("odds", a); });
  Odds b;
  const CheckpointReader reader(path);
  reader.load("odds", b);
  EXPECT_TRUE(b.flag);
  EXPECT_EQ(b.small, a.small);
  EXPECT_EQ(b.word, a.word);
  EXPECT_EQ(b.wide, a.wide);
  EXPECT_EQ(b.seed, a.seed);
  EXPECT_EQ(b.x, a.x);
  EXPECT_EQ(b.text, a.text);
  EXPECT_EQ(b.list, a.list);
  EXPECT_EQ(b.seeds, a.seeds);
  ASSERT_EQ(b.curve.size(), a.curve.size());
  for (std::size_t i = 0; i < a.curve.size(); ++i) {
    EXPECT_EQ(std::signbit(b.curve[i]), std::signbit(a.curve[i]));
    EXPECT_TRUE(b.curve[i] == a.curve[i] || (std::isnan(b.curve[i]) && std::isnan(a.curve[i])));
  }
  EXPECT_EQ(b.names, a.names);
  EXPECT_EQ(reader.manifest().identity.config_hash, 0xABCu);
  EXPECT_EQ(reader.manifest().identity.update_numerics, ~std::uint64_t(0));
  EXPECT_EQ(reader.manifest().arithmetic_version, kArithmeticVersion);
}

TEST(Checkpoint, TwoSavesOfOneStateAreEqualFiles) {
  const test::TempFolder a, b;
  CheckpointStore store_a(a, kIdentity, {}), store_b(b, kIdentity, {});
  const auto path_a = save(store_a, 3), path_b = save(store_b, 3);
  for (const char* name : {"manifest.json", "state.json", "optimizer.safetensors", "model/config.json"}) {
    EXPECT_EQ(read_file(path_a / name), read_file(path_b / name)) << name;
  }
}

TEST(Checkpoint, LatestPointsAtTheNewestAndOldOnesGo) {
  const test::TempFolder folder;
  CheckpointStore store(folder, kIdentity, {.keep = 2});
  for (const int step : {5, 10, 15}) save(store, step);
  EXPECT_THAT(steps_of(store), testing::ElementsAre(10, 15));
  EXPECT_EQ(fs::read_symlink(folder / "latest"), "checkpoints/step-000015");
  expect_whole(folder / "latest", 15);
  EXPECT_EQ(store.newest().path, folder / "checkpoints/step-000015");
}

TEST(Checkpoint, TheBestStays) {
  const test::TempFolder folder;
  CheckpointStore store(folder, kIdentity, {.keep = 1, .keep_best = "eval/greedy"});
  save(store, 1, .2);
  save(store, 2, .7);
  save(store, 3);
  save(store, 4, .7);  // not better: the earlier one stays
  EXPECT_THAT(steps_of(store), testing::ElementsAre(2, 4));
  CheckpointStore again(folder, kIdentity, {.keep = 1, .keep_best = "eval/greedy"});
  save(again, 5, .8);
  EXPECT_THAT(steps_of(again), testing::ElementsAre(5));
  save(again, 6, std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(steps_of(again), testing::ElementsAre(5, 6));
}

TEST(Checkpoint, SavingAStepAgainReplacesIt) {
  const test::TempFolder folder;
  CheckpointStore store(folder, kIdentity, {});
  const auto path = save(store, 4);
  std::ofstream(path / "state.json", std::ios::trunc) << "damaged";
  save(store, 4);
  expect_whole(path, 4);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "checkpoints"), {}), 1);
}

TEST(Checkpoint, DamageIsRefusedByName) {
  const test::TempFolder folder;
  CheckpointStore store(folder, kIdentity, {.keep = 5});
  const auto path = save(store, 1);
  const auto tensors = path / "optimizer.safetensors";
  const std::string good = read_file(tensors), manifest = read_file(path / "manifest.json");
  const auto fault = [&] { return error_of([&] { CheckpointReader reader(path); }); };
  const auto rewrite = [](const fs::path& file, const std::string& text) { std::ofstream(file, std::ios::trunc) << text; };
  EXPECT_EQ(fault(), "no error");
  rewrite(tensors, good.substr(0, good.size() - 1));
  EXPECT_THAT(fault(), testing::AllOf(testing::HasSubstr("optimizer.safetensors: has"), testing::HasSubstr("were written")));
  rewrite(tensors, good + "x");  // cases.md 37
  EXPECT_THAT(fault(), testing::HasSubstr("optimizer.safetensors: has"));
  std::string flipped = good;
  flipped[flipped.size() / 2] ^= 1;
  rewrite(tensors, flipped);
  EXPECT_THAT(fault(), testing::HasSubstr("optimizer.safetensors: its checksum is wrong"));
  fs::remove(tensors);
  EXPECT_THAT(fault(), testing::HasSubstr("optimizer.safetensors: missing"));
  EXPECT_THAT(error_of([&] { (void)store.newest(); }), testing::StartsWith("no whole checkpoint: damaged checkpoint: "));
  rewrite(tensors, good);
  for (const char* bad : {"", "{", "[]", "{\"format\": 2}", "{\"format\": 1}"}) {
    rewrite(path / "manifest.json", bad);
    EXPECT_THAT(fault(), testing::HasSubstr("manifest.json")) << bad;
  }
  std::string outside = manifest;
  outside.replace(outside.find("state.json"), 10, "../../../x");
  rewrite(path / "manifest.json", outside);
  EXPECT_THAT(fault(), testing::HasSubstr("lies outside the checkpoint"));
  fs::remove(path / "manifest.json");
  EXPECT_THAT(fault(), testing::HasSubstr("is not a whole checkpoint"));
  EXPECT_THAT(error_of([&] { CheckpointReader reader(folder / "nowhere"); }), testing::HasSubstr("nowhere"));
}

TEST(Checkpoint, TheNewestWholeOneWins) {
  const test::TempFolder folder;
  CheckpointStore store(folder, kIdentity, {.keep = 5});
  EXPECT_EQ(store.newest().path, std::nullopt);
  save(store, 1);
  save(store, 2);
  fs::resize_file(folder / "checkpoints/step-000002/state.json", 3);
  const auto found = store.newest();
  EXPECT_EQ(found.path, folder / "checkpoints/step-000001");
  ASSERT_EQ(found.refused.size(), 1u);
  EXPECT_THAT(found.refused[0], testing::HasSubstr("step-000002/state.json"));
}

TEST(Checkpoint, AMissingOptimizerIsAnErrorUnlessAskedFor) {
  // cases.md 34
  const test::TempFolder folder;
  CheckpointStore store(folder, kIdentity, {});
  const auto path = save(store, 9);
  fs::remove(path / "optimizer.safetensors");
  EXPECT_THROW(CheckpointReader reader(path), Error);
  const CheckpointReader reader(path, {"optimizer"});
  Moments state = moments_of(1);
  reader.load("trainer", state);
  EXPECT_EQ(state.steps, 9);
  EXPECT_EQ(floats_of(state), floats_of(moments_of(1)));
}

TEST(Checkpoint, StatesOfOtherShapesAreRefused) {
  const test::TempFolder folder;
  CheckpointStore store(folder, kIdentity, {});
  const CheckpointReader reader(save(store, 1));
  Moments larger = moments_of(0, kFloats + 1);
  EXPECT_THAT(error_of([&] { reader.load("trainer", larger); }), testing::HasSubstr("this run has F32 [20001]"));
  Odds odds;
  EXPECT_THAT(error_of([&] { reader.load("trainer", odds); }), testing::HasSubstr("trainer.flag is missing"));
  EXPECT_THAT(error_of([&] { reader.load("loop", odds); }), testing::HasSubstr("section loop is missing"));
  const nlohmann::ordered_json values = {{"flag", 1}, {"extra", 2}, {"small", 3'000'000'000}};
  LoadVisitor visitor(folder, "s", values, {});
  EXPECT_THAT(error_of([&] { visitor.value("flag", odds.flag); }), testing::HasSubstr("s.flag is not true or false"));
  EXPECT_THAT(error_of([&] { visitor.value("small", odds.small); }), testing::HasSubstr("s.small is not a whole number from"));
  EXPECT_THAT(error_of([&] { visitor.finish(); }), testing::HasSubstr("s.extra is not known"));
}

/// Runs f in a child and returns its wait status. f must end by _exit or a signal.
template <class F>
int in_child(F&& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    f();
    ::_exit(99);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

/// What must hold after any death during a save: every step folder is whole, nothing else remains once a store is opened.
std::int64_t expect_only_whole(const fs::path& folder) {
  CheckpointStore store(folder, kIdentity, {.keep = 1});
  const auto found = store.newest();
  EXPECT_TRUE(found.path);
  EXPECT_TRUE(found.refused.empty());
  std::int64_t last = 0;
  for (const auto& [step, path] : store.list()) {
    expect_whole(path, step);
    last = step;
  }
  for (const auto& entry : fs::directory_iterator(folder / "checkpoints"))
    EXPECT_THAT(entry.path().filename().string(), testing::StartsWith("step-"));
  EXPECT_TRUE(check_checkpoint(folder / "latest").empty());
  return last;
}

TEST(Checkpoint, DeathAtAnyByteLeavesTheLastWholeOne) {
  // cases.md 35: SIGXFSZ ends the child, uncaught, when a file of it reaches the limit.
  const test::TempFolder folder;
  CheckpointStore first(folder, kIdentity, {.keep = 1});
  save(first, 1);
  const std::size_t tensors = fs::file_size(folder / "latest/optimizer.safetensors");
  for (const std::size_t limit : {std::size_t(1), std::size_t(10), std::size_t(100), tensors / 2, tensors - 1, tensors}) {
    const int status = in_child([&] {
      CheckpointStore store(folder, kIdentity, {.keep = 1});
      const rlimit bytes{limit, limit};
      ::setrlimit(RLIMIT_FSIZE, &bytes);
      ::signal(SIGXFSZ, SIG_DFL);
      save(store, 2);
    });
    EXPECT_TRUE(limit == tensors || WIFSIGNALED(status)) << limit;
    EXPECT_EQ(expect_only_whole(folder), WIFSIGNALED(status) ? 1 : 2) << limit;
  }
}

TEST(CheckpointSlow, KilledAtRandomMomentsLeavesWholeOnes) {
  const test::TempFolder folder;
  CheckpointStore first(folder, kIdentity, {.keep = 1});
  save(first, 1);
  std::int64_t last = 1;
  for (int round = 0; round < 12; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      CheckpointStore store(folder, kIdentity, {.keep = 1});
      for (std::int64_t step = last + 1;; ++step) save(store, step);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(3'000 + 17'919 * round % 151'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    const std::int64_t now = expect_only_whole(folder);
    EXPECT_GE(now, last);
    last = now;
  }
}

TEST(Checkpoint, AFailedWriteIsOneLineAndLeavesNothing) {
  const test::TempFolder folder;
  CheckpointStore store(folder, kIdentity, {.keep = 1});
  save(store, 1);
  const int status = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);  // write(2) fails with EFBIG instead
    const rlimit bytes{50'000, 50'000};
    ::setrlimit(RLIMIT_FSIZE, &bytes);
    const std::string error = error_of([&] { save(store, 2); });
    const bool fine =
        error.find("optimizer.safetensors: cannot write: File too large") != std::string::npos && error.find('\n') == std::string::npos;
    ::_exit(fine && std::distance(fs::directory_iterator(folder / "checkpoints"), {}) == 1 ? 0 : 1);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  expect_whole(folder / "latest", 1);
}

TEST(Checkpoint, AFullDiskKeepsThePreviousOne) {
  const test::TempFolder folder;
  if (::mount("plumb", folder.c_str(), "tmpfs", 0, "size=256k") != 0) {
    GTEST_SKIP() << "cannot mount a small tmpfs here (needs root): " << std::strerror(errno);
  }
  {
    CheckpointStore store(folder, kIdentity, {.keep = 2});
    save(store, 1);
    save(store, 2);
    const std::string error = error_of([&] { save(store, 3); });
    EXPECT_THAT(error, testing::HasSubstr("No space left on device"));
    EXPECT_EQ(error.find('\n'), std::string::npos);
    EXPECT_THAT(steps_of(store), testing::ElementsAre(1, 2));
    EXPECT_EQ(std::distance(fs::directory_iterator(folder / "checkpoints"), {}), 2);
    expect_whole(folder / "latest", 2);
  }
  ::umount(folder.c_str());
}

TEST(Checkpoint, AnUnwritableFolderIsOneLine) {
  const test::TempFolder folder;
  std::ofstream(folder / "checkpoints") << "a file";
  EXPECT_THAT(error_of([&] { CheckpointStore store(folder, kIdentity, {}); }), testing::HasSubstr("cannot create"));
  if (::geteuid() == 0) return;  // whom no permission stops
  const test::TempFolder locked;
  fs::create_directory(locked / "checkpoints");
  fs::permissions(locked / "checkpoints", fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_THAT(error_of([&] { CheckpointStore store(locked, kIdentity, {}); }), testing::HasSubstr("cannot write"));
}

}  // namespace
}  // namespace plumb
