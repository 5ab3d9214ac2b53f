#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nmmintrin.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <random>

#include "engine/metrics/interrupt.h"
#include "engine/metrics/metric.h"
#include "engine/metrics/progress.h"
#include "engine/metrics/run_folder.h"
#include "engine/metrics/run_log.h"
#include "engine/metrics/tensorboard.h"
#include "kernels/core/error.h"
#include "model/files/files.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_folder.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;
using test::error_of;

TEST(Metric, HalvesMerge) {
  // cases.md 50
  Metric mean{10, 10};
  mean.merge({0, 90});
  EXPECT_DOUBLE_EQ(mean.value(), .1);
  Metric max{3, 1, MetricReduction::max}, min{3, 1, MetricReduction::min};
  max.merge({7, 1, MetricReduction::max});
  max.merge({-1, 1, MetricReduction::max});
  min.merge({7, 1, MetricReduction::min});
  min.merge({-1, 1, MetricReduction::min});
  EXPECT_EQ(max.value(), 7);
  EXPECT_EQ(min.value(), -1);
  EXPECT_THROW(max.merge(min), Error);
}

TEST(Metric, NanIsSeen) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto reduction : {MetricReduction::max, MetricReduction::min}) {
    Metric first{nan, 1, reduction}, second{1, 1, reduction};
    first.merge({1, 1, reduction});
    second.merge({nan, 1, reduction});
    EXPECT_TRUE(std::isnan(first.value()));
    EXPECT_TRUE(std::isnan(second.value()));
  }
  EXPECT_TRUE(std::isnan(Metric{}.value()));
}

TEST(Metric, SetKeepsOrderAndMerges) {
  MetricSet a, b;
  a.mean("z", 1, 2);
  a.max("a", 5);
  b.mean("z", 3, 2);
  b.set("new", 4);
  a.merge(b);
  a.set("new", 9);
  ASSERT_EQ(a.all().size(), 3u);
  EXPECT_EQ(a.all()[0].first, "z");
  EXPECT_EQ(a.value("z"), 1);
  EXPECT_EQ(a.value("new"), 9);
  EXPECT_TRUE(std::isnan(a.value("missing")));
}

/// A second implementation, by the instruction.
std::uint32_t crc32c_of(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = _mm_crc32_u8(crc, static_cast<unsigned char>(c));
  return ~crc;
}

TEST(TensorBoard, Crc32cIsTheInstructions) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  std::mt19937 random(1);
  for (int length = 0; length < 300; ++length) {
    std::string text(std::size_t(length), 0);
    for (char& c : text) c = char(random());
    EXPECT_EQ(crc32c(text), crc32c_of(text));
  }
}

struct EventFields {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string version;
  std::vector<std::pair<std::string, float>> scalars;
};

/// Calls f(field, wire type, integer or fixed value, bytes) for every field of a protocol buffer message.
template <class F>
void for_each_field(std::string_view message, F&& f) {
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= std::uint64_t(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  while (at < message.size()) {
    const std::uint64_t tag = varint();
    std::uint64_t value = 0;
    std::string_view bytes;
    switch (tag & 7) {
      case 0: value = varint(); break;
      case 1: std::memcpy(&value, message.data() + at, 8), at += 8; break;
      case 2: value = varint(), bytes = message.substr(at, value), at += value; break;
      case 5: std::memcpy(&value, message.data() + at, 4), at += 4; break;
      default: FAIL() << "wire type " << (tag & 7);
    }
    f(int(tag >> 3), value, bytes);
  }
}

std::vector<EventFields> read_events(std::string_view file) {
  std::vector<EventFields> events;
  const auto masked = [](std::string_view bytes) {
    const std::uint32_t crc = crc32c_of(bytes);
    return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
  };
  while (!file.empty()) {
    std::uint64_t length = 0;
    std::uint32_t crc = 0;
    std::memcpy(&length, file.data(), 8);
    std::memcpy(&crc, file.data() + 8, 4);
    EXPECT_EQ(crc, masked(file.substr(0, 8)));
    const std::string_view payload = file.substr(12, length);
    std::memcpy(&crc, file.data() + 12 + length, 4);
    EXPECT_EQ(crc, masked(payload));
    file.remove_prefix(16 + length);
    EventFields& event = events.emplace_back();
    for_each_field(payload, [&](int field, std::uint64_t value, std::string_view bytes) {
      if (field == 1) event.wall_time = std::bit_cast<double>(value);
      if (field == 2) event.step = std::int64_t(value);
      if (field == 3) event.version = bytes;
      if (field != 5) return;
      for_each_field(bytes, [&](int, std::uint64_t, std::string_view one) {
        auto& scalar = event.scalars.emplace_back();
        for_each_field(one, [&](int f, std::uint64_t v, std::string_view b) {
          if (f == 1) scalar.first = b;
          if (f == 2) scalar.second = std::bit_cast<float>(std::uint32_t(v));
        });
      });
    });
  }
  return events;
}

MetricSet metrics_of(std::int64_t step) {
  MetricSet metrics;
  metrics.mean("reward/mean", double(step), 3);
  metrics.set("mismatch/abs_logp_diff_mean", 0);
  metrics.set("weird", step % 2 ? std::numeric_limits<double>::quiet_NaN() : -std::numeric_limits<double>::infinity());
  return metrics;
}

constexpr RunLogOptions kOptions = {.config_hash = 1, .rollout_numerics = 2, .update_numerics = 3, .quiet = true, .total_steps = 10};

TEST(RunLog, LinesAreOrderedStrictJsonThatReadsBack) {
  const test::TempFolder folder;
  RunLog log(folder, kOptions);
  log.step(1, metrics_of(1));
  EXPECT_EQ(read_file(folder / "metrics.jsonl"),
            R"({"step":1,"config":"0000000000000001","numerics":{"rollout":"0000000000000002","update":"0000000000000003"},)"
            R"("reward/mean":0.3333333333333333,"mismatch/abs_logp_diff_mean":0.0,"weird":"NaN"})"
            "\n");
  const auto line = parse_json(read_file(folder / "metrics.jsonl"), "line");
  EXPECT_EQ(line["reward/mean"].get<double>(), 1.0 / 3);
}

TEST(RunLog, EventsAreReadByAnotherReader) {
  const test::TempFolder folder;
  RunLog log(folder, kOptions);
  for (int step = 1; step <= 300; step += 100) log.step(step, metrics_of(step));
  const auto events = read_events(read_file(folder / "events.out.tfevents.plumb"));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_EQ(events[3].step, 201);
  EXPECT_GT(events[3].wall_time, 1.6e9);
  ASSERT_EQ(events[3].scalars.size(), 3u);
  EXPECT_EQ(events[3].scalars[0].first, "reward/mean");
  EXPECT_EQ(events[3].scalars[0].second, 67.0f);
  EXPECT_TRUE(std::isnan(events[3].scalars[2].second));
}

TEST(RunLog, ResumedFilesEqualThoseOfAStraightRun) {
  const test::TempFolder straight, resumed;
  const auto write = [](const fs::path& folder, std::int64_t truncate, int from, int to) {
    RunLog log(folder, kOptions);
    log.truncate_after(truncate);
    for (int step = from; step <= to; ++step) {
      log.step(step, metrics_of(step));
      log.sample(step, {{"prompt", "1+1="}, {"answer", "2"}});
    }
  };
  write(straight, 0, 1, 6);
  write(resumed, 0, 1, 5);
  for (const char* name : {"metrics.jsonl", "samples.jsonl"}) {  // a kill in the middle of a line
    std::ofstream(resumed / name, std::ios::app) << R"({"step":6,"rew)";
  }
  std::ofstream(resumed / "events.out.tfevents.plumb", std::ios::app) << "torn record";
  write(resumed, 3, 4, 6);
  for (const char* name : {"metrics.jsonl", "samples.jsonl"}) EXPECT_EQ(read_file(straight / name), read_file(resumed / name));
  const auto a = read_events(read_file(straight / "events.out.tfevents.plumb"));
  const auto b = read_events(read_file(resumed / "events.out.tfevents.plumb"));
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].step, b[i].step);
}

TEST(RunLog, SamplesSurviveTextThatIsNotUtf8) {
  const test::TempFolder folder;
  RunLog log(folder, kOptions);
  log.sample(2, {{"answer", "\xF0\x9F"}});
  EXPECT_EQ(parse_json(read_file(folder / "samples.jsonl"), "line")["step"], 2);
}

TEST(RunLog, MessagesGoToTheLog) {
  const test::TempFolder folder;
  RunLog log(folder, kOptions);
  log.message("checkpoint saved");
  EXPECT_THAT(read_file(folder / "log.txt"), testing::MatchesRegex("....-..-..T..:..:..Z checkpoint saved\n"));
}

TEST(Progress, StatusShowsWhatIsThere) {
  MetricSet metrics = metrics_of(1);
  EXPECT_EQ(status_text(1, 10, metrics, 0), "step 1/10  reward 0.333  mismatch 0");
  metrics.set("time/tokens_per_s", 1234.4);
  metrics.set("time/peak_percent", 45);
  EXPECT_EQ(status_text(1, 10, metrics, 10), "step 1/10  reward 0.333  mismatch 0  1234 tok/s  45% of peak  ETA 1m30s");
  MetricSet sft;
  sft.set("loss", 1.5);
  EXPECT_EQ(status_text(10, 10, sft, 10), "step 10/10  loss 1.5000");
  EXPECT_EQ(status_text(-3, 10, sft, 0), "warm start, 3 to go  loss 1.5000");
  EXPECT_EQ(format_duration(3725), "1h02m");
  EXPECT_EQ(format_duration(59.4), "59s");
}

/// What a Progress writes to a pipe.
std::string piped(bool quiet) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  {
    Progress progress(ends[1], quiet, 10);
    progress.step(1, metrics_of(1));
    progress.message("hello");
    progress.step(2, metrics_of(2));
  }
  ::close(ends[1]);
  std::string text(4096, 0);
  const auto n = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  text.resize(std::size_t(std::max<ssize_t>(n, 0)));
  return text;
}

TEST(Progress, PipesGetPlainLines) {
  const std::string text = piped(false);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(piped(true), "");
}

TEST(Progress, TerminalsGetOneLineThatRedraws) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || ::grantpt(master) != 0 || ::unlockpt(master) != 0) GTEST_SKIP() << "no pseudo-terminal here";
  const int terminal = ::open(::ptsname(master), O_RDWR | O_NOCTTY);  // NOLINT(concurrency-mt-unsafe)
  ASSERT_GE(terminal, 0);
  ::setenv("TERM", "xterm", 1);
  const auto text_with = [&](const char* no_color) {
    no_color ? ::setenv("NO_COLOR", no_color, 1) : ::unsetenv("NO_COLOR");
    {
      Progress progress(terminal, false, 10);
      progress.step(1, metrics_of(1));
      progress.step(2, metrics_of(2));
    }
    std::string text;  // what the terminal passes on may come in pieces: the line ends it
    while (text.find('\n') == std::string::npos) {
      char piece[4096];
      const ssize_t n = ::read(master, piece, sizeof piece);
      if (n <= 0) break;
      text.append(piece, std::size_t(n));
    }
    return text;
  };
  const std::string coloured = text_with(nullptr), plain = text_with("1");
  EXPECT_EQ(std::count(coloured.begin(), coloured.end(), '\n'), 1);
  EXPECT_THAT(coloured, testing::HasSubstr("\x1b[1mstep 2/10"));
  EXPECT_THAT(plain, testing::HasSubstr("\r\x1b[Kstep 2/10"));
  EXPECT_THAT(plain, testing::Not(testing::HasSubstr("\x1b[1m")));
  ::unsetenv("NO_COLOR");
  ::close(terminal);
  ::close(master);
}

TEST(RunFolder, CreateRefusesWhatIsNotEmpty) {
  const test::TempFolder folder;
  std::ofstream(folder / "mine.txt") << "x";
  EXPECT_THAT(error_of([&] { RunFolder run(folder, RunFolder::Mode::create); }),
              testing::HasSubstr("is not empty; continue it with --resume"));
  EXPECT_FALSE(fs::exists(folder / "lock"));
  EXPECT_THAT(error_of([&] { RunFolder run(folder / "mine.txt", RunFolder::Mode::create); }), testing::HasSubstr("is not a folder"));
  const auto deep = folder / "a/b";
  { RunFolder run(deep, RunFolder::Mode::create); }
  { RunFolder run(deep, RunFolder::Mode::create); }  // a lock alone is as good as empty
  EXPECT_THAT(error_of([&] { RunFolder run(folder / "mine.txt/x", RunFolder::Mode::create); }), testing::HasSubstr("cannot create"));
}

TEST(RunFolder, ResumeNeedsARun) {
  const test::TempFolder folder;
  EXPECT_THAT(error_of([&] { RunFolder run(folder, RunFolder::Mode::resume); }), testing::HasSubstr("no config.yaml"));
  EXPECT_THAT(error_of([&] { RunFolder run(folder / "no", RunFolder::Mode::resume); }), testing::HasSubstr("no such run folder"));
  {
    RunFolder run(folder / "a", RunFolder::Mode::create);
    run.write_config("x: 1\n");
  }
  RunFolder again(folder / "a", RunFolder::Mode::resume);
  EXPECT_EQ(read_file(again.config_file()), "x: 1\n");
}

TEST(RunFolder, OneProcessAtATime) {
  const test::TempFolder parent;
  const auto folder = parent / "run";
  {
    RunFolder first(folder, RunFolder::Mode::create);
    first.write_config("");
    EXPECT_THAT(error_of([&] { RunFolder second(folder, RunFolder::Mode::resume); }), testing::HasSubstr("in use by another process"));
    EXPECT_THAT(error_of([&] { RunFolder second(folder, RunFolder::Mode::create); }), testing::HasSubstr("in use by another process"));
  }
  RunFolder third(folder, RunFolder::Mode::resume);
}

TEST(Interrupt, SecondSignalExits) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    install_interrupt_handlers();
    if (interrupt_requested()) ::_exit(1);
    ::raise(SIGTERM);
    if (!interrupt_requested()) ::_exit(2);
    ::raise(SIGINT);
    ::_exit(3);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
}

}  // namespace
}  // namespace plumb
