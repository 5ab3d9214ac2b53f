#include "rl/cli/options.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <concepts>
#include <filesystem>
#include <optional>

#include "engine/config/config.h"
#include "kernels/core/error.h"
#include "model/files/files.h"
#include "rl/validate_config.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;

template <class T>
std::string right_values(const Range<T>& range) {
  const bool bounded_below = range.low != Range<T>{}.low, bounded_above = range.high != Range<T>{}.high;
  const char* const kind = std::integral<T> ? "a whole number" : "a number";
  if (bounded_above) return fmt::format("{} from {} to {}", kind, range.low, range.high);
  if (bounded_below || std::unsigned_integral<T>) return fmt::format("{} of at least {}", kind, range.low);
  return kind;
}

/// Nothing unless the whole text is a number of this type.
template <class T>
std::optional<T> number_of(const std::string& text) {
  T number{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return number;
}

template <class T>
CLI::Option* add_number_option(CLI::App& app, const std::string& names, T& value, Range<T> range, const std::string& doc) {
  const std::string shown = app.get_name() + ": " + names.substr(0, names.find(','));
  const auto read = [&value, range, shown](const std::string& text) {
    const std::optional<T> number = number_of<T>(text);
    bool right = number && *number >= range.low && *number <= range.high;
    if constexpr (std::floating_point<T>) right = right && std::isfinite(*number);
    if (!right) throw UsageError(fmt::format("{} is {}; {} is right", shown, in_quotes(text), right_values(range)));
    value = *number;
  };
  return app.add_option_function<std::string>(names, read, doc);
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

}  // namespace

CLI::Option* add_number(CLI::App& app, const std::string& names, int& value, Range<int> range, const std::string& doc) {
  return add_number_option(app, names, value, range, doc);
}
CLI::Option* add_number(CLI::App& app, const std::string& names, std::uint64_t& value, Range<std::uint64_t> range, const std::string& doc) {
  return add_number_option(app, names, value, range, doc);
}
CLI::Option* add_number(CLI::App& app, const std::string& names, double& value, Range<double> range, const std::string& doc) {
  return add_number_option(app, names, value, range, doc);
}

void add_threads_option(CLI::App& app, int& threads) {
  const auto read = [&threads, command = app.get_name()](const std::string& text) {
    const std::optional<int> number = number_of<int>(text);
    check_threads(fmt::format("{}: --threads is {}", command, in_quotes(text)), number);
    threads = *number;
  };
  app.add_option_function<std::string>("--threads", read, "compute threads; default (0): one per core")->type_name("N");
}

void add_set_option(CLI::App& app, std::vector<std::string>& assignments, const std::string& doc) {
  app.add_option("--set", assignments, doc)->type_name("KEY=VALUE")->expected(1)->take_all()->allow_extra_args(false);
}

RunConfig read_run_config(const std::string& file, const std::vector<std::string>& sets) {
  auto config = load_config<RunConfig>(file, sets);
  try {
    validate(config);
  } catch (const UsageError& error) {
    constexpr std::string_view kUnnamed = "configuration: ";
    const std::string_view what = error.what();
    throw UsageError(fmt::format("{}: {}", file, what.starts_with(kUnnamed) ? what.substr(kUnnamed.size()) : what));
  }
  return config;
}

void check_model_folder(const std::string& folder) {
  if (folder.empty()) throw UsageError("--model is empty; a Hugging Face folder (config.json, safetensors, tokenizer) is right");
  const fs::path path(folder);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) throw UsageError(fmt::format("--model {}: there is no such folder", folder));
  if (!is_folder(path)) throw UsageError(fmt::format("--model {}: is not a folder; a Hugging Face folder is right", folder));
  if (fs::exists(path / "config.json", ignored)) return;
  for (const char* below : {"model", "latest/model"}) {
    if (!is_folder(path / below)) continue;
    throw UsageError(
        fmt::format("--model {}: is no model folder (it has no config.json); did you mean {}?", folder, (path / below).string()));
  }
  throw UsageError(fmt::format("--model {}: is no model folder: it has no config.json", folder));
}

}  // namespace plumb
