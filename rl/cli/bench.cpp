// Every line is a share of what the machine's multiply-add units and memory allow, measured just before and after each sample:
// a shared machine changes speed by the minute, and only ratios mean anything there.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/config/model_yaml.h"
#include "kernels/core/error.h"
#include "kernels/core/rng.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/peak.h"
#include "model/files/files.h"
#include "model/files/replaceable.h"
#include "rl/cli/bench_presets.h"
#include "rl/cli/bench_work.h"
#include "rl/cli/commands.h"
#include "rl/cli/options.h"
#include "rl/loop/grpo_step.h"
#include "rl/loop/session.h"

namespace plumb {
namespace {

class Bench {
 public:
  explicit Bench(const BenchArguments& a) : arguments_(a), ctx_(make_context(a)), numerics_(preset(a.numerics)) {
    fmt::print("{} with {} thread{}, {}; percent of the limit: min / median / max of {}\n", name_of(ctx_->isa()), ctx_->threads(),
               ctx_->threads() == 1 ? "" : "s", a.numerics, a.repeats);
  }
  Context& ctx() { return *ctx_; }
  const Numerics& numerics() const { return numerics_; }

  void machine();
  /// Runs f `repeats` times after a warm-up and reports its time against the limit's.
  template <class F>
  void measure(const std::string& name, const Work& work, F&& f) {
    const int calls = std::max(1, int(2e8 / work.flops));
    const double calibration = std::clamp(seconds_of_call(calls, f) * calls / 20, 2e-3, 0.2);
    std::vector<double> percent;
    std::vector<double> seconds;
    for (int i = 0; i < arguments_.repeats; ++i) {
      const double before = seconds_at_limit(*ctx_, work, calibration);
      seconds.push_back(seconds_of_call(calls, f));
      percent.push_back(100 * (before + seconds_at_limit(*ctx_, work, calibration)) / 2 / seconds.back());
    }
    report(name, work, percent, seconds);
  }
  void write_json() const;

 private:
  void report(const std::string& name, const Work&, const std::vector<double>& percent, const std::vector<double>& seconds);

  const BenchArguments& arguments_;
  std::unique_ptr<Context> ctx_;
  Numerics numerics_;
  nlohmann::ordered_json lines_ = nlohmann::ordered_json::array();
};

void Bench::report(const std::string& name, const Work& work, const std::vector<double>& percent, const std::vector<double>& seconds) {
  const double time = quantile(seconds, 0.5);
  nlohmann::ordered_json line{
      {"name", name},
      {"threads", ctx_->threads()},
      {"isa", name_of(ctx_->isa())},
      {"percent", {{"min", quantile(percent, 0)}, {"median", quantile(percent, 0.5)}, {"max", quantile(percent, 1)}}},
      {"seconds", {{"min", quantile(seconds, 0)}, {"median", time}, {"max", quantile(seconds, 1)}}},
      {"flops_per_second", work.flops / time}};
  std::string text = fmt::format("{:<34} {:5.1f} / {:5.1f} / {:5.1f} %  {:9.3f} ms  {:6.1f} GFLOP/s", name, quantile(percent, 0),
                                 quantile(percent, 0.5), quantile(percent, 1), 1e3 * time, work.flops / time * 1e-9);
  if (work.read) {
    const double rate = work.reads * double(bytes_of(work.read.dtype)) * double(work.read.cols) / time;
    line["bytes_per_second"] = rate;
    text += fmt::format("  {:5.1f} GB/s", 1e-9 * rate);
  }
  if (work.answer_tokens > 0) {
    line["answer_tokens_per_second"] = work.answer_tokens / time;
    text += fmt::format("  {:.1f} answer tokens/s (best {:.1f})", work.answer_tokens / time, work.answer_tokens / quantile(seconds, 0));
  }
  if (work.prompt_tokens > 0) {
    line["prompt_tokens_per_second"] = work.prompt_tokens / time;
    text += fmt::format("  {:.1f} prompt tokens/s", work.prompt_tokens / time);
  }
  fmt::print("{}\n", text);
  std::fflush(stdout);
  lines_.push_back(std::move(line));
}

void Bench::write_json() const {
  if (!arguments_.json.empty()) write_file(arguments_.json, lines_.dump(2) + "\n");
}

void Bench::machine() {
  const Buffer area(std::size_t(256) << 20);
  const auto rates = [&](const char* name, const char* unit, auto&& measure_rate) {
    measure_rate();
    std::vector<double> rate;
    for (int i = 0; i < arguments_.repeats; ++i) rate.push_back(measure_rate());
    fmt::print("{:<34} {:5.1f} / {:5.1f} / {:5.1f} {}\n", name, quantile(rate, 0) * 1e-9, quantile(rate, 0.5) * 1e-9,
               quantile(rate, 1) * 1e-9, unit);
    lines_.push_back({{"name", name},
                      {"threads", ctx_->threads()},
                      {"isa", name_of(ctx_->isa())},
                      {"per_second", {{"min", quantile(rate, 0)}, {"median", quantile(rate, 0.5)}, {"max", quantile(rate, 1)}}}});
  };
  rates("multiply-add", "GFLOP/s", [&] { return measure_peak_flops(*ctx_, 2e-2); });
  rates("read, 256 MiB", "GB/s", [&] { return measure_read_rate(*ctx_, area.data(), area.size()); });
}

/// A dense BF16 matrix of values from [-1/2, 1/2).
struct RandomMat {
  RandomMat(std::int64_t rows, std::int64_t cols)
      : memory(std::size_t(rows * cols) * sizeof(BF16)), mat(make_mat(memory.data(), rows, cols, DType::bf16)) {
    constexpr std::int64_t kPeriod = 1 << 16;
    std::vector<BF16> values;
    for (std::int64_t i = 0; i < kPeriod; ++i) values.push_back(to_bf16(random_uniform({.seed = 5}, std::uint64_t(i)) - 0.5f));
    for (std::int64_t i = 0; i < rows * cols; i += kPeriod) {
      const auto bytes = std::size_t(std::min(kPeriod, rows * cols - i)) * sizeof(BF16);
      memory.write(values.data(), std::size_t(i) * sizeof(BF16), bytes);
    }
  }
  Buffer memory;
  Mat mat;
};

/// A weight (rows, depth) as the forward reads it.
struct RandomWeight {
  RandomWeight(Context& ctx, std::int64_t rows, std::int64_t depth) : panels(packed_bytes(rows, depth, DType::bf16)) {
    const RandomMat w(rows, depth);
    pack_weight(ctx, w.mat, 0, rows, panels.data());
    packed = {.panels = panels.data(), .rows = rows, .depth = depth, .dtype = DType::bf16};
  }
  Buffer panels;
  PackedWeight packed;
};

void bench_matmul(Bench& bench) {
  const std::int64_t shapes[][3] = {{512, 896, 896}, {512, 4864, 896}, {512, 896, 4864}, {2048, 256, 256},
                                    {512, 512, 64},  {512, 64, 512},   {2048, 64, 64}};
  for (const auto& [m, n, k] : shapes) {
    const std::string shape = fmt::format("{} x {} x {}", m, n, k);
    const Work work{.flops = 2.0 * double(m) * double(n) * double(k)};
    const RandomMat x(m, k), w(n, k), dy(m, n);
    const RandomWeight weight(bench.ctx(), n, k);
    const RandomMat y(m, n), dx(m, k);
    const Buffer dw(std::size_t(n * k) * sizeof(float));
    bench.measure("Y  " + shape, work, [&] { matmul(bench.ctx(), {.a = {x.mat}, .packed = weight.packed, .c = y.mat}); });
    bench.measure("dX " + shape, work, [&] { matmul(bench.ctx(), {.a = {dy.mat}, .b = {w.mat, true}, .c = dx.mat}); });
    bench.measure("dW " + shape, work, [&] {
      matmul(bench.ctx(), {.a = {dy.mat, true}, .b = {x.mat, true}, .c = make_mat(dw.data(), n, k, DType::f32), .accumulate = true});
    });
  }
}

void bench_decode(Bench& bench) {
  constexpr std::int64_t kRows = 151936;
  constexpr std::int64_t kDepth = 896;
  const RandomWeight weight(bench.ctx(), kRows, kDepth);
  const ConstMat read = make_mat(weight.panels.data(), 1, std::int64_t(weight.panels.size() / 2), DType::bf16);
  for (const std::int64_t rows : {1, 4, 8, 16, 32}) {
    const RandomMat x(rows, kDepth);
    const Buffer logits(std::size_t(rows * kRows) * sizeof(float));
    bench.measure(fmt::format("decode x{}, {} x {}", rows, kRows, kDepth),
                  {.flops = 2.0 * double(rows) * double(kRows) * double(kDepth), .read = read}, [&] {
                    matmul(bench.ctx(), {.a = {x.mat}, .packed = weight.packed, .c = make_mat(logits.data(), rows, kRows, DType::f32)});
                  });
  }
}

std::unique_ptr<Trainer> random_trainer(Bench& bench, const ModelConfig& c, std::int64_t max_sequence) {
  auto trainer = std::make_unique<Trainer>(c, bench.numerics(), ExecutionConfig{}, OptimizerConfig{}, max_sequence);
  trainer->state().master = random_parameters(trainer->parameters(), c, 1);
  trainer->refresh_weights(bench.ctx());
  return trainer;
}

/// An optimizer step of next-token prediction.
void bench_train(Bench& bench) {
  constexpr int kSequences = 8;
  constexpr std::int64_t kTokens = 256;
  const ModelConfig config = read_model_yaml(find_model_yaml("qwen3-25m"));
  const auto trainer = random_trainer(bench, config, kTokens);
  std::vector<std::vector<std::int32_t>> tokens;
  for (std::uint32_t i = 0; i < kSequences; ++i) tokens.push_back(random_tokens(config, kTokens, i));
  const std::vector<TrainSequence> sequences(tokens.begin(), tokens.end());
  const TokenObjective objective = [](std::size_t, std::size_t, std::span<const float>, std::span<const float>,
                                      std::span<const std::int32_t>, std::span<float> d_logprob,
                                      std::span<float>) { std::fill(d_logprob.begin(), d_logprob.end(), -1.0f / (kSequences * kTokens)); };
  bench.measure("train step 25.7M, 8 x 256", {.flops = 3 * forward_flops(config) * kSequences * kTokens}, [&] {
    trainer->accumulate(bench.ctx(), sequences, 1.0f, objective);
    trainer->step(bench.ctx());
  });
}

/// A whole GRPO step: sampling, rewards, advantages, update. The answers end at their length, so that every step is as much work.
class GrpoBench {
 public:
  explicit GrpoBench(Bench& bench) : bench_(bench), config_(digit_model()), trainer_(random_trainer(bench, config_, kPrompt + kAnswer)) {
    sampler_ = std::make_unique<Sampler>(config_, bench.numerics(), ModelExecution{},
                                         SamplerOptions{.max_sequences = kPrompts * kSamples, .max_positions = kPrompt + kAnswer});
    for (std::uint32_t i = 0; i < kPrompts; ++i)
      requests_.push_back({.prompt = random_tokens(config_, kPrompt, i), .samples = kSamples, .max_new_tokens = kAnswer});
  }
  void run() {
    const double tokens = kPrompts * kSamples * kAnswer;
    const double sampling = forward_flops(config_) * (tokens + kPrompts * kPrompt);
    const double training = 3 * forward_flops(config_) * kPrompts * kSamples * (kPrompt + kAnswer);
    bench_.measure("sample 0.8M, 256 x 16", {.flops = sampling, .answer_tokens = tokens}, [&] { sample(); });
    bench_.measure("update 0.8M, 256 x (8 + 16)", {.flops = training}, [&] { update(); });
    bench_.measure("GRPO step 0.8M, 256 x 16", {.flops = sampling + training, .answer_tokens = tokens}, [&] {
      sample();
      update();
    });
  }

 private:
  static constexpr int kPrompts = 32, kSamples = 8, kPrompt = 8, kAnswer = 16;

  static ModelConfig digit_model() {
    ModelConfig config = read_model_yaml(find_model_yaml("digit-0.8m"));
    config.vocab_size = 16;
    return config;
  }

  void sample() {
    ++step_;
    for (std::size_t i = 0; i < requests_.size(); ++i)
      requests_[i].key = {.purpose = Purpose::sampling, .step = step_, .draw = std::uint32_t(i)};
    const auto answers = sampler_->generate(bench_.ctx(), trainer_->weights(), requests_);
    batch_ = {.groups = kPrompts};
    for (std::uint32_t g = 0; g < kPrompts; ++g) {
      for (const GeneratedSample& s : answers[g]) {
        batch_.rollouts.push_back({.tokens = requests_[g].prompt, .prompt_len = kPrompt, .logprobs = s.logprobs, .group = g});
        Rollout& r = batch_.rollouts.back();
        r.tokens.insert(r.tokens.end(), s.tokens.begin(), s.tokens.end());
        r.reward.total = double(std::count(s.tokens.begin(), s.tokens.end(), 0)) / kAnswer;
      }
    }
  }

  void update() {
    const GrpoConfig grpo;
    StepTokens tokens = make_step_tokens(batch_, grpo);
    fill_advantages(batch_, grpo, tokens);
    const auto sequences = update_sequences(batch_, tokens, 0, batch_.rollouts.size());
    policy_update(bench_.ctx(), *trainer_, sequences, {.objective = objective_settings(grpo)});
  }

  Bench& bench_;
  ModelConfig config_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Sampler> sampler_;
  std::vector<GenerationRequest> requests_;
  RolloutBatch batch_;
  std::uint32_t step_ = 0;
};

/// Prompts and batched decoding of a model from a folder, through the sampler; answers end at their length.
class ModelBench {
 public:
  ModelBench(Bench& bench, const std::string& folder)
      : bench_(bench), config_(read_hf_config(folder)), weights_(config_, bench.numerics().compute) {
    set_weights(bench.ctx(), weights_, load_hf_parameters(folder, weights_.parameters(), config_));
  }
  void run() {
    constexpr int kPromptTokens = 512, kAnswerTokens = 32, kShortPrompt = 16;
    for (const int sequences : {1, 4}) measure("prompt", sequences, kPromptTokens, 1);
    for (const int sequences : {1, 8, 32}) measure("decode", sequences, kShortPrompt, kAnswerTokens);
  }

 private:
  void measure(const char* what, int sequences, int prompt, int answer) {
    Sampler sampler(config_, bench_.numerics(), ModelExecution{}, {.max_sequences = sequences, .max_positions = prompt + answer});
    std::vector<GenerationRequest> requests;
    for (int i = 0; i < sequences; ++i) {
      requests.push_back({.prompt = random_tokens(config_, prompt, std::uint32_t(i)), .max_new_tokens = answer});
      requests.back().key.draw = std::uint32_t(i);
    }
    const double head = 2.0 * double(config_.vocab_size) * double(config_.hidden_size);  // for the rows that are sampled only
    const double rows = double(sequences) * (prompt + answer - 1);
    Work work{.flops = (forward_flops(config_) - head) * rows + head * sequences * answer};
    if (answer > 1) {
      work.read = make_mat(weights_.flat(), 1, weights_.parameters().flat_size(), weights_.dtype());
      work.reads = answer;
      work.answer_tokens = double(sequences) * answer;
    } else {
      work.prompt_tokens = rows;
    }
    bench_.measure(fmt::format("{} x{}, {} + {} tokens", what, sequences, prompt, answer), work,
                   [&] { sampler.generate(bench_.ctx(), weights_, requests); });
  }

  Bench& bench_;
  ModelConfig config_;
  Weights weights_;
};

int run_bench(const BenchArguments& a) {
  if ((a.what == "model") == a.model.empty()) throw UsageError("bench: model needs --model FOLDER, and nothing else takes it");
  if (!a.model.empty()) check_model_folder(a.model);
  const bool numerics = a.what == "presets" || a.what == "toggles";
  if (!numerics && (!a.config.empty() || a.sequences != 0 || a.tokens != 0))
    throw UsageError("bench: --config, --sequences and --tokens are options of presets and toggles alone");
  if (a.what != "presets" && !a.presets.empty()) throw UsageError("bench: --presets is an option of presets alone");
  if (!a.json.empty()) (void)replaceable(a.json);
  if (numerics) {
    bench_presets(a);
    return 0;
  }
  Bench bench(a);
  if (a.what == "machine") bench.machine();
  if (a.what == "matmul") bench_matmul(bench);
  if (a.what == "decode") bench_decode(bench);
  if (a.what == "train") bench_train(bench);
  if (a.what == "grpo") GrpoBench(bench).run();
  if (a.what == "model") ModelBench(bench, a.model).run();
  bench.write_json();
  return 0;
}

}  // namespace

Command add_bench_command(CLI::App& app) {
  auto a = std::make_shared<BenchArguments>();
  CLI::App* sub = app.add_subcommand("bench", "Measure this machine's limits, and how near to them the engine comes");
  sub->add_option("what", a->what, "machine, matmul, decode, train, grpo, model, presets or toggles")
      ->required()
      ->check(CLI::IsMember({"machine", "matmul", "decode", "train", "grpo", "model", "presets", "toggles"}));
  add_threads_option(*sub, a->threads);
  std::vector<std::string> isas;
  for (const auto& [_, name] : enum_names(IsaChoice{})) isas.emplace_back(name);
  sub->add_option("--isa", a->isa, "instruction set, as execution.isa; default auto")->check(CLI::IsMember(isas))->type_name("ISA");
  add_number(*sub, "--repeats", a->repeats, {1, 1000}, "samples of each line; default 7")->type_name("N");
  sub->add_option("--numerics", a->numerics,
                  "rounding preset of train, grpo and model, and to which presets and toggles compare; default fused")
      ->type_name("PRESET");
  sub->add_option("--model", a->model, "Hugging Face folder of `model`")->type_name("FOLDER");
  sub->add_option("--config", a->config, "model of `presets` and `toggles`: a name of configs/models or a YAML file; default qwen3-25m")
      ->type_name("MODEL");
  sub->add_option("--presets", a->presets, "presets to time, by commas; default all")->type_name("A,B")->delimiter(',');
  add_number(*sub, "--sequences", a->sequences, {1, 4096}, "sequences of a step of those; default: 256 tokens in all")->type_name("N");
  add_number(*sub, "--tokens", a->tokens, {2, 1 << 20}, "length of each; default 256, or what the model takes")->type_name("N");
  sub->add_option("--json", a->json, "write the figures to this file too")->type_name("FILE");
  sub->footer(
      "  machine  the limits themselves: multiply-adds a second, bytes read a second\n"
      "  matmul   Y = X W', dX and dW at training shapes, of the multiply-add peak\n"
      "  decode   one large weight for 1 to 32 rows, of reading it once or of the peak, whichever takes longer\n"
      "  train    forward, backward and AdamW of a 25.7M Qwen3, 8 sequences of 256 tokens\n"
      "  grpo     sampling, update and the whole step of the 0.8M digit model, 256 answers of 16 tokens\n"
      "  model    prompts of 512 tokens, and 32 answer tokens for 1, 8 and 32 sequences at a time, of a real model\n"
      "  presets  a training step and decoding under every rounding preset, as a multiple of the time under fused\n"
      "  toggles  the same with one site, formula or order of summation of --numerics moved\n\n"
      "The limit is measured before and after every sample. For train, grpo and prompts it is that of the matmuls alone.\n"
      "Example: plumb bench grpo --threads 2 --json grpo.json");
  return {sub, [a] { return run_bench(*a); }};
}

}  // namespace plumb
