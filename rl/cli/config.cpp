#include "engine/config/config.h"

#include <fmt/format.h>

#include <memory>

#include "kernels/core/error.h"
#include "rl/cli/commands.h"
#include "rl/cli/estimate.h"
#include "rl/cli/options.h"

namespace plumb {
namespace {

struct ConfigArguments {
  std::string config;
  std::vector<std::string> sets;
  bool json = false;
};

int show(const ConfigArguments& a) {
  if (a.config.empty()) {  // a reference of all keys
    if (!a.sets.empty()) throw UsageError("config: --set needs a configuration file to override");
    fmt::print("{}", a.json ? config_json(RunConfig{}).dump(2) + "\n" : print_config(RunConfig{}));
    return 0;
  }
  const RunConfig config = read_run_config(a.config, a.sets);
  const std::string derived = describe(estimate_run(RunInputs(config)));  // what cannot run is told instead of printed
  if (a.json) {
    fmt::print("{}\n", config_json(config).dump(2));
    return 0;
  }
  fmt::print("{}", print_config(config));
  fmt::print("\n# identity {}\n", hash_text(config_hash(config)));
  for (std::size_t begin = 0; begin < derived.size();) {
    const auto end = derived.find('\n', begin);
    fmt::print("# {}\n", derived.substr(begin, end - begin));
    begin = end + 1;
  }
  return 0;
}

}  // namespace

Command add_config_command(CLI::App& app) {
  auto a = std::make_shared<ConfigArguments>();
  CLI::App* sub = app.add_subcommand("config", "Print a configuration with every key, its value, its meaning, and what follows from it");
  sub->add_option("config", a->config, "configuration file; none: all keys with their defaults")->type_name("CONFIG");
  add_set_option(*sub, a->sets);
  sub->add_flag("--json", a->json, "print JSON");
  sub->footer(
      "Examples:\n"
      "  plumb config                                     # all keys and defaults\n"
      "  plumb config configs/runs/addition-grpo.yaml --set optimizer.lr=1e-4 > mine.yaml\n\n"
      "What is printed is itself a configuration file. `identity` is the hash that metrics and checkpoints carry: it covers all\n"
      "keys but execution, logging, checkpoint, paths and the number of steps.");
  return {sub, [a] { return show(*a); }};
}

}  // namespace plumb
