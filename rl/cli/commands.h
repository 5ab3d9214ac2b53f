// The subcommands of `plumb`, one file each. Every function adds its subcommand with its options and its help.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>

namespace plumb {

struct Command {
  CLI::App* app = nullptr;
  std::function<int()> run;  // after parsing; returns the exit code, throws Error or UsageError
};

Command add_train_command(CLI::App&);
Command add_eval_command(CLI::App&);
Command add_sample_command(CLI::App&);
Command add_score_command(CLI::App&);
Command add_config_command(CLI::App&);
Command add_inspect_command(CLI::App&);
Command add_bench_command(CLI::App&);
Command add_numerics_command(CLI::App&);
Command add_drift_command(CLI::App&);

/// Parses and runs. 0 done, 1 failed, 2 wrong use, 130 interrupted; errors are one line on standard error.
int run_command_line(int argc, const char* const* argv);

}  // namespace plumb
