// The whole configuration of a run: engine sections plus what reinforcement learning adds.
#pragma once
#include "engine/config/sections.h"
#include "engine/data/jsonl.h"

namespace plumb {

enum class Algorithm { grpo, sft };
constexpr auto enum_names(Algorithm) { return std::array{std::pair{Algorithm::grpo, "grpo"}, std::pair{Algorithm::sft, "sft"}}; }

struct RunSection {
  Algorithm algorithm = Algorithm::grpo;
  std::uint64_t seed = 0;
  int steps = 100;
  std::string out;
};
template <class V>
void visit(V& v, RunSection& c) {
  v.field("algorithm", c.algorithm, "grpo or sft");
  v.field("seed", c.seed, "seed of everything random: problems, sampling, shuffling");
  v.field("steps", c.steps, "training steps (batches); may be raised on resume", KeyScope::execution);
  v.field("out", c.out, "run folder; empty: runs/<name of the config file>", KeyScope::execution);
}

enum class DigitOrder { reversed, natural };
constexpr auto enum_names(DigitOrder) {
  return std::array{std::pair{DigitOrder::reversed, "reversed"}, std::pair{DigitOrder::natural, "natural"}};
}

struct TaskConfig {
  std::string name = "addition";
  int digits = 3;
  DigitOrder digit_order = DigitOrder::reversed;
  bool zero_pad = true;
  std::string question = "{a}+{b}=";
  int min_modulus = 9;
  int max_modulus = 9;
  int min_terms = 0;
  int max_terms = 9;
  bool per_token_reward = false;
  std::string train_file;
  std::string held_out_file;
};
template <class V>
void visit(V& v, TaskConfig& c) {
  v.field("name", c.name, "addition or digit_completion");
  v.field("digits", c.digits, "addition: digits of each number");
  v.field("digit_order", c.digit_order, "addition: reversed (least significant first) or natural");
  v.field("zero_pad", c.zero_pad, "addition: numbers have exactly `digits` digits, sums one more");
  v.field("question", c.question, "addition: the prompt, with {a} and {b} for the numbers; for an instruct model with its chat's markers");
  v.field("min_modulus", c.min_modulus, "digit_completion: smallest modulus");
  v.field("max_modulus", c.max_modulus, "digit_completion: largest modulus");
  v.field("min_terms", c.min_terms, "digit_completion: fewest numbers to continue with");
  v.field("max_terms", c.max_terms, "digit_completion: most numbers to continue with");
  v.field("per_token_reward", c.per_token_reward, "digit_completion: reward each leading right token where it stands");
  v.field("train_file", c.train_file,
          "read problems from this JSONL ({prompt, answer}; without answer it is worked out) instead of generating them");
  v.field("held_out_file", c.held_out_file, "held-out problems; set together with train_file");
}

/// Supervised fine-tuning: the algorithm `sft`, or the warm start of another.
struct SftConfig {
  int steps = 0;
  int batch = 64;
  std::string data;
  bool shuffle = true;
  TooLong too_long = TooLong::error;
  bool skip_empty = false;
  double stop_reward = 0;
  OptimizerConfig optimizer;
};
template <class V>
void visit(V& v, SftConfig& c) {
  v.field("steps", c.steps, "of a warm start: its steps before the first RL step (0: none); of sft: stays 0, its steps are run.steps");
  v.field("batch", c.batch, "sequences per step");
  v.field("data", c.data, "JSONL with {prompt, response}, {text} or {ids, prompt_len} lines; empty: problems and answers of the task");
  v.field("shuffle", c.shuffle, "a new permutation each epoch; false: file order");
  v.field("too_long", c.too_long,
          "lines of data with more tokens than the model's window: error, drop, or cut off what is too much at the left or at the right");
  v.field("skip_empty", c.skip_empty, "pass over lines of data without text, or with nothing to train on; false: they are an error");
  v.field(
      "stop_reward", c.stop_reward,
      "the warm start ends early when answers sampled to problems not yet seen reach this mean reward (looked at every 5 steps); 0: never");
  v.section("optimizer", c.optimizer, "optimizer of this phase");
}

enum class RolloutSource { sampler, recorded };
constexpr auto enum_names(RolloutSource) {
  return std::array{std::pair{RolloutSource::sampler, "sampler"}, std::pair{RolloutSource::recorded, "recorded"}};
}

struct RolloutConfig {
  RolloutSource source = RolloutSource::sampler;
  std::string file;
  int prompts = 16;
  int samples = 8;
};
template <class V>
void visit(V& v, RolloutConfig& c) {
  v.field("source", c.source, "sampler: generate; recorded: read rollouts from `file`");
  v.field("file", c.file, "recorded rollouts: JSONL with prompt_ids, response_ids, logprobs, reward or advantages, group");
  v.field("prompts", c.prompts, "prompts per step");
  v.field("samples", c.samples, "answers per prompt: the group");
}

enum class OldLogprobs { recompute, rollout };
constexpr auto enum_names(OldLogprobs) {
  return std::array{std::pair{OldLogprobs::recompute, "recompute"}, std::pair{OldLogprobs::rollout, "rollout"}};
}
enum class Aggregation { token_mean, seq_mean_token_sum, seq_mean_token_mean, constant };
constexpr auto enum_names(Aggregation) {
  return std::array{std::pair{Aggregation::token_mean, "token-mean"}, std::pair{Aggregation::seq_mean_token_sum, "seq-mean-token-sum"},
                    std::pair{Aggregation::seq_mean_token_mean, "seq-mean-token-mean"}, std::pair{Aggregation::constant, "constant"}};
}
enum class AdvantageScale { group, batch, none };
constexpr auto enum_names(AdvantageScale) {
  return std::array{std::pair{AdvantageScale::group, "group"}, std::pair{AdvantageScale::batch, "batch"},
                    std::pair{AdvantageScale::none, "none"}};
}
enum class KlEstimator { none, k1, k2, k3 };
constexpr auto enum_names(KlEstimator) {
  return std::array{std::pair{KlEstimator::none, "none"}, std::pair{KlEstimator::k1, "k1"}, std::pair{KlEstimator::k2, "k2"},
                    std::pair{KlEstimator::k3, "k3"}};
}

struct GrpoConfig {
  AdvantageScale scale = AdvantageScale::group;
  double std_eps = 1e-6;
  double clip_low = 0.2;
  double clip_high = 0.2;
  double dual_clip = 3.0;
  Aggregation aggregation = Aggregation::token_mean;
  int constant_length = 0;
  KlEstimator kl = KlEstimator::none;
  double kl_coef = 0;
  double entropy_coef = 0;
  OldLogprobs old_logprobs = OldLogprobs::recompute;
  int epochs = 1;
  int mini_batches = 1;
  bool mask_truncated = false;
};
template <class V>
void visit(V& v, GrpoConfig& c) {
  v.field("scale", c.scale, "advantage = (reward - group mean) / (std + std_eps) with the std of the group, of the batch, or none");
  v.field("std_eps", c.std_eps, "added to the standard deviation");
  v.field("clip_low", c.clip_low, "the ratio is clipped to [1 - clip_low, 1 + clip_high]");
  v.field("clip_high", c.clip_high, "see clip_low");
  v.field("dual_clip", c.dual_clip, "for negative advantages the loss is at most -A * dual_clip; 0: off");
  v.field("aggregation", c.aggregation, "token-mean, seq-mean-token-sum, seq-mean-token-mean or constant");
  v.field("constant_length", c.constant_length, "divisor per sequence of `constant`; 0: sampling.max_new_tokens");
  v.field("kl", c.kl, "estimator of the KL to the reference (the starting model) in the loss: none, k1, k2 or k3");
  v.field("kl_coef", c.kl_coef, "weight of that KL");
  v.field("entropy_coef", c.entropy_coef, "weight of the entropy bonus");
  v.field("old_logprobs", c.old_logprobs, "denominator of the ratio: recomputed by the trainer, or those the rollout recorded");
  v.field("epochs", c.epochs, "passes over each batch");
  v.field("mini_batches", c.mini_batches, "optimizer steps per pass; groups are never split");
  v.field("mask_truncated", c.mask_truncated, "answers cut at the length limit do not train");
}

struct EvalConfig {
  int every = 0;
  int problems = 256;
  int k = 1;
  double temperature = 1.0;
};
template <class V>
void visit(V& v, EvalConfig& c) {
  v.field("every", c.every, "steps between held-out evaluations; 0: only before and after", KeyScope::execution);
  v.field("problems", c.problems, "held-out problems, all different; of a file at most those it has");
  v.field("k", c.k, "samples per problem for avg@k and pass@k besides the greedy answer; 1: greedy only");
  v.field("temperature", c.temperature, "temperature of those samples");
}

struct RunConfig {
  RunSection run;
  ModelSection model;
  NumericsSection numerics;
  ExecutionConfig execution;
  TaskConfig task;
  SftConfig warm_start;
  SftConfig sft;
  RolloutConfig rollout;
  SamplingConfig sampling;
  GrpoConfig grpo;
  OptimizerConfig optimizer;
  EvalConfig eval;
  CheckpointConfig checkpoint;
  LoggingConfig logging;
};
template <class V>
void visit(V& v, RunConfig& c) {
  v.section("run", c.run, "what runs");
  v.section("model", c.model, "what is trained");
  v.section("numerics", c.numerics, "which bits: where each side rounds");
  v.section("execution", c.execution, "how fast: no key here changes a bit", KeyScope::execution);
  v.section("task", c.task, "what is learned");
  v.section("warm_start", c.warm_start, "supervised steps before RL");
  v.section("sft", c.sft, "algorithm sft");
  v.section("rollout", c.rollout, "where answers come from");
  v.section("sampling", c.sampling, "how answers are sampled");
  v.section("grpo", c.grpo, "algorithm grpo");
  v.section("optimizer", c.optimizer, "AdamW of the RL phase (sft runs use sft.optimizer)");
  v.section("eval", c.eval, "held-out evaluation");
  v.section("checkpoint", c.checkpoint, "what is saved when", KeyScope::execution);
  v.section("logging", c.logging, "what is written beside metrics.jsonl", KeyScope::execution);
}

}  // namespace plumb
