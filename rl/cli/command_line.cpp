#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <new>

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

int parse_and_run(int argc, const char* const* argv) {
  CLI::App app{"Plumb trains Qwen-style transformers by reinforcement learning, with sampler and trainer on one exact kernel library.",
               "plumb"};
  app.set_version_flag("--version", std::string("plumb ") + kVersion);
  app.footer(
      "Start here:\n  plumb train configs/runs/addition-grpo.yaml --out runs/a\n  plumb eval --model runs/a/latest/model "
      "configs/runs/addition-grpo.yaml\n\nplumb SUBCOMMAND --help explains each with examples.\nExit codes: 0 done, 1 failed, 2 wrong use, "
      "130 interrupted.");
  const std::vector<Command> commands = {add_train_command(app),  add_eval_command(app),    add_sample_command(app), add_score_command(app),
                                         add_config_command(app), add_inspect_command(app), add_bench_command(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    refuse_extras(app, commands);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    if (!app.remaining(true).empty()) refuse_extras(app, commands);
    throw UsageError(one_line(error.what()));
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  if (!app.remaining().empty()) refuse_extras(app, commands);
  std::cout << app.help();
  throw UsageError("a subcommand is missing");
}

int report(int code, const std::string& text) {
  std::fflush(stdout);
  fmt::print(stderr, "plumb: {}\n", one_line(text));
  return code;
}

}  // namespace

void add_set_option(CLI::App& app, std::vector<std::string>& assignments) {
  app.add_option("--set", assignments, "override a key of the configuration, e.g. --set optimizer.lr=1e-5; may be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
}

int run_command_line(int argc, const char* const* argv) {
  try {
    return parse_and_run(argc, argv);
  } catch (const UsageError& error) {
    return report(kWrongUse, error.what());
  } catch (const std::bad_alloc&) {
    return report(kFailed, "out of memory");
  } catch (const std::exception& error) {
    return report(kFailed, error.what());
  }
}

}  // namespace plumb
