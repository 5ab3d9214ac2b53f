#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <iostream>
#include <new>
#include <system_error>

#include "kernels/core/error.h"
#include "kernels/core/nearest.h"
#include "model/files/files.h"
#include "rl/cli/commands.h"
#include "rl/cli/version.h"

namespace plumb {
namespace {

constexpr int kFailed = 1, kWrongUse = 2;

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

/// Throws UsageError for the words that no option or subcommand took.
[[noreturn]] void refuse_extras(CLI::App& app, const std::vector<Command>& commands) {
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    const auto extras = command.app->remaining();
    if (extras.empty()) continue;
    const std::string word = extras[0].substr(0, extras[0].find('='));
    const auto names = option_names(*command.app);
    if (!word.starts_with('-')) throw UsageError(fmt::format("{}: unexpected argument {}", command.app->get_name(), in_quotes(word)));
    throw UsageError(
        fmt::format("{}: unknown option {}{}", command.app->get_name(), in_quotes(word), suggestion(word, {names.begin(), names.end()})));
  }
  const auto extras = app.remaining();
  const std::string word = extras.empty() ? "" : extras[0];
  std::vector<std::string> names = option_names(app);
  if (!word.starts_with('-')) {
    names.clear();
    for (const Command& command : commands) names.push_back(command.app->get_name());
  }
  throw UsageError(fmt::format("unknown {} {}{}", word.starts_with('-') ? "option" : "subcommand", in_quotes(word),
                               suggestion(word, {names.begin(), names.end()})));
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

/// Throws UsageError for what CLI11 found, in our words.
[[noreturn]] void refuse_parse(const CLI::ParseError& error, const std::vector<Command>& commands) {
  std::string what = one_line(error.what());
  const std::string required = " is required";
  if (what.ends_with(required)) what = what.substr(0, what.size() - required.size()) + " is missing";
  for (const Command& command : commands) {
    if (command.app->parsed()) throw UsageError(fmt::format("{}: {}", command.app->get_name(), what));
  }
  throw UsageError(what);
}

int parse_and_run(int argc, const char* const* argv) {
  CLI::App app{"Plumb trains Qwen-style transformers by reinforcement learning, with sampler and trainer on one exact kernel library.",
               "plumb"};
  app.set_version_flag("--version", std::string("plumb ") + kVersion);
  app.footer(
      "Start here:\n  plumb train configs/runs/addition-grpo.yaml --out runs/a\n  plumb eval --model runs/a/latest/model "
      "configs/runs/addition-grpo.yaml\n\nplumb SUBCOMMAND --help explains each with examples.\nExit codes: 0 done, 1 failed, 2 wrong use, "
      "130 interrupted.");
  const std::vector<Command> commands = {add_train_command(app), add_eval_command(app),     add_sample_command(app),
                                         add_score_command(app), add_config_command(app),   add_inspect_command(app),
                                         add_bench_command(app), add_numerics_command(app), add_drift_command(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    refuse_extras(app, commands);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    if (!app.remaining(true).empty()) refuse_extras(app, commands);
    refuse_parse(error, commands);
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  if (!app.remaining().empty()) refuse_extras(app, commands);
  std::cout << app.help();
  throw UsageError("a subcommand is missing");
}

Error output_error(int reason) {
  return Error(fmt::format("standard output: cannot write: {}", std::generic_category().message(reason != 0 ? reason : EIO)));
}

/// What was printed counts only when it arrived: a full disk behind standard output is a failure.
void flush_output() {
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw output_error(errno);
}

int report(int code, const std::string& text) {
  std::fflush(stdout);
  fmt::print(stderr, "plumb: {}\n", one_line(text));
  return code;
}

}  // namespace

int run_command_line(int argc, const char* const* argv) {
  try {
    const int code = parse_and_run(argc, argv);
    flush_output();
    return code;
  } catch (const UsageError& error) {
    return report(kWrongUse, error.what());
  } catch (const std::bad_alloc&) {
    return report(kFailed, "out of memory");
  } catch (const std::system_error& error) {
    return report(kFailed, std::ferror(stdout) != 0 ? output_error(error.code().value()).what() : error.what());
  } catch (const std::exception& error) {
    return report(kFailed, error.what());
  }
}

}  // namespace plumb
