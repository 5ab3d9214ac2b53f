#include "rl/cli/loaded_model.h"

#include <fmt/format.h>

#include "kernels/core/error.h"
#include "rl/cli/options.h"
#include "rl/loop/session.h"

namespace plumb {

void add_model_options(CLI::App& app, ModelArguments& a) {
  std::string presets;
  for (const std::string_view name : preset_names()) presets += (presets.empty() ? "" : ", ") + std::string(name);
  app.add_option("--model", a.model, "Hugging Face folder (config.json, safetensors, tokenizer)")->type_name("DIR")->required();
  app.add_option("--numerics", a.numerics, "where values are rounded: " + presets + "; default fused")->type_name("PRESET");
  add_threads_option(app, a.threads);
}

LoadedModel load_model(const ModelArguments& a) {
  LoadedModel m;
  m.numerics = preset(a.numerics);
  m.config = read_hf_config(a.model);
  m.ctx = make_context(ExecutionConfig{.threads = a.threads});
  m.weights = std::make_unique<Weights>(m.config, m.numerics.compute);
  m.master = load_hf_parameters(a.model, m.weights->parameters(), m.config);
  set_weights(*m.ctx, *m.weights, m.master);
  return m;
}

}  // namespace plumb
