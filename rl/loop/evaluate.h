// Held-out evaluation: one greedy answer per problem, and k sampled ones for avg@k and pass@k. It reads weights and changes
// nothing: its randomness has a purpose of its own, so a run with evaluations equals the run without, bit for bit.
#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "engine/metrics/metric.h"
#include "rl/run_config.h"

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
};

/// eval/greedy, eval/correct, eval/length, eval/truncated_frac; with k > 1 eval/avg@k and eval/pass@1, 2, 4, .. k.
MetricSet metrics_of(const EvalReport&);

/// Evaluates a saved model folder on the held-out problems of the configuration; an empty path is the model that the
/// configuration starts from. Expects a validated configuration.
EvalReport run_evaluation(const RunConfig&, const std::filesystem::path& model_folder);

}  // namespace plumb
