#include "rl/cli/bench_presets.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/config/model_yaml.h"
#include "engine/sampler/sampler.h"
#include "engine/trainer/trainer.h"
#include "kernels/core/error.h"
#include "kernels/numerics/presets.h"
#include "model/files/files.h"
#include "rl/drift/changes.h"
#include "rl/loop/session.h"

namespace plumb {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVocabulary = 16;  // where the model's file leaves it to a tokenizer: that of the tasks here
constexpr int kDecoded = 8, kPrompt = 16, kAnswer = 32;

/// A numerics by the name of its line.
struct Contestant {
  std::string name;
  Numerics numerics;
};

/// One kind of work under one numerics: seconds, the same as a multiple of the reference's around it, percent of the limit.
struct Samples {
  std::vector<double> seconds, ratio, percent;

  Json json() const {
    const auto spread = [](const std::vector<double>& v) {
      return Json{{"min", quantile(v, 0)}, {"median", quantile(v, 0.5)}, {"max", quantile(v, 1)}};
    };
    return {{"ratio", spread(ratio)}, {"percent", spread(percent)}, {"seconds", spread(seconds)}};
  }
  std::string text() const {
    return fmt::format("{:5.2f} / {:5.2f} / {:5.2f}  {:5.1f} %", quantile(ratio, 0), quantile(ratio, 0.5), quantile(ratio, 1),
                       quantile(percent, 0.5));
  }
};

/// An optimizer step of next-token prediction. A trainer holds several times its parameters, so there is one of each compute dtype,
/// that takes the presets in turn.
class Training {
 public:
  Training(Context& ctx, const ModelConfig& config, int sequences, int tokens)
      : ctx_(ctx), config_(config), longest_(tokens), count_(float(sequences * tokens)), start_(random_parameters(config, 1)) {
    for (int i = 0; i < sequences; ++i) tokens_.push_back(random_tokens(config, tokens, std::uint32_t(i)));
    for (const auto& ids : tokens_) sequences_.push_back({.tokens = ids});
  }
  Work work() const { return {.flops = 3 * forward_flops(config_) * double(count_)}; }
  std::unique_ptr<Trainer> trainer(const Numerics& numerics) const {
    const ExecutionConfig execution{.micro_batch_tokens = int(std::int64_t(sequences_.size()) * packed_rows(longest_))};  // one batch
    auto trainer = std::make_unique<Trainer>(config_, numerics, execution, OptimizerConfig{}, longest_);
    trainer->state().master.write(start_.data(), 0, start_.size());
    trainer->refresh_weights(ctx_);
    return trainer;
  }
  void run(Trainer& trainer) const {
    trainer.accumulate(ctx_, sequences_, 1.0f,
                       [this](std::size_t, std::size_t, auto, auto, auto, std::span<float> d_logprob, std::span<float>) {
                         std::fill(d_logprob.begin(), d_logprob.end(), -1 / count_);
                       });
    trainer.step(ctx_);
  }

 private:
  static Buffer random_parameters(const ModelConfig& config, std::uint64_t seed) {
    return plumb::random_parameters(ParameterList(config), config, seed);
  }

  Context& ctx_;
  const ModelConfig& config_;
  std::int64_t longest_;
  float count_;
  Buffer start_;
  std::vector<std::vector<std::int32_t>> tokens_;
  std::vector<TrainSequence> sequences_;
};

/// Answers of fixed length, several at a time.
class Decoding {
 public:
  explicit Decoding(Context& ctx, const ModelConfig& config) : ctx_(ctx), config_(config) {
    for (std::uint32_t i = 0; i < kDecoded; ++i) {
      requests_.push_back({.prompt = random_tokens(config, kPrompt, i), .max_new_tokens = kAnswer});
      requests_.back().key.draw = i;
    }
  }
  Work work(const Weights& weights) const {
    return {.flops = forward_flops(config_) * kDecoded * (kPrompt + kAnswer - 1),
            .read = make_const_mat(weights.flat(), 1, weights.parameters().flat_size(), weights.dtype()),
            .reads = kAnswer};
  }
  std::unique_ptr<Sampler> sampler(const Numerics& numerics) const {
    return std::make_unique<Sampler>(config_, numerics, ModelExecution{},
                                     SamplerOptions{.max_sequences = kDecoded, .max_positions = kPrompt + kAnswer});
  }
  void run(Sampler& sampler, const Weights& weights) const { sampler.generate(ctx_, weights, requests_); }

 private:
  Context& ctx_;
  const ModelConfig& config_;
  std::vector<GenerationRequest> requests_;
};

class PresetBench {
 public:
  PresetBench(const BenchArguments& a, const ModelConfig& config, std::vector<Contestant> contestants)
      : repeats_(a.repeats),
        reference_(preset(a.numerics)),
        contestants_(std::move(contestants)),
        ctx_(make_context(a)),
        training_(*ctx_, config, a.sequences, a.tokens),
        decoding_(*ctx_, config) {}

  Context& ctx() { return *ctx_; }
  /// Every contestant once in each repetition, so that all of them see the machine's good and bad minutes.
  void run() {
    reference_trainer_ = training_.trainer(reference_);
    reference_sampler_ = decoding_.sampler(reference_);
    training_.run(*reference_trainer_);
    for (int i = 0; i < repeats_; ++i) {
      for (const auto& [name, numerics] : contestants_) {
        show_progress(fmt::format("repetition {} of {}: {}", i + 1, repeats_, name));
        measure_training(numerics, results_[name].train);
        measure_decoding(numerics, results_[name].decode);
      }
    }
    show_progress("");
  }
  void print(const std::string& reference) const {
    fmt::print("{:<40}{:<32}{}\n{:<40}{:<32}{}\n", "", "training step", "decoding", "", "ratio to " + reference + "      of peak",
               "ratio to " + reference + "      of limit");
    for (const auto& [name, numerics] : contestants_)
      fmt::print("{:<40}{:<32}{}\n", name, results_.at(name).train.text(), results_.at(name).decode.text());
  }
  Json json(const std::string& reference) const {
    Json lines = Json::array();
    for (const auto& [name, numerics] : contestants_)
      lines.push_back({{"name", name},
                       {"ratio_to", reference},
                       {"threads", ctx_->threads()},
                       {"isa", name_of(ctx_->isa())},
                       {"train", results_.at(name).train.json()},
                       {"decode", results_.at(name).decode.json()}});
    return lines;
  }

 private:
  struct Result {
    Samples train, decode;
  };

  /// A line that replaces the one before, on a terminal only.
  static void show_progress(const std::string& text) {
    static const bool terminal = ::isatty(STDERR_FILENO) == 1;
    if (terminal) fmt::print(stderr, "\r\x1b[K{}", text);
  }
  /// The reference, the work, the reference; the limit in between.
  void measure(const Work& work, const std::function<void()>& reference, const std::function<void()>& run, Samples& into) {
    constexpr double kShortest = 0.02;  // of a sample, in seconds
    run();                              // memory was just given to it
    const double once = seconds_of_call(1, reference);
    const int calls = std::max(1, int(kShortest / once));
    const double calibration = std::clamp(once * calls / 20, 2e-3, 0.2);
    const double before = calls == 1 ? once : seconds_of_call(calls, reference);
    const double limit_before = seconds_at_limit(*ctx_, work, calibration);
    const double seconds = seconds_of_call(calls, run);
    const double limit_after = seconds_at_limit(*ctx_, work, calibration);
    const double after = seconds_of_call(calls, reference);
    into.seconds.push_back(seconds);
    into.ratio.push_back(2 * seconds / (before + after));
    into.percent.push_back(50 * (limit_before + limit_after) / seconds);
  }
  void measure_training(const Numerics& numerics, Samples& into) {
    std::unique_ptr<Trainer>& trainer = trainers_[numerics.compute];
    if (trainer) {
      trainer->set_numerics(numerics);
    } else {
      trainer = training_.trainer(numerics);
    }
    measure(
        training_.work(), [&] { training_.run(*reference_trainer_); }, [&] { training_.run(*trainer); }, into);
  }
  void measure_decoding(const Numerics& numerics, Samples& into) {
    const Weights& weights = trainers_.at(numerics.compute)->weights();
    const auto sampler = decoding_.sampler(numerics);
    measure(
        decoding_.work(weights), [&] { decoding_.run(*reference_sampler_, reference_trainer_->weights()); },
        [&] { decoding_.run(*sampler, weights); }, into);
  }

  int repeats_;
  Numerics reference_;
  std::vector<Contestant> contestants_;
  std::unique_ptr<Context> ctx_;
  Training training_;
  Decoding decoding_;
  std::unique_ptr<Trainer> reference_trainer_;
  std::unique_ptr<Sampler> reference_sampler_;
  std::map<DType, std::unique_ptr<Trainer>> trainers_;
  std::map<std::string, Result> results_;
};

/// The presets asked for, as find_preset knows them.
std::vector<Contestant> chosen(const std::vector<std::string>& asked) {
  std::vector<Contestant> out;
  if (asked.empty()) {
    for (std::string_view name : usable_presets()) out.push_back({std::string(name), preset(name)});
  }
  for (const std::string& name : asked) out.push_back({std::string(find_preset(name).name), preset(name)});
  return out;
}

/// The reference itself, which shows the noise, and with each site, formula and order of summation moved alone.
std::vector<Contestant> toggles_of(const std::string& reference, const ModelConfig& config) {
  std::vector<Contestant> out = {{reference, preset(reference)}};
  for (const FactChange& change : single_changes(preset(reference), config)) {
    if (!change.to.empty()) out.push_back({change.name(), change.numerics});
  }
  return out;
}

}  // namespace

void bench_presets(const BenchArguments& asked) {
  constexpr int kRows = 256, kLongest = 256;
  BenchArguments a = asked;
  if (a.config.empty()) a.config = "qwen3-25m";
  ModelConfig config = read_model_yaml(find_model_yaml(a.config));
  if (config.vocab_size == 0) config.vocab_size = kVocabulary;
  if (a.tokens == 0) a.tokens = std::min(kLongest, config.max_positions);
  if (a.sequences == 0) a.sequences = std::max(1, kRows / a.tokens);
  if (const int needed = std::max(a.tokens, kPrompt + kAnswer); needed > config.max_positions)
    throw UsageError(fmt::format("bench: {} takes {} positions; sequences of {} tokens and {} decoded positions were asked for", a.config,
                                 config.max_positions, a.tokens, kPrompt + kAnswer));
  PresetBench bench(a, config, a.what == "toggles" ? toggles_of(a.numerics, config) : chosen(a.presets));
  fmt::print("{} with {} thread{}, {}: a step of {} x {} tokens, decoding {} x ({} + {}) tokens; min / median / max of {}\n",
             name_of(bench.ctx().isa()), bench.ctx().threads(), bench.ctx().threads() == 1 ? "" : "s", a.config, a.sequences, a.tokens,
             kDecoded, kPrompt, kAnswer, a.repeats);
  std::fflush(stdout);
  bench.run();
  bench.print(a.numerics);
  if (!a.json.empty()) write_file(a.json, bench.json(a.numerics).dump(2) + "\n");
}

}  // namespace plumb
