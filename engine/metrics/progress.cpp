#include "engine/metrics/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <string_view>

namespace plumb {
namespace {

/// Convention of terminals (no-color.org), not configuration of the engine.
bool environment_is(const char* name, std::string_view value) {
  const char* found = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing here sets the environment
  return found != nullptr && (value.empty() ? *found != '\0' : found == value);
}

std::size_t terminal_columns(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

}  // namespace

bool has_colours(int fd) { return ::isatty(fd) == 1 && !environment_is("TERM", "dumb") && !environment_is("NO_COLOR", ""); }

std::string format_duration(double seconds) {
  const auto s = std::int64_t(std::llround(std::max(0.0, seconds)));
  if (s >= 3600) return fmt::format("{}h{:02}m", s / 3600, s % 3600 / 60);
  if (s >= 60) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}s", s);
}

std::string status_text(std::int64_t step, std::int64_t total, const MetricSet& metrics, double seconds_per_step) {
  std::string text = total > 0 ? fmt::format("step {}/{}", step, total) : fmt::format("step {}", step);
  if (step < 0) text = fmt::format("warm start, {} to go", -step);
  const auto add = [&](const char* key, const char* format) {
    if (metrics.find(key) == nullptr) return false;
    text += "  " + fmt::format(fmt::runtime(format), metrics.value(key));
    return true;
  };
  add("reward/mean", "reward {:.3f}");
  add("loss", "loss {:.4f}");
  add("warm_start/loss", "loss {:.4f}");
  add("mismatch/abs_logp_diff_mean", "mismatch {:.2g}");
  add("time/tokens_per_s", "{:.0f} tok/s");
  add("time/peak_percent", "{:.0f}% of peak");
  if (seconds_per_step > 0 && total > step) text += "  ETA " + format_duration(seconds_per_step * double(total - step));
  return text;
}

Progress::Progress(int fd, bool quiet, std::int64_t total_steps)
    : fd_(fd),
      quiet_(quiet),
      terminal_(::isatty(fd) == 1 && !environment_is("TERM", "dumb")),
      colour_(has_colours(fd)),
      total_(total_steps),
      last_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (line_open_) put("\n");
}

void Progress::put(const std::string& text) const {
  // What cannot be shown is no reason to stop a run.
  if (::write(fd_, text.data(), text.size()) < 0) return;
}

void Progress::step(std::int64_t step, const MetricSet& metrics) {
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - last_).count();
  last_ = now;
  seconds_per_step_ = seconds_per_step_ > 0 ? 0.9 * seconds_per_step_ + 0.1 * seconds : seconds;
  if (quiet_) return;
  std::string text = status_text(step, total_, metrics, seconds_per_step_);
  if (!terminal_) return put(text + "\n");
  text = text.substr(0, terminal_columns(fd_) - 1);
  put("\r\x1b[K" + (colour_ ? "\x1b[1m" + text + "\x1b[0m" : text));
  line_open_ = true;
}

void Progress::message(const std::string& text) {
  if (quiet_) return;
  put((line_open_ ? "\r\x1b[K" : "") + text + "\n");
  line_open_ = false;
}

}  // namespace plumb
