// Sampling and training of the 0.8M digit model: 32 prompts x 8 answers of 16 tokens, 256 answers a step.
// "peak%": matmul work done, as percent of what the multiply-add peak measured before every run allows.
#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "engine/engine_testing.h"
#include "engine/sampler/sampler.h"
#include "kernels/matmul/peak.h"

namespace plumb {
namespace {

using namespace testing_engine;  // NOLINT(google-build-using-namespace)

constexpr int kPrompts = 32;
constexpr int kSamples = 8;
constexpr std::int64_t kPromptTokens = 8;
constexpr int kAnswerTokens = 16;
constexpr double kAnswers = double(kPrompts) * kSamples * kAnswerTokens;

ModelConfig digit_model() {
  ModelConfig c;
  c.family = Family::llama;
  c.vocab_size = 16;
  c.hidden_size = 128;
  c.intermediate_size = 344;
  c.layers = 4;
  c.heads = c.kv_heads = 4;
  c.head_dim = 32;
  c.max_positions = 128;
  c.tied = true;
  return c;
}

/// Multiply-adds of one token's matmuls, times two.
double forward_flops(const ModelConfig& c) {
  double weights = double(c.vocab_size) * c.hidden_size;
  const ParameterList list(c);
  for (const Parameter& p : list.all())
    if (p.layer >= 0 && p.rows > 1) weights += double(p.size());
  return 2 * weights;
}

struct Rig {
  Rig(const char* numerics, int threads) : ctx(threads), trainer(make_trainer(ctx, config, preset(numerics))) {}
  /// Times f, which does `flops` of matmul work, and reports.
  template <class F>
  void run(benchmark::State& state, double flops, F&& f) {
    f();
    double seconds = 0;
    double possible = 0;
    for (auto _ : state) {
      const double peak = best_peak_flops(ctx);
      const auto start = std::chrono::steady_clock::now();
      f();
      const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      state.SetIterationTime(took);
      seconds += took;
      possible += took * peak;
    }
    state.counters["answer_tokens/s"] = kAnswers * double(state.iterations()) / seconds;
    state.counters["peak%"] = 100 * flops * double(state.iterations()) / possible;
  }
  ModelConfig config = digit_model();
  Context ctx;
  std::unique_ptr<Trainer> trainer;
};

void sample(benchmark::State& state, const char* numerics) {
  Rig rig(numerics, int(state.range(0)));
  Sampler sampler(rig.config, preset(numerics), {}, {.max_positions = kPromptTokens + kAnswerTokens});
  std::vector<GenerationRequest> requests;
  for (std::uint32_t i = 0; i < kPrompts; ++i)
    requests.push_back(
        {.prompt = random_ids(rig.config, kPromptTokens, i), .key = {.draw = i}, .samples = kSamples, .max_new_tokens = kAnswerTokens});
  rig.run(state, forward_flops(rig.config) * (kAnswers + double(kPrompts) * kPromptTokens),
          [&] { benchmark::DoNotOptimize(sampler.generate(rig.ctx, rig.trainer->weights(), requests)); });
}

void train(benchmark::State& state, const char* numerics) {
  Rig rig(numerics, int(state.range(0)));
  Sequences data;
  for (std::uint64_t i = 0; i < kPrompts * kSamples; ++i) {
    data.tokens.push_back(random_ids(rig.config, kPromptTokens + kAnswerTokens, i));
    data.prompt_lens.push_back(kPromptTokens);
  }
  const auto views = data.views();
  const TokenObjective objective = weighted_objective(views);
  rig.run(state, 3 * forward_flops(rig.config) * double(kPrompts) * kSamples * (kPromptTokens + kAnswerTokens), [&] {
    rig.trainer->accumulate(rig.ctx, views, 1.0f, objective);
    benchmark::DoNotOptimize(rig.trainer->step(rig.ctx));
  });
}

void register_all() {
  for (const char* numerics : {"fused", "hf_eager"})
    for (const auto& [name, run] : {std::pair{"sample/", &sample}, std::pair{"train/", &train}})
      benchmark::RegisterBenchmark((std::string(name) + numerics).c_str(), run, numerics)
          ->ArgName("threads")
          ->Arg(1)
          ->Arg(2)
          ->Unit(benchmark::kMillisecond)
          ->UseManualTime();
}

}  // namespace
}  // namespace plumb

int main(int argc, char** argv) {
  plumb::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
