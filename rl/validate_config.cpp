#include "rl/validate_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "engine/trainer/loss_scaling.h"
#include "kernels/core/error.h"
#include "kernels/core/nearest.h"
#include "model/files/files.h"
#include "rl/loop/evaluate.h"

namespace plumb {
namespace {

constexpr int kMostProblems = 1'000'000;  // as kMostSamples
constexpr int kMostThreads = 1024;        // more than any machine has cores is a slip, and the system would refuse to start them

void refuse(bool wrong, const std::string& what) {
  if (wrong) throw UsageError("configuration: " + what);
}

void at_least(const char* key, double value, double least) {
  refuse(value < least, fmt::format("{} is {}; at least {} is right", key, value, least));
}

void between(const char* key, double value, double low, double high) {
  refuse(value < low || value > high, fmt::format("{} is {}; from {} to {} is right", key, value, low, high));
}

void file_exists(const char* key, const std::string& path) {
  std::error_code ignored;
  refuse(!path.empty() && !std::filesystem::is_regular_file(path, ignored), fmt::format("{}: there is no file {}", key, path));
}

void check_optimizer(const std::string& name, const OptimizerConfig& o) {
  const auto key = [&](const char* field) { return name + "." + field; };
  at_least(key("lr").c_str(), o.lr, 0);
  for (const auto& [field, beta] : {std::pair{"beta1", o.beta1}, std::pair{"beta2", o.beta2}}) {
    refuse(beta < 0 || beta >= 1, fmt::format("{} is {}; at least 0 and less than 1 is right", key(field), beta));
  }
  refuse(o.eps <= 0, fmt::format("{} is {}; more than 0 is right", key("eps"), o.eps));
  at_least(key("weight_decay").c_str(), o.weight_decay, 0);
  at_least(key("grad_clip").c_str(), o.grad_clip, 0);
  at_least(key("max_nonfinite_steps").c_str(), o.max_nonfinite_steps, 1);
  const LossScalingConfig& l = o.loss_scaling;
  between(key("loss_scaling.scale").c_str(), l.scale, kLeastLossScale, kMostLossScale);
  refuse(l.growth_factor <= 1, fmt::format("{} is {}; more than 1 is right", key("loss_scaling.growth_factor"), l.growth_factor));
  refuse(l.backoff_factor <= 0 || l.backoff_factor >= 1,
         fmt::format("{} is {}; more than 0 and less than 1 is right", key("loss_scaling.backoff_factor"), l.backoff_factor));
  at_least(key("loss_scaling.growth_interval").c_str(), l.growth_interval, 1);
  at_least(key("accumulation.sequences").c_str(), o.accumulation.sequences, 0);
  refuse(o.accumulation.dtype != GradientDType::fp32 && o.accumulation.sequences == 0,
         fmt::format("{} other than fp32 needs {}: the sum depends on the sequences of a part", key("accumulation.dtype"),
                     key("accumulation.sequences")));
  const ScheduleConfig& s = o.schedule;
  at_least(key("schedule.warmup_steps").c_str(), s.warmup_steps, 0);
  at_least(key("schedule.total_steps").c_str(), s.total_steps, 0);
  between(key("schedule.final_ratio").c_str(), s.final_ratio, 0, 1);
  if (s.kind == LrSchedule::constant) return;
  refuse(s.total_steps == 0, fmt::format("{} {} needs {}, the optimizer steps until the decay ends", key("schedule.kind"),
                                         s.kind == LrSchedule::linear ? "linear" : "cosine", key("schedule.total_steps")));
  refuse(s.warmup_steps >= s.total_steps, fmt::format("{} {} leaves nothing of {} {}", key("schedule.warmup_steps"), s.warmup_steps,
                                                      key("schedule.total_steps"), s.total_steps));
}

void check_sft(const std::string& name, const SftConfig& c) {
  at_least((name + ".steps").c_str(), c.steps, 0);
  between((name + ".batch").c_str(), c.batch, 1, kMostProblems);
  at_least((name + ".stop_reward").c_str(), c.stop_reward, 0);
  file_exists((name + ".data").c_str(), c.data);
  check_optimizer(name + ".optimizer", c.optimizer);
}

void check_sections(const RunConfig& c) {
  at_least("run.steps", c.run.steps, 0);
  validate(c.numerics);
  check_threads(fmt::format("configuration: execution.threads is {}", c.execution.threads), c.execution.threads);
  at_least("execution.micro_batch_tokens", c.execution.micro_batch_tokens, 1);
  at_least("execution.logits_rows", c.execution.logits_rows, 0);
  at_least("execution.sampler_sequences", c.execution.sampler_sequences, 1);
  at_least("execution.prefill_tokens", c.execution.prefill_tokens, 1);
  between("task.digits", c.task.digits, 1, 18);
  at_least("task.max_modulus", c.task.max_modulus, 2);
  at_least("task.max_terms", c.task.max_terms, 1);
  file_exists("task.train_file", c.task.train_file);
  file_exists("task.held_out_file", c.task.held_out_file);
  at_least("sampling.temperature", c.sampling.temperature, 0);
  at_least("sampling.top_k", c.sampling.top_k, 0);
  refuse(c.sampling.top_p <= 0 || c.sampling.top_p > 1,
         fmt::format("sampling.top_p is {}; more than 0 and at most 1 is right", c.sampling.top_p));
  at_least("sampling.max_new_tokens", c.sampling.max_new_tokens, 1);
  for (const std::string& stop : c.sampling.stop) refuse(stop.empty(), "sampling.stop holds an empty text, which would end every answer");
  at_least("eval.every", c.eval.every, 0);
  between("eval.problems", c.eval.problems, 0, kMostProblems);
  between("eval.k", c.eval.k, 1, kMostSamples);
  at_least("eval.temperature", c.eval.temperature, 0);
  at_least("checkpoint.save_every", c.checkpoint.save_every, 0);
  at_least("checkpoint.keep", c.checkpoint.keep, 1);
  at_least("logging.samples_every", c.logging.samples_every, 0);
  at_least("logging.samples", c.logging.samples, 0);
}

void check_model(const RunConfig& c) {
  refuse(c.model.path.empty() && c.model.config.empty(),
         "model.path and model.config are both empty: give a Hugging Face folder, or a shape for random initialisation");
  refuse(!c.model.path.empty() && !c.model.config.empty(),
         "model.path and model.config are both set: a model comes from a folder or from random initialisation");
  std::error_code ignored;
  refuse(!c.model.path.empty() && !std::filesystem::is_directory(c.model.path, ignored),
         fmt::format("model.path: there is no folder {}", c.model.path));
  refuse(!c.model.tokenizer.empty() && !std::filesystem::is_directory(c.model.tokenizer, ignored),
         fmt::format("model.tokenizer: there is no folder {}", c.model.tokenizer));
}

void check_grpo(const RunConfig& c) {
  const GrpoConfig& g = c.grpo;
  check_optimizer("optimizer", c.optimizer);
  at_least("grpo.std_eps", g.std_eps, 0);
  between("grpo.clip_low", g.clip_low, 0, 1);
  at_least("grpo.clip_high", g.clip_high, 0);
  refuse(g.dual_clip != 0 && g.dual_clip <= 1, fmt::format("grpo.dual_clip is {}; 0 (off) or more than 1 is right", g.dual_clip));
  at_least("grpo.constant_length", g.constant_length, 0);
  at_least("grpo.kl_coef", g.kl_coef, 0);
  at_least("grpo.epochs", g.epochs, 1);
  at_least("grpo.mini_batches", g.mini_batches, 1);
  refuse(g.kl == KlEstimator::none && g.kl_coef != 0,
         fmt::format("grpo.kl_coef is {}, but grpo.kl is none: choose an estimator (k1, k2, k3) or the weight 0", g.kl_coef));
  refuse(g.constant_length > 0 && g.aggregation != Aggregation::constant,
         "grpo.constant_length is set, but grpo.aggregation is not constant");
  between("rollout.prompts", c.rollout.prompts, 1, kMostProblems);
  between("rollout.samples", c.rollout.samples, 1, kMostSamples);
  refuse(c.rollout.prompts % g.mini_batches != 0,
         fmt::format("grpo.mini_batches {} does not divide rollout.prompts {}: groups are never split", g.mini_batches, c.rollout.prompts));
  // A temperature of 0 has no distribution to learn from.
  refuse(c.sampling.temperature == 0, "sampling.temperature is 0 (greedy): run.algorithm grpo needs a temperature above 0");
  if (c.rollout.source == RolloutSource::recorded) {
    refuse(c.rollout.file.empty(), "rollout.source is recorded, but rollout.file is empty");
    file_exists("rollout.file", c.rollout.file);
    return;
  }
  refuse(!c.rollout.file.empty(), "rollout.file is set, but rollout.source is sampler: set rollout.source to recorded");
  // cases.md 13: a group of one has no baseline.
  refuse(c.rollout.samples < 2,
         fmt::format("run.algorithm grpo compares the answers of a group: rollout.samples is {}; at least 2 is right", c.rollout.samples));
}

/// An evaluation that this configuration makes has the metric that the best checkpoint is chosen by.
void check_keep_best(const RunConfig& c) {
  if (c.checkpoint.keep_best.empty()) return;
  const MetricSet metrics = metrics_of(EvalReport{.k = c.eval.k, .pass_at_k = std::vector<double>(std::size_t(c.eval.k))});
  std::vector<std::string_view> names;
  for (const auto& [name, _] : metrics.all()) names.push_back(name);
  const bool known = std::find(names.begin(), names.end(), c.checkpoint.keep_best) != names.end();
  refuse(!known, fmt::format("checkpoint.keep_best is {}, which no evaluation gives{}", in_quotes(c.checkpoint.keep_best),
                             suggestion(c.checkpoint.keep_best, names)));
}

}  // namespace

void check_threads(const std::string& what, std::optional<int> threads) {
  if (threads && *threads >= 0 && *threads <= kMostThreads) return;
  throw UsageError(fmt::format("{}; a whole number from 0 (one per core) to {} is right", what, kMostThreads));
}

void validate(const RunConfig& c) {
  check_sections(c);
  check_model(c);
  refuse(!c.task.held_out_file.empty() && c.task.train_file.empty(), "task.held_out_file is set, but task.train_file is not");
  refuse(c.execution.micro_batch_tokens <= c.sampling.max_new_tokens,
         fmt::format("execution.micro_batch_tokens {} cannot hold a prompt and sampling.max_new_tokens {}", c.execution.micro_batch_tokens,
                     c.sampling.max_new_tokens));
  refuse(c.eval.k > 1 && c.eval.temperature == 0,
         fmt::format("eval.k is {}, but eval.temperature is 0: all samples would be the greedy answer", c.eval.k));
  refuse(!c.checkpoint.keep_best.empty() && (c.eval.every == 0 || c.eval.problems == 0),
         fmt::format("checkpoint.keep_best is {}, but eval.every {} and eval.problems {} give no evaluations to choose by",
                     c.checkpoint.keep_best, c.eval.every, c.eval.problems));
  check_keep_best(c);
  if (c.run.algorithm == Algorithm::sft) {
    refuse(c.sft.steps != 0, "sft.steps is set; the steps of an sft run are run.steps");
    refuse(c.sft.stop_reward != 0, "sft.stop_reward is set; only a warm start ends early");
    return check_sft("sft", c.sft);
  }
  refuse(c.sft.steps != 0, "sft.steps is set, but run.algorithm is grpo: its warm start is warm_start.steps");
  if (c.warm_start.steps > 0) check_sft("warm_start", c.warm_start);
  refuse(c.warm_start.steps > 0 && c.warm_start.optimizer.precision.weights != c.optimizer.precision.weights,
         "warm_start.optimizer.precision.weights and optimizer.precision.weights differ: they share the weights");
  check_grpo(c);
}

}  // namespace plumb
