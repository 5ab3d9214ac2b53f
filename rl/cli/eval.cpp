#include <fmt/format.h>

#include <memory>

#include "engine/config/config.h"
#include "engine/metrics/interrupt.h"
#include "kernels/core/error.h"
#include "rl/cli/commands.h"
#include "rl/cli/options.h"
#include "rl/loop/evaluate.h"

namespace plumb {
namespace {

struct EvalArguments {
  std::string config;
  std::string model;
  bool model_given = false;
  std::vector<std::string> sets;
  bool json = false;
};

int eval(const EvalArguments& a) {
  install_interrupt_handlers();
  if (a.model_given) check_model_folder(a.model);
  const RunConfig config = read_run_config(a.config, a.sets);
  if (config.eval.problems < 1) throw UsageError("eval: eval.problems is 0; at least 1 is right");
  const EvalReport report = run_evaluation(config, a.model);
  if (report.interrupted) return kInterrupted;
  if (!a.json) {
    fmt::print("{}\n", summary_of(report));
    return 0;
  }
  nlohmann::ordered_json line;
  const MetricSet metrics = metrics_of(report);
  for (const auto& [name, metric] : metrics.all()) line[name] = metric.value();
  fmt::print("{}\n", line.dump());
  return 0;
}

}  // namespace

Command add_eval_command(CLI::App& app) {
  auto a = std::make_shared<EvalArguments>();
  CLI::App* sub = app.add_subcommand("eval", "Measure a model on the held-out problems of a configuration: greedy, avg@k and pass@k");
  sub->add_option("config", a->config, "configuration: its task, eval and sampling sections count")->type_name("CONFIG")->required();
  const CLI::Option* model =
      sub->add_option("--model", a->model, "Hugging Face folder; default: the model that the configuration starts from")->type_name("DIR");
  add_set_option(*sub, a->sets);
  sub->add_flag("--json", a->json, "print one JSON object");
  sub->footer(
      "Examples:\n"
      "  plumb eval --model runs/a/latest/model configs/runs/addition-grpo.yaml\n"
      "  plumb eval --model runs/a/latest/model configs/runs/addition-grpo.yaml --set eval.k=8 --set eval.problems=512\n\n"
      "Held-out problems share none with the training problems and depend on run.seed only.");
  return {sub, [a, model] {
            a->model_given = model->count() > 0;
            return eval(*a);
          }};
}

}  // namespace plumb
