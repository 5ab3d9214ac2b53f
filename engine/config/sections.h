// The configuration sections that the engine itself reads. Plain structs with defaults in place; each describes itself.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/numerics_section.h"
#include "engine/config/visit.h"

namespace plumb {

enum class IsaChoice { automatic, avx2, avx512, avx512bf16, avx512mixed };
constexpr auto enum_names(IsaChoice) {
  return std::array{std::pair{IsaChoice::automatic, "auto"}, std::pair{IsaChoice::avx2, "avx2"}, std::pair{IsaChoice::avx512, "avx512"},
                    std::pair{IsaChoice::avx512bf16, "avx512bf16"}, std::pair{IsaChoice::avx512mixed, "avx512mixed"}};
}

/// How fast: no key here may change a bit of any result.
struct ExecutionConfig {
  int threads = 0;
  IsaChoice isa = IsaChoice::automatic;
  bool merged_matmuls = true;
  bool recompute = false;
  int micro_batch_tokens = 4096;
  int logits_rows = 0;
  int sampler_sequences = 256;
  int prefill_tokens = 2048;
};
template <class V>
void visit(V& v, ExecutionConfig& c) {
  v.field("threads", c.threads, "compute threads; 0: one per core");
  v.field("isa", c.isa,
          "instruction set of the kernels; auto: the fastest this machine has. avx512mixed: vdpbf16ps for few rows, FMA for many");
  v.field("merged_matmuls", c.merged_matmuls, "one matmul for q, k, v and one for gate, up in the forward");
  v.field("recompute", c.recompute,
          "keep only block inputs and run each block's forward again in the backward: less memory, about a third more work");
  v.field("micro_batch_tokens", c.micro_batch_tokens, "token budget of one packed forward/backward; at least the longest sequence");
  v.field("logits_rows", c.logits_rows, "rows of logits held at once; 0: chosen from the vocabulary");
  v.field("sampler_sequences", c.sampler_sequences, "sequences decoded together at most");
  v.field("prefill_tokens", c.prefill_tokens, "prompt tokens computed together at most");
}

struct ModelSection {
  std::string path;
  std::string config;
  std::uint64_t init_seed = 0;
  std::string tokenizer;
};
template <class V>
void visit(V& v, ModelSection& c) {
  v.field("path", c.path, "Hugging Face folder to start from; empty: random initialisation of `config`");
  v.field("config", c.config, "shape of a randomly initialised model: a YAML file, or a name of configs/models");
  v.field("init_seed", c.init_seed, "seed of the random initialisation");
  v.field("tokenizer", c.tokenizer, "folder with tokenizer.json; empty: the model folder's, or the task's characters");
}

enum class LrSchedule { constant, linear, cosine };
constexpr auto enum_names(LrSchedule) {
  return std::array{std::pair{LrSchedule::constant, "constant"}, std::pair{LrSchedule::linear, "linear"},
                    std::pair{LrSchedule::cosine, "cosine"}};
}

struct ScheduleConfig {
  LrSchedule kind = LrSchedule::constant;
  int warmup_steps = 0;
  int total_steps = 0;
  double final_ratio = 0;
};
template <class V>
void visit(V& v, ScheduleConfig& c) {
  v.field("kind", c.kind, "shape after the warm-up: constant, linear or cosine decay");
  v.field("warmup_steps", c.warmup_steps, "optimizer steps of linear warm-up");
  v.field("total_steps", c.total_steps,
          "optimizer steps until the decay ends (its own number, so that a longer run is the same run); needed by linear and cosine");
  v.field("final_ratio", c.final_ratio, "learning rate at the end of the decay, as a share of the peak");
}

enum class LossScaling : std::uint8_t { automatic, off, fixed, dynamic };
constexpr auto enum_names(LossScaling) {
  using enum LossScaling;
  return std::array{std::pair{automatic, "auto"}, std::pair{off, "off"}, std::pair{fixed, "fixed"}, std::pair{dynamic, "dynamic"}};
}

/// As torch.amp.GradScaler: the loss, and so every gradient of the backward, is multiplied by a scale, the finished gradients divided.
struct LossScalingConfig {
  LossScaling mode = LossScaling::automatic;
  double scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int growth_interval = 2000;
};
template <class V>
void visit(V& v, LossScalingConfig& c) {
  v.field("mode", c.mode, "auto: dynamic when the update side computes in fp16, else off; fixed: always `scale`; dynamic; off");
  v.field("scale", c.scale, "what the loss is multiplied by: always, or at first (dynamic); powers of two cost no bit");
  v.field("growth_factor", c.growth_factor, "dynamic: factor of the scale after growth_interval steps without overflow");
  v.field("backoff_factor", c.backoff_factor, "dynamic: factor of the scale after a step whose gradient was not finite (and was skipped)");
  v.field("growth_interval", c.growth_interval, "dynamic: steps without overflow before the scale grows");
}

enum class GradientDType : std::uint8_t { fp32, bf16, fp16 };
constexpr auto enum_names(GradientDType) {
  return std::array{std::pair{GradientDType::fp32, "fp32"}, std::pair{GradientDType::bf16, "bf16"}, std::pair{GradientDType::fp16, "fp16"}};
}

/// How the gradients of a step are added up. The sum depends on where it is cut, so the cut is a number of sequences here, and not the
/// micro-batch, which is execution.
struct AccumulationConfig {
  GradientDType dtype = GradientDType::fp32;
  int sequences = 0;
};
template <class V>
void visit(V& v, AccumulationConfig& c) {
  v.field("dtype", c.dtype, "what the sum is rounded to after each part: fp32, bf16 or fp16, as autograd's .grad of such parameters");
  v.field(
      "sequences", c.sequences,
      "consecutive sequences of a step whose gradient is one part, computed alone and then added; 0: one FP32 chain over the whole step");
}

enum class StateDType : std::uint8_t { fp32, bf16 };
constexpr auto enum_names(StateDType) { return std::array{std::pair{StateDType::fp32, "fp32"}, std::pair{StateDType::bf16, "bf16"}}; }

/// What the optimizer keeps between steps is rounded to; each step computes in FP32 and rounds once, as torch's fused AdamW.
struct OptimizerPrecision {
  StateDType weights = StateDType::fp32;
  StateDType moments = StateDType::fp32;
};
template <class V>
void visit(V& v, OptimizerPrecision& c) {
  v.field("weights", c.weights, "fp32: master weights; bf16: none, and an update below half a BF16 step is lost");
  v.field("moments", c.moments, "fp32 or bf16: both moments of AdamW");
}

struct OptimizerConfig {
  double lr = 1e-6;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  double grad_clip = 1.0;
  int max_nonfinite_steps = 5;
  LossScalingConfig loss_scaling;
  AccumulationConfig accumulation;
  OptimizerPrecision precision;
  ScheduleConfig schedule;
  std::vector<std::string> frozen;
};
template <class V>
void visit(V& v, OptimizerConfig& c) {
  v.field("lr", c.lr, "peak learning rate");
  v.field("beta1", c.beta1, "decay of the first moment");
  v.field("beta2", c.beta2, "decay of the second moment");
  v.field("eps", c.eps, "added to the root of the second moment");
  v.field("weight_decay", c.weight_decay, "decoupled weight decay, applied to every trained parameter as torch.optim.AdamW does");
  v.field("grad_clip", c.grad_clip, "largest global gradient norm; 0: no clipping");
  v.field("max_nonfinite_steps", c.max_nonfinite_steps,
          "steps in a row that may be skipped for a non-finite gradient before the run stops (a loss scale above 1 falls first)");
  v.section("loss_scaling", c.loss_scaling, "loss scaling, for gradients that would underflow in fp16");
  v.section("accumulation", c.accumulation, "how gradients are added up");
  v.section("precision", c.precision, "what the optimizer's state is rounded to");
  v.section("schedule", c.schedule, "learning-rate schedule");
  v.field("frozen", c.frozen, "parameters that are not trained: shell-style patterns over Hugging Face names, e.g. model.embed_tokens.*");
}

struct SamplingConfig {
  double temperature = 1.0;
  int top_k = 0;
  double top_p = 1.0;
  int max_new_tokens = 32;
  std::vector<std::string> stop;
};
template <class V>
void visit(V& v, SamplingConfig& c) {
  v.field("temperature", c.temperature, "divides the logits, in sampling and in training alike; 0 is greedy (evaluation only)");
  v.field("top_k", c.top_k, "keep the k most probable tokens; 0: all");
  v.field("top_p", c.top_p, "keep the smallest set of tokens with this mass; 1: all");
  v.field("max_new_tokens", c.max_new_tokens, "longest answer in tokens, EOS included");
  v.field("stop", c.stop, "strings that end an answer, besides EOS");
}

struct CheckpointConfig {
  int save_every = 100;
  int keep = 2;
  std::string keep_best;
};
template <class V>
void visit(V& v, CheckpointConfig& c) {
  v.field("save_every", c.save_every, "steps between checkpoints; 0: only at the end and when interrupted");
  v.field("keep", c.keep, "newest checkpoints kept");
  v.field("keep_best", c.keep_best, "evaluation metric whose best checkpoint is kept too, e.g. eval/greedy; empty: none");
}

struct LoggingConfig {
  bool tensorboard = true;
  int samples_every = 10;
  int samples = 4;
};
template <class V>
void visit(V& v, LoggingConfig& c) {
  v.field("tensorboard", c.tensorboard, "write TensorBoard events beside metrics.jsonl");
  v.field("samples_every", c.samples_every, "steps between writes of samples.jsonl; 0: never");
  v.field("samples", c.samples, "answers written each time");
}

}  // namespace plumb
