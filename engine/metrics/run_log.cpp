#include "engine/metrics/run_log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <ctime>
#include <string_view>
#include <system_error>

#include "engine/config/config.h"
#include "engine/metrics/progress.h"
#include "engine/metrics/tensorboard.h"
#include "kernels/core/error.h"
#include "model/files/files.h"

namespace plumb {
namespace {

/// A file that grows by whole pieces: one write(2) each, so that a killed process loses nothing that was logged.
class AppendFile {
 public:
  AppendFile() = default;
  explicit AppendFile(std::filesystem::path path) : path_(std::move(path)) {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd_ < 0) fail("open");
  }
  ~AppendFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  AppendFile(AppendFile&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  AppendFile& operator=(AppendFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(fd_, other.fd_);
    return *this;
  }

  explicit operator bool() const { return fd_ >= 0; }
  void append(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t n = ::write(fd_, text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("write");
      text.remove_prefix(std::size_t(n));
    }
  }
  std::string contents() const { return read_file(path_); }
  void cut(std::size_t size) const {
    if (::ftruncate(fd_, off_t(size)) != 0) fail("truncate");
  }

 private:
  [[noreturn]] void fail(const char* doing) const {
    throw Error(fmt::format("{}: cannot {}: {}", path_.string(), doing, std::generic_category().message(errno)));
  }
  std::filesystem::path path_;
  int fd_ = -1;
};

/// Bytes of the whole lines before the first one whose "step" is beyond `step`.
std::size_t lines_prefix(std::string_view text, std::int64_t step) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto end = text.find('\n', at);
    if (end == std::string_view::npos) return at;
    const auto line = nlohmann::json::parse(text.substr(at, end - at), nullptr, false);
    if (!line.is_object() || !line.contains("step") || !line["step"].is_number_integer()) return at;
    if (line["step"].get<std::int64_t>() > step) return at;
    at = end + 1;
  }
  return at;
}

nlohmann::ordered_json number_json(double x) {
  if (std::isnan(x)) return "NaN";
  if (std::isinf(x)) return x > 0 ? "Infinity" : "-Infinity";
  return x;
}

double wall_time() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace

struct RunLog::State {
  RunLogOptions options;
  AppendFile metrics;
  AppendFile samples;
  AppendFile log;
  AppendFile events;
  Progress progress;

  State(const std::filesystem::path& folder, const RunLogOptions& o)
      : options(o),
        metrics(folder / "metrics.jsonl"),
        samples(folder / "samples.jsonl"),
        log(folder / "log.txt"),
        progress(STDOUT_FILENO, o.quiet, o.total_steps) {
    if (!o.tensorboard) return;
    events = AppendFile(folder / "events.out.tfevents.plumb");
    start_events();
  }
  void start_events() const {
    if (events.contents().empty()) events.append(tensorboard_record(tensorboard_version_event(wall_time())));
  }
};

RunLog::RunLog(const std::filesystem::path& folder, const RunLogOptions& options) : state_(std::make_unique<State>(folder, options)) {}
RunLog::~RunLog() = default;

void RunLog::truncate_after(std::int64_t step) {
  state_->metrics.cut(lines_prefix(state_->metrics.contents(), step));
  state_->samples.cut(lines_prefix(state_->samples.contents(), step));
  if (!state_->events) return;
  state_->events.cut(tensorboard_prefix(state_->events.contents(), step));
  state_->start_events();
}

void RunLog::set_numerics(std::uint64_t rollout, std::uint64_t update) {
  state_->options.rollout_numerics = rollout;
  state_->options.update_numerics = update;
}

void RunLog::step(std::int64_t step, const MetricSet& metrics) {
  const RunLogOptions& o = state_->options;
  nlohmann::ordered_json line = {{"step", step},
                                 {"config", hash_text(o.config_hash)},
                                 {"numerics", {{"rollout", hash_text(o.rollout_numerics)}, {"update", hash_text(o.update_numerics)}}}};
  for (const auto& [name, metric] : metrics.all()) line[name] = number_json(metric.value());
  state_->metrics.append(line.dump() + "\n");
  if (state_->events) state_->events.append(tensorboard_record(tensorboard_scalars_event(wall_time(), step, metrics)));
  state_->progress.step(step, metrics);
}

void RunLog::sample(std::int64_t step, const nlohmann::ordered_json& sample) {
  nlohmann::ordered_json line = {{"step", step}};
  line.update(sample);
  // Sampled text need not be UTF-8: what is not becomes U+FFFD; the token ids beside it are exact.
  state_->samples.append(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void RunLog::message(const std::string& text) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  state_->log.append(fmt::format("{:%Y-%m-%dT%H:%M:%SZ} {}\n", utc, text));
  state_->progress.message(text);
}

}  // namespace plumb
