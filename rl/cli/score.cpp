#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "engine/trainer/trainer.h"
#include "kernels/core/error.h"
#include "kernels/core/nearest.h"
#include "model/files/replaceable.h"
#include "model/hf_shape.h"
#include "model/safetensors/safetensors.h"
#include "rl/cli/commands.h"
#include "rl/cli/loaded_model.h"
#include "rl/cli/options.h"
#include "rl/rollout/token_rows.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;

struct ScoreArguments {
  ModelArguments model;
  std::string tokens;
  std::string out;
  double temperature = 1;
  bool gradients = false;
};

struct ScoreInput {
  TokenRows rows;
  std::vector<float> weights;  // (B, T-1)
};

ScoreInput read_input(const std::string& path, const ModelConfig& model) {
  const SafetensorsFile file(path);
  for (const std::string& name : file.names()) {
    if (name != "ids" && name != "weights")
      throw Error(fmt::format("{}: unknown tensor {}{}", path, in_quotes(name), suggestion(name, {"ids", "weights"})));
  }
  ScoreInput in{.rows = read_token_rows(file, model)};
  if (file.find("weights") != nullptr) {
    in.weights = read_predicted(file, "weights", in.rows);
  } else {
    in.weights.assign(std::size_t(in.rows.batch * (in.rows.length - 1)), 1.0f);
  }
  return in;
}

struct Scores {
  Buffer logits;  // (B, T, V)
  DType logits_dtype = DType::f32;
  std::vector<float> logprobs;  // (B, T-1)
  std::vector<float> entropy;   // (B, T)
};

/// Every row's logits and entropy: a token behind each sequence, which nothing reads, makes its last position a scored one.
Scores score_all(LoadedModel& model, const ScoreInput& in, const ExecutionConfig& execution, float temperature) {
  const std::int64_t longer = in.rows.length + 1;
  std::vector<std::int32_t> tokens(std::size_t(in.rows.batch * longer), 0);
  std::vector<TrainSequence> sequences;
  for (std::int64_t b = 0; b < in.rows.batch; ++b) {
    std::ranges::copy(in.rows.row(b), tokens.begin() + b * longer);
    sequences.push_back({.tokens = std::span(tokens).subspan(std::size_t(b * longer), std::size_t(longer)), .prompt_len = 1});
  }
  Scorer scorer(model.config, model.numerics, execution, longer);
  const Sites sites = model.numerics.sites(model.config.layers - 1, model.config.layers, Place::block);
  const std::int64_t rows = in.rows.batch * in.rows.length, vocab = model.config.vocab_size;
  Scores out{.logits_dtype = sites.rounded(Site::lm_head_logits) ? sites.to : DType::f32};
  out.logits = Buffer(std::size_t(rows * vocab) * bytes_of(out.logits_dtype));
  TokenScores scores =
      scorer.score(*model.ctx, *model.weights, sequences, temperature, make_mat(out.logits.data(), rows, vocab, out.logits_dtype));
  out.entropy = std::move(scores.entropy);
  for (std::int64_t b = 0; b < in.rows.batch; ++b) {
    const auto first = scores.logprob.begin() + b * in.rows.length;
    out.logprobs.insert(out.logprobs.end(), first, first + in.rows.length - 1);
  }
  return out;
}

/// Gradients of -sum(weights * logprobs) with respect to every parameter; the trainer owns the memory.
const float* gradients_of(Trainer& trainer, LoadedModel& model, const ScoreInput& in, float temperature) {
  std::vector<TrainSequence> sequences;
  for (std::int64_t b = 0; b < in.rows.batch; ++b) {
    sequences.push_back({.tokens = in.rows.row(b), .prompt_len = 1});
  }
  trainer.state().master.write(model.master.data(), 0, model.master.size());
  trainer.refresh_weights(*model.ctx);
  const std::size_t per_sequence = std::size_t(in.rows.length - 1);
  trainer.accumulate(*model.ctx, sequences, temperature,
                     [&](std::size_t first, std::size_t count, std::span<const float>, std::span<const float>,
                         std::span<const std::int32_t>, std::span<float> d_logprob, std::span<float> d_entropy) {
                       for (std::size_t i = 0; i < count * per_sequence; ++i) {
                         d_logprob[i] = -in.weights[first * per_sequence + i];
                         d_entropy[i] = 0;
                       }
                     });
  return trainer.gradients(*model.ctx);
}

StoredTensor tensor_of(std::string name, StoredType type, std::vector<std::int64_t> shape, const void* data, std::size_t bytes) {
  return {.name = std::move(name), .dtype = type, .shape = std::move(shape), .data = {static_cast<const std::byte*>(data), bytes}};
}

/// Before any work: what stands at --out must be something to write over.
void check_files(const ScoreArguments& a) {
  std::error_code ignored;
  check_model_folder(a.model.model);
  if (!fs::exists(a.tokens, ignored)) throw UsageError(fmt::format("score: --tokens {}: there is no such file", a.tokens));
  if (a.out.empty()) throw UsageError("score: --out is empty; the name of a file to write is right");
  const fs::path out = replaceable(a.out);
  if (fs::equivalent(a.tokens, out, ignored)) throw UsageError(fmt::format("score: --out {} is the file of --tokens", a.out));
  const fs::path folder = out.has_parent_path() ? out.parent_path() : fs::path(".");
  if (!fs::is_directory(folder, ignored)) throw UsageError(fmt::format("score: --out {}: there is no folder {}", a.out, folder.string()));
  if (fs::exists(out, ignored) && fs::equivalent(folder, a.model.model, ignored))
    throw UsageError(fmt::format("score: --out {} is a file of the model", a.out));
}

int score(const ScoreArguments& a) {
  if (a.temperature <= 0) throw UsageError(fmt::format("score: --temperature is {}; more than 0 is right", a.temperature));
  check_files(a);
  const ScoreInput in = read_input(a.tokens, read_hf_config(a.model.model));
  LoadedModel model = load_model(a.model);
  const ExecutionConfig execution{
      .threads = a.model.threads,
      .micro_batch_tokens = int(std::clamp<std::int64_t>(in.rows.batch * (in.rows.length + 2), in.rows.length + 2, 4096))};
  const float temperature = float(a.temperature);
  const Scores scores = score_all(model, in, execution, temperature);
  const auto f32 = [](std::string name, std::vector<std::int64_t> shape, const float* data, std::int64_t n) {
    return tensor_of(std::move(name), StoredType::f32, std::move(shape), data, std::size_t(n) * sizeof(float));
  };
  std::vector<StoredTensor> tensors = {
      tensor_of("logits", scores.logits_dtype == DType::bf16 ? StoredType::bf16 : StoredType::f32,
                {in.rows.batch, in.rows.length, model.config.vocab_size}, scores.logits.data(), scores.logits.size()),
      f32("logprobs", {in.rows.batch, in.rows.length - 1}, scores.logprobs.data(), std::int64_t(scores.logprobs.size())),
      f32("entropy", {in.rows.batch, in.rows.length}, scores.entropy.data(), std::int64_t(scores.entropy.size()))};

  std::optional<Trainer> trainer;
  if (a.gradients) {
    trainer.emplace(model.config, model.numerics, execution, OptimizerConfig{}, in.rows.length);
    const float* const gradients = gradients_of(*trainer, model, in, temperature);
    for (const Parameter& p : trainer->parameters().all())
      tensors.push_back(f32("grad." + p.name, hf_shape(p), gradients + p.offset, p.size()));
  }
  write_safetensors(a.out, std::move(tensors), {{"numerics", model.numerics.preset}});
  return 0;
}

}  // namespace

Command add_score_command(CLI::App& app) {
  auto a = std::make_shared<ScoreArguments>();
  CLI::App* sub = app.add_subcommand("score", "Logits, log-probs, entropy and gradients of given tokens, as files another stack can read");
  add_model_options(*sub, a->model);
  sub->add_option("--tokens", a->tokens,
                  "safetensors file with `ids` (I64 or I32 [B, T]) and, if wanted, `weights` (F32 [B, T-1]; default 1)")
      ->type_name("IN")
      ->required();
  sub->add_option("--out", a->out, "safetensors file to write")->type_name("OUT")->required();
  add_number(*sub, "--temperature", a->temperature, {.low = 0}, "divides the logits before the log-softmax, more than 0; default 1")
      ->type_name("T");
  sub->add_flag("--gradients", a->gradients, "also `grad.NAME` of -sum(weights * logprobs) for every parameter, by its Hugging Face name");
  sub->footer(
      "Writes `logits` ([B, T, V], BF16 or F32 as the preset rounds them, before the temperature), `logprobs` (F32 [B, T-1], of the\n"
      "next token), `entropy` (F32 [B, T]) and with --gradients `grad.*` (F32).\n\n"
      "Example:\n  plumb score --model DIR --tokens in.safetensors --out out.safetensors --numerics hf_eager --gradients");
  return {sub, [a] { return score(*a); }};
}

}  // namespace plumb
