// Held-out evaluation: one greedy answer per problem, and k sampled ones for avg@k and pass@k. It reads weights and changes
// nothing: its randomness has a purpose of its own, so a run with evaluations equals the run without, bit for bit.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/metrics/metric.h"
#include "engine/sampler/sampler.h"
#include "model/tokenizer/tokenizer.h"
#include "rl/loop/session.h"
#include "rl/run_config.h"
#include "rl/tasks/task.h"

namespace plumb {

struct EvalReport {
  std::int64_t problems = 0;
  double greedy = 0;              // mean reward of the greedy answers
  double greedy_correct = 0;      // share of them with the full reward, 1
  int k = 1;                      // samples per problem; 1: no sampled answers
  double avg_at_k = 0;            // mean reward of the sampled answers
  std::vector<double> pass_at_k;  // [i]: unbiased pass@(i+1), i < k, right = reward 1; empty when k is 1
  double response_length = 0;     // mean of the greedy answers, tokens
  double truncated_frac = 0;      // of the greedy answers
  bool interrupted = false;       // sampling was stopped: nothing above is valid
};

/// eval/greedy, eval/correct, eval/length, eval/truncated_frac; with k > 1 eval/avg@k and eval/pass@1, 2, 4, .. k.
MetricSet metrics_of(const EvalReport&);
/// One line for people: "held-out: greedy 0.482, avg@8 0.431, pass@8 0.822 (256 problems)".
std::string summary_of(const EvalReport&);

/// What an evaluation reads. The sampler's weights may be in training; they are not written.
struct Evaluation {
  const EvalConfig& config;
  int max_new_tokens;
  std::uint64_t seed;
  const Task& task;
  const Tokenizer& tokenizer;
  const std::vector<std::int32_t>& eos_ids;
  std::vector<Problem> problems;         // held-out ones
  std::function<bool()> stop_requested;  // may be null
};
/// Of a configuration. It, the task and the setup must live as long.
Evaluation evaluation_of(const RunConfig&, const Task&, const ModelSetup&, std::vector<Problem>, std::function<bool()> stop_requested = {});
EvalReport evaluate(Context&, Sampler&, const Weights&, const Evaluation&);

/// Evaluates a saved model folder on the held-out problems of the configuration; an empty path is the model that the
/// configuration starts from. Expects a validated configuration.
EvalReport run_evaluation(const RunConfig&, const std::filesystem::path& model_folder);

}  // namespace plumb
