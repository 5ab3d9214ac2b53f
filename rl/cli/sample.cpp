#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/metrics/interrupt.h"
#include "engine/sampler/sampler.h"
#include "kernels/core/error.h"
#include "model/files/files.h"
#include "model/tokenizer/stream.h"
#include "model/tokenizer/tokenizer.h"
#include "rl/cli/commands.h"
#include "rl/cli/loaded_model.h"
#include "rl/cli/options.h"
#include "rl/validate_config.h"

namespace plumb {
namespace {

struct SampleArguments {
  ModelArguments model;
  std::vector<std::string> prompts;
  std::string prompt_file;
  std::vector<std::string> stops;
  int n = 1;
  double temperature = 1;
  int top_k = 0;
  double top_p = 1;
  int max_new_tokens = 256;
  std::uint64_t seed = 0;
  bool json = false;
};

void check(const SampleArguments& a) {
  const auto refuse = [](bool wrong, const std::string& what) {
    if (wrong) throw UsageError("sample: " + what);
  };
  refuse(a.prompts.empty() && a.prompt_file.empty(), "--prompt or --prompt-file is missing");
  refuse(!a.prompts.empty() && !a.prompt_file.empty(), "--prompt and --prompt-file exclude each other");
  refuse(a.top_p <= 0 || a.top_p > 1, fmt::format("--top-p is {}; more than 0 and at most 1 is right", a.top_p));
  for (const std::string& prompt : a.prompts) refuse(prompt.empty(), "--prompt is empty; at least one character is right");
  for (const std::string& stop : a.stops)
    refuse(stop.empty(), "--stop is empty, which would end every answer; at least one character is right");
  check_model_folder(a.model.model);
}

/// Editors end every file with a newline; one that belongs to the prompt would change the answer unseen.
std::string prompt_in(const std::string& file) {
  std::string text = read_file(file);
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  if (text.empty()) throw UsageError(fmt::format("sample: --prompt-file {} is empty; at least one character is right", file));
  return text;
}

/// Feeds tokens to the text and stop-string machinery; the same for deciding when to stop and for what is shown.
class AnswerText {
 public:
  AnswerText(const Tokenizer& tokenizer, const std::vector<std::string>& stops) : decoder_(tokenizer), matcher_(stops) {}
  bool push(std::int32_t id) {
    text_ += matcher_.push(decoder_.push(id));
    return matcher_.stopped();
  }
  std::string finish() {
    if (!matcher_.stopped()) text_ += matcher_.push(decoder_.finish());
    if (!matcher_.stopped()) text_ += matcher_.finish();
    return text_;
  }

 private:
  StreamDecoder decoder_;
  StopMatcher matcher_;
  std::string text_;
};

std::vector<std::int32_t> prompt_ids(const Tokenizer& tokenizer, const std::string& prompt) {
  try {
    return tokenizer.encode(prompt, true);
  } catch (const Error& error) {
    throw UsageError(fmt::format("sample: prompt {}: {}", in_quotes(prompt), error.what()));
  }
}

std::vector<GenerationRequest> requests_of(const SampleArguments& a, const std::vector<std::string>& prompts, const Tokenizer& tokenizer,
                                           const ModelConfig& model) {
  std::vector<GenerationRequest> requests;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    GenerationRequest request{.prompt = prompt_ids(tokenizer, prompts[i]),
                              .key = {.seed = a.seed, .purpose = Purpose::sampling, .draw = std::uint32_t(i)},
                              .samples = a.n,
                              .max_new_tokens = a.max_new_tokens,
                              .params = {.temperature = float(a.temperature), .top_k = a.top_k, .top_p = float(a.top_p)}};
    if (request.prompt.empty()) throw UsageError("sample: the prompt has no token: give at least one character");
    const auto room = std::int64_t(model.max_positions) - std::int64_t(request.prompt.size());
    if (room < 1) {
      throw UsageError(fmt::format("sample: the prompt has {} tokens; the model's window of {} leaves no room for an answer",
                                   request.prompt.size(), model.max_positions));
    }
    request.max_new_tokens = int(std::min<std::int64_t>(room, a.max_new_tokens));
    requests.push_back(std::move(request));
  }
  return requests;
}

SamplerOptions sampler_options(const SampleArguments& a, const std::vector<GenerationRequest>& requests, const Tokenizer& tokenizer,
                               const ModelConfig& model) {
  SamplerOptions options;
  std::int64_t longest = 0, longest_prompt = 0;
  for (const GenerationRequest& r : requests) {
    longest = std::max(longest, std::int64_t(r.prompt.size()) + r.max_new_tokens);
    longest_prompt = std::max(longest_prompt, std::int64_t(r.prompt.size()));
  }
  options.max_sequences = int(std::min<std::int64_t>(64, std::int64_t(requests.size()) * a.n));
  options.prefill_tokens = std::min<std::int64_t>(512, longest_prompt);
  options.max_positions = longest;
  options.kv_positions = options.max_sequences * longest;
  options.eos_ids = model.eos_ids;
  if (options.eos_ids.empty() && tokenizer.eos_id()) options.eos_ids = {*tokenizer.eos_id()};
  if (a.stops.empty()) return options;
  options.make_stop_matcher = [&tokenizer, stops = a.stops] {
    auto text = std::make_shared<AnswerText>(tokenizer, stops);
    return [text](std::int32_t id) { return text->push(id); };
  };
  return options;
}

/// In JSON an answer is a record as drift and training read it, with the text beside it.
void show(const SampleArguments& a, std::size_t group, const std::string& prompt, const GenerationRequest& request,
          const GeneratedSample& sample, int index, const Tokenizer& tokenizer) {
  AnswerText answer(tokenizer, a.stops);
  for (const std::int32_t id : sample.tokens) {
    if (answer.push(id)) break;
  }
  const std::string text = answer.finish();
  if (!a.json) {
    fmt::print("{}{}\n", a.n > 1 ? fmt::format("[{}] ", index + 1) : "", text);
    return;
  }
  const nlohmann::ordered_json line = {{"group", group},
                                       {"prompt", prompt},
                                       {"sample", index},
                                       {"text", text},
                                       {"prompt_ids", request.prompt},
                                       {"response_ids", sample.tokens},
                                       {"logprobs", sample.logprobs},
                                       {"finish", name_of(sample.finish)}};
  fmt::print("{}\n", line.dump());
}

int sample(const SampleArguments& a) {
  check(a);
  std::vector<std::string> prompts = a.prompts;
  if (!a.prompt_file.empty()) prompts = {prompt_in(a.prompt_file)};
  const Tokenizer tokenizer = Tokenizer::load(a.model.model);
  // Wrong prompts and stop strings are told before the weights are read.
  const auto requests = requests_of(a, prompts, tokenizer, read_hf_config(a.model.model));
  AnswerText(tokenizer, a.stops).finish();
  const LoadedModel model = load_model(a.model);
  Sampler sampler(model.config, model.numerics, ModelExecution{}, sampler_options(a, requests, tokenizer, model.config));
  install_interrupt_handlers();
  const auto answers = sampler.generate(*model.ctx, *model.weights, requests,
                                        [](std::int64_t, std::int64_t, std::int64_t) { return !interrupt_requested(); });
  if (sampler.interrupted()) return kInterrupted;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    for (int s = 0; s < a.n; ++s) show(a, i, prompts[i], requests[i], answers[i][std::size_t(s)], s, tokenizer);
  }
  return 0;
}

}  // namespace

Command add_sample_command(CLI::App& app) {
  auto a = std::make_shared<SampleArguments>();
  CLI::App* sub = app.add_subcommand("sample", "Answer a prompt with a saved model");
  add_model_options(*sub, a->model);
  sub->add_option("--prompt", a->prompts, "text to continue; may be repeated")->type_name("TEXT")->expected(1)->take_all();
  sub->add_option("--prompt-file", a->prompt_file, "file whose text is the prompt, without the newline at its end")->type_name("FILE");
  add_number(*sub, "-n,--samples", a->n, {1, kMostSamples}, "answers per prompt; default 1")->type_name("N");
  add_number(*sub, "--temperature", a->temperature, {.low = 0}, "divides the logits; 0: greedy; default 1")->type_name("T");
  add_number(*sub, "--top-k", a->top_k, {.low = 0}, "keep the k most probable tokens; 0: all")->type_name("K");
  add_number(*sub, "--top-p", a->top_p, {0, 1}, "keep the smallest set of tokens with this mass; 1: all")->type_name("P");
  add_number(*sub, "--max-new-tokens", a->max_new_tokens, {.low = 1}, "longest answer; default 256, at most what the window leaves")
      ->type_name("N");
  sub->add_option("--stop", a->stops, "text that ends an answer, besides EOS; may be repeated")->type_name("TEXT")->expected(1)->take_all();
  add_number(*sub, "--seed", a->seed, {}, "seed; the same seed gives the same answers on any machine and any number of threads")
      ->type_name("S");
  sub->add_flag("--json", a->json, "one JSON object per answer: text, token ids, log-probs (drift --recorded reads it), why it ended");
  sub->footer(
      "Examples:\n"
      "  plumb sample --model runs/a/latest/model --prompt '123+456='\n"
      "  plumb sample --model DIR --prompt 'Once upon a time' -n 4 --temperature 0.7 --max-new-tokens 64 --seed 7 --json\n\n"
      "The prompt is taken as it is: no chat template is put around it.");
  return {sub, [a] { return sample(*a); }};
}

}  // namespace plumb
