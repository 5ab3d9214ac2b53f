// What the subcommands' options share: numbers that are checked as they are read, configuration files, model folders. Messages
// are alike everywhere: subcommand, option, what was given, what is right.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "rl/run_config.h"

namespace plumb {

/// Numbers that an option takes, both ends included.
template <class T>
struct Range {
  T low = std::numeric_limits<T>::lowest();
  T high = std::numeric_limits<T>::max();
};

/// Adds an option with a number. Throws UsageError when parsed text is no finite number (int, uint64: no whole one) in range.
CLI::Option* add_number(CLI::App&, const std::string& names, int& value, Range<int>, const std::string& doc);
CLI::Option* add_number(CLI::App&, const std::string& names, std::uint64_t& value, Range<std::uint64_t>, const std::string& doc);
CLI::Option* add_number(CLI::App&, const std::string& names, double& value, Range<double>, const std::string& doc);

/// --threads, the same everywhere.
void add_threads_option(CLI::App&, int& threads);
/// The --set option, the same everywhere: KEY=VALUE, once or more.
void add_set_option(CLI::App&, std::vector<std::string>& assignments,
                    const std::string& doc = "override a key of the configuration, e.g. --set optimizer.lr=1e-5; may be repeated");

/// A configuration file with its overrides, validated. Throws UsageError that names the file.
RunConfig read_run_config(const std::string& file, const std::vector<std::string>& sets);

/// Throws UsageError unless `folder` is a model folder, with a hint where a run or a checkpoint was given instead.
void check_model_folder(const std::string& folder);

}  // namespace plumb
