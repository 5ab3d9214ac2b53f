#include "engine/trainer/scorer.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/trainer/model_execution.h"
#include "kernels/core/error.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/logprob/logprob.h"

namespace plumb {
namespace {

std::int64_t micro_batch_rows(const ExecutionConfig& execution, std::int64_t max_sequence) {
  if (max_sequence < 1) throw UsageError(fmt::format("the longest sequence has {} tokens; it must be at least 1", max_sequence));
  if (execution.logits_rows < 0) throw UsageError(fmt::format("execution.logits_rows is {}; it must be at least 0", execution.logits_rows));
  if (execution.micro_batch_tokens < max_sequence)
    throw UsageError(fmt::format("execution.micro_batch_tokens is {}; it must hold the longest sequence, {} tokens",
                                 execution.micro_batch_tokens, max_sequence));
  return packed_rows(execution.micro_batch_tokens);
}

std::size_t hidden_bytes(const ModelConfig& config, const Numerics& numerics, std::int64_t rows) {
  return std::size_t(rows * config.hidden_size) * bytes_of(numerics.compute);
}

}  // namespace

Scorer::Scorer(const ModelConfig& config, const Numerics& numerics, const ExecutionConfig& execution, std::int64_t max_sequence,
               bool training)
    : max_sequence_(max_sequence),
      max_rows_(micro_batch_rows(execution, max_sequence)),
      logits_rows_(execution.logits_rows),
      training_(training),
      model_(config, numerics, model_execution(execution), max_rows_, max_sequence, training),
      micro_batch_(max_rows_),
      head_hidden_(hidden_bytes(config, numerics, max_rows_)) {
  const auto n = std::size_t(max_rows_);
  for (auto* v : {&row_logprob_, &row_entropy_, &logprob_, &entropy_}) v->resize(n);
  row_argmax_.resize(n);
  argmax_.resize(n);
  if (!training) return;
  d_head_hidden_ = Buffer(hidden_bytes(config, numerics, max_rows_));
  d_hidden_ = Buffer(hidden_bytes(config, numerics, max_rows_));
  for (auto* v : {&row_d_logprob_, &row_d_entropy_, &d_logprob_, &d_entropy_}) v->resize(n);
}

std::size_t Scorer::memory_bytes(const ModelConfig& config, const Numerics& numerics, const ExecutionConfig& execution,
                                 std::int64_t max_sequence, bool training) {
  const std::int64_t rows = micro_batch_rows(execution, max_sequence);
  return Qwen::memory_bytes(config, numerics, model_execution(execution), rows, max_sequence, training) + MicroBatch::memory_bytes(rows) +
         hidden_bytes(config, numerics, rows) * (training ? 3 : 1) + std::size_t(rows) * sizeof(float) * (training ? 10 : 6);
}

std::size_t Scorer::memory_bytes() const {
  return model_.memory_bytes() + micro_batch_.memory_bytes() + head_hidden_.size() + d_head_hidden_.size() + d_hidden_.size() +
         std::size_t(max_rows_) * sizeof(float) * (training_ ? 10 : 6);
}

Mat Scorer::head_rows_of(const Buffer& buffer) const {
  return make_mat(buffer.data(), micro_batch_.head_rows(), model_config().hidden_size, numerics().compute);
}

void Scorer::check(const Weights& weights, std::span<const TrainSequence> sequences, float temperature) const {
  require(weights.dtype() == numerics().compute && weights.config() == model_config(),
          "internal: weights of another shape or dtype than the model's");
  if (!(temperature > 0)) throw UsageError(fmt::format("a temperature of {} cannot be trained or scored; it must be above 0", temperature));
  check_sequences(sequences, max_sequence_, model_config().vocab_size);
}

void Scorer::forward(Context& ctx, const Weights& weights, float temperature, bool save, Mat logits) {
  const ConstMat hidden = model_.forward(ctx, weights, micro_batch_.batch(), nullptr, save);
  if (micro_batch_.responses() == 0) return;
  gather_rows(ctx, hidden, micro_batch_.row_of_head(), head_rows_of(head_hidden_));
  logprob_forward(ctx,
                  {.hidden = head_rows_of(head_hidden_),
                   .weight = weights.lm_head(),
                   .packed = weights.packed(Role::lm_head),
                   .matmul_order = numerics().reductions.matmul,
                   .targets = micro_batch_.targets(),
                   .temperature = temperature,
                   .row_chunk = logits_rows_,
                   .logprob = row_logprob_.data(),
                   .entropy = row_entropy_.data(),
                   .argmax = row_argmax_.data(),
                   .logits = logits},
                  model_.head_sites());
  const std::int32_t* head_row = micro_batch_.head_of_response();
  for (std::size_t i = 0; i < std::size_t(micro_batch_.responses()); ++i) {
    const auto row = std::size_t(head_row[i]);
    logprob_[i] = row_logprob_[row];
    entropy_[i] = row_entropy_[row];
    argmax_[i] = row_argmax_[row];
  }
}

TokenScores Scorer::score(Context& ctx, const Weights& weights, std::span<const TrainSequence> sequences, float temperature, Mat logits) {
  check(weights, sequences, temperature);
  std::int64_t tokens = 0;
  for (const TrainSequence& s : sequences) tokens += s.response_len();
  TokenScores out;
  out.logprob.reserve(std::size_t(tokens));
  out.entropy.reserve(std::size_t(tokens));
  out.argmax.reserve(std::size_t(tokens));
  Buffer row_logits;  // the head's rows include some that predict no response token
  if (logits) row_logits = Buffer(std::size_t(max_rows_ * logits.cols) * bytes_of(logits.dtype));
  for (std::size_t first = 0; first < sequences.size();) {
    first += micro_batch_.pack(sequences, first);
    const Mat rows = logits ? make_mat(row_logits.data(), micro_batch_.head_rows(), logits.cols, logits.dtype) : Mat{};
    forward(ctx, weights, temperature, false, rows);
    const std::int64_t n = micro_batch_.responses();
    if (logits && n > 0) gather_rows(ctx, rows, micro_batch_.head_of_response(), logits.slice_rows(std::int64_t(out.logprob.size()), n));
    out.logprob.insert(out.logprob.end(), logprob_.begin(), logprob_.begin() + n);
    out.entropy.insert(out.entropy.end(), entropy_.begin(), entropy_.begin() + n);
    out.argmax.insert(out.argmax.end(), argmax_.begin(), argmax_.begin() + n);
  }
  return out;
}

void Scorer::accumulate(Context& ctx, const Weights& weights, std::span<const TrainSequence> sequences, float temperature,
                        const TokenObjective& objective, Gradients& gradients, float loss_scale) {
  require(training_, "internal: a scorer without training memory cannot accumulate gradients");
  check(weights, sequences, temperature);
  for (std::size_t first = 0; first < sequences.size();) {
    const std::size_t count = micro_batch_.pack(sequences, first);
    forward(ctx, weights, temperature, true, {});
    const auto n = std::size_t(micro_batch_.responses());
    std::fill_n(d_logprob_.begin(), n, 0.0f);
    std::fill_n(d_entropy_.begin(), n, 0.0f);
    objective(first, count, std::span(logprob_).first(n), std::span(entropy_).first(n), std::span(argmax_).first(n),
              std::span(d_logprob_).first(n), std::span(d_entropy_).first(n));
    for (std::size_t i = 0; loss_scale != 1.0f && i < n; ++i) {
      d_logprob_[i] *= loss_scale;
      d_entropy_[i] *= loss_scale;
    }
    backward(ctx, weights, temperature, gradients);
    first += count;
  }
}

void Scorer::backward(Context& ctx, const Weights& weights, float temperature, Gradients& gradients) {
  const auto heads = std::size_t(micro_batch_.head_rows());
  std::fill_n(row_d_logprob_.begin(), heads, 0.0f);
  std::fill_n(row_d_entropy_.begin(), heads, 0.0f);
  const std::int32_t* head_row = micro_batch_.head_of_response();
  for (std::size_t i = 0; i < std::size_t(micro_batch_.responses()); ++i) {
    row_d_logprob_[std::size_t(head_row[i])] = d_logprob_[i];
    row_d_entropy_[std::size_t(head_row[i])] = d_entropy_[i];
  }
  const Mat d_head_hidden = head_rows_of(d_head_hidden_);
  if (heads > 0)
    logprob_backward(ctx,
                     {.hidden = head_rows_of(head_hidden_),
                      .weight = weights.lm_head(),
                      .packed = weights.packed(Role::lm_head),
                      .matmul_order = numerics().reductions.matmul,
                      .targets = micro_batch_.targets(),
                      .temperature = temperature,
                      .row_chunk = logits_rows_,
                      .d_logprob = row_d_logprob_.data(),
                      .d_entropy = row_d_entropy_.data(),
                      .d_hidden = d_head_hidden,
                      .d_weight = gradients.lm_head},
                     model_.head_sites());
  const Mat d_hidden = make_mat(d_hidden_.data(), micro_batch_.rows(), model_config().hidden_size, numerics().compute);
  gather_rows(ctx, d_head_hidden, micro_batch_.head_of_row(), d_hidden);
  model_.backward(ctx, weights, micro_batch_.batch(), d_hidden, gradients);
}

}  // namespace plumb
