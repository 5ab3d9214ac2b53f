// Running the binary as a user does, and looking at what it leaves behind.
#pragma once
#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tests/support/temp_folder.h"

namespace plumb::e2e {

struct Finished {
  int code = -1;  // exit code; 128 + signal when killed
  std::string out;
  std::string err;
};

/// Runs the plumb binary with these arguments, without a terminal, in `folder`.
Finished plumb(const std::vector<std::string>& arguments, const std::filesystem::path& folder = {});
/// The same with a standard output that takes nothing.
Finished plumb_into_a_full_disk(const std::vector<std::string>& arguments);
/// The same, but sends `signal` once it has been caught for `after` (SIGKILL: `after` the start, however slow the machine
/// is); a run that ends sooner is left alone.
Finished plumb_then_signal(const std::vector<std::string>& arguments, int signal, std::chrono::milliseconds after);

using test::TempFolder;

/// One line on stderr that holds `says`, and this exit code.
void expect_one_line(const Finished&, int code, const std::string& says);

void write_file(const std::filesystem::path&, const std::string& text);
std::string read_file(const std::filesystem::path&);
/// Contents of every regular file below `folder`, by relative path.
std::map<std::string, std::string> files_of(const std::filesystem::path& folder);
/// metrics.jsonl of a run without the keys that hold times, one string a line.
std::vector<std::string> metrics_without_times(const std::filesystem::path& run);

/// One JSON value a line.
std::vector<nlohmann::json> json_lines_of(const std::filesystem::path&);
/// The rows of a run's metrics.jsonl that have a mismatch.
std::vector<nlohmann::json> mismatch_rows(const std::filesystem::path& run);
/// Expects every mismatch metric of the row exactly at its identity value.
void expect_no_mismatch(const nlohmann::json& row);

/// A GRPO run small enough for a test: a warm start of `warm_steps`, then `steps` steps of 2-digit addition.
std::string tiny_grpo_config(int steps, int warm_steps = 2);

}  // namespace plumb::e2e
