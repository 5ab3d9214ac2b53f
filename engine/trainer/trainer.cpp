#include "engine/trainer/trainer.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "engine/trainer/accumulated.h"
#include "engine/trainer/optimizer.h"
#include "kernels/adamw/adamw.h"
#include "kernels/core/error.h"
#include "kernels/elementwise/elementwise.h"

namespace plumb {

struct Trainer::State {
  State(const ModelConfig& model, const Numerics& numerics, const ExecutionConfig& execution_config,
        const OptimizerConfig& optimizer_config, std::int64_t longest)
      : optimizer(checked(optimizer_config)),
        execution(execution_config),
        max_sequence(longest),
        weights(model, numerics.compute),
        tied_head(tied_head_gradient_bytes(model)) {
    scorer.emplace(model, numerics, execution, max_sequence, true);
    for (Buffer* b : {&state.master, &state.m, &state.v, &flat_gradient}) *b = Buffer(flat_bytes());
    set_frozen();
    state.loss_scale = initial_loss_scale(optimizer.loss_scaling, numerics.compute);
    accumulated = AccumulatedGradients(optimizer.accumulation, parameters().flat_size());
  }

  static const OptimizerConfig& checked(const OptimizerConfig& config) {
    check_optimizer(config);
    return config;
  }
  const ParameterList& parameters() const { return weights.parameters(); }
  const ModelConfig& model() const { return weights.config(); }
  std::size_t flat_bytes() const { return std::size_t(parameters().flat_size()) * sizeof(float); }

  void set_frozen() {
    gradients = make_gradients(parameters(), model(), flat_gradient, tied_head);
    gradients.frozen = frozen_parameters(parameters(), optimizer.frozen);
    ranges = trained_ranges(parameters(), gradients.frozen);
    const Parameter* head = parameters().find(model().tied ? Role::embedding : Role::lm_head);
    if (gradients.frozen[std::size_t(head - parameters().all().data())] != 0) gradients.lm_head = {};
  }

  /// What is in `gradients` is a complete part of the step's.
  void close_part(Context& ctx) {
    finish_gradients(ctx, parameters(), model(), scorer->numerics(), gradients);
    accumulated.add(ctx, gradients.flat);
    plumb::clear_gradients(ctx, parameters(), model(), gradients);
  }

  void accumulate(Context& ctx, std::span<const TrainSequence> sequences, float temperature, const TokenObjective& objective) {
    const auto loss_scale = float(state.loss_scale.value);
    if (!accumulated.in_parts()) return scorer->accumulate(ctx, weights, sequences, temperature, objective, gradients, loss_scale);
    for (std::size_t done = 0; done < sequences.size();) {
      const std::size_t count = std::min(sequences.size() - done, std::size_t(accumulated.room()));
      const auto shifted = [&objective, done](std::size_t first, std::size_t n, auto logprob, auto entropy, auto argmax, auto d_logprob,
                                              auto d_entropy) {
        objective(first + done, n, logprob, entropy, argmax, d_logprob, d_entropy);
      };
      scorer->accumulate(ctx, weights, sequences.subspan(done, count), temperature, shifted, gradients, loss_scale);
      done += count;
      if (accumulated.fill(std::int64_t(count))) close_part(ctx);
    }
  }

  void finish(Context& ctx) {
    if (finished) return;
    if (accumulated.in_parts()) {
      if (accumulated.begun()) close_part(ctx);
      accumulated.take(ctx, gradients.flat);
    } else {
      finish_gradients(ctx, parameters(), model(), scorer->numerics(), gradients);
    }
    if (state.loss_scale.value != 1) scale_in_place(ctx, gradients.flat, parameters().flat_size(), unscaling_factor(state.loss_scale));
    finished = true;
  }

  void clear(Context& ctx) {
    plumb::clear_gradients(ctx, parameters(), model(), gradients);
    accumulated.clear();
    finished = false;
  }

  /// Whether a norm, given its square, is a finite FP32 number: clipping computes with one, as PyTorch does.
  static bool in_range(double squares) { return std::isfinite(float(std::sqrt(squares))); }

  std::string first_nonfinite(Context& ctx) const {
    for (const Parameter& p : parameters().all())
      if (!in_range(sum_of_squares(ctx, gradients.flat + p.offset, p.size()))) return p.name;
    return "all parameters together";
  }

  /// Without master weights there is nothing finer than the precision of the weights, from the start.
  void round_master(Context& ctx) {
    const DType to = dtype_of(optimizer.precision.weights);
    if (to != DType::f32) round_in_place(ctx, static_cast<float*>(state.master.data()), parameters().flat_size(), to);
  }

  /// AdamW over every trained parameter; returns the sum of squares of what changed.
  double update(Context& ctx, double lr, float scale) {
    double total = 0;
    for (const FlatRange& range : ranges) {
      double squares = 0;
      adamw(ctx, {.master = at(state.master, range),
                  .grad = gradients.flat + range.first,
                  .m = at(state.m, range),
                  .v = at(state.v, range),
                  .weight = static_cast<char*>(weights.flat()) + std::size_t(range.first) * bytes_of(weights.dtype()),
                  .weight_dtype = weights.dtype(),
                  .n = range.count,
                  .t = state.optimizer_steps,
                  .lr = lr,
                  .beta1 = optimizer.beta1,
                  .beta2 = optimizer.beta2,
                  .eps = optimizer.eps,
                  .weight_decay = optimizer.weight_decay,
                  .grad_scale = scale,
                  .master_dtype = dtype_of(optimizer.precision.weights),
                  .moments_dtype = dtype_of(optimizer.precision.moments),
                  .update_squares = &squares});
      total += squares;
    }
    return total;
  }

  static float* at(const Buffer& buffer, const FlatRange& range) { return static_cast<float*>(buffer.data()) + range.first; }

  OptimizerConfig optimizer;
  ExecutionConfig execution;
  std::int64_t max_sequence;
  std::optional<Scorer> scorer;  // always there but while its numerics change
  Weights weights;
  TrainerState state;
  Buffer flat_gradient;  // (flat_size) f32
  Buffer tied_head;      // (V, D) f32 when tied
  Gradients gradients;
  AccumulatedGradients accumulated;
  std::vector<FlatRange> ranges;
  bool finished = false;  // finish_gradients was called on what is accumulated
};

Trainer::Trainer(const ModelConfig& model, const Numerics& numerics, const ExecutionConfig& execution, const OptimizerConfig& optimizer,
                 std::int64_t max_sequence)
    : impl_(std::make_unique<State>(model, numerics, execution, optimizer, max_sequence)) {}
Trainer::~Trainer() = default;

const ModelConfig& Trainer::model_config() const { return impl_->model(); }
const ParameterList& Trainer::parameters() const { return impl_->parameters(); }
const Numerics& Trainer::numerics() const { return impl_->scorer->numerics(); }
Weights& Trainer::weights() { return impl_->weights; }
TrainerState& Trainer::state() { return impl_->state; }
void Trainer::set_numerics(const Numerics& numerics) {
  State& s = *impl_;
  require(numerics.compute == this->numerics().compute, "internal: a trainer's compute dtype does not change");
  s.scorer.emplace(s.model(), numerics, s.execution, s.max_sequence, true);
}
void Trainer::refresh_weights(Context& ctx) {
  State& s = *impl_;
  s.round_master(ctx);
  set_weights(ctx, s.weights, s.state.master);
}

void Trainer::reset_optimizer(const OptimizerConfig& config) {
  if (config.precision.weights != impl_->optimizer.precision.weights)
    throw UsageError("optimizer: precision.weights cannot change between the phases of a run");
  impl_->optimizer = State::checked(config);
  impl_->set_frozen();
  impl_->accumulated = AccumulatedGradients(config.accumulation, parameters().flat_size());
  TrainerState& s = impl_->state;
  s.m.zero();
  s.v.zero();
  s.optimizer_steps = s.schedule_steps = s.nonfinite_in_a_row = 0;
  s.loss_scale = initial_loss_scale(config.loss_scaling, numerics().compute);
  clear_gradients();
}

TokenScores Trainer::score(Context& ctx, const Weights& weights, std::span<const TrainSequence> sequences, float temperature, Mat logits) {
  return impl_->scorer->score(ctx, weights, sequences, temperature, logits);
}

void Trainer::accumulate(Context& ctx, std::span<const TrainSequence> sequences, float temperature, const TokenObjective& objective) {
  require(!impl_->finished, "internal: gradients were read; step() or clear_gradients() comes before more are accumulated");
  impl_->accumulate(ctx, sequences, temperature, objective);
}

const float* Trainer::gradients(Context& ctx) {
  impl_->finish(ctx);
  return impl_->gradients.flat;
}

void Trainer::clear_gradients() {
  impl_->accumulated.clear();
  impl_->flat_gradient.zero();
  if (impl_->tied_head) impl_->tied_head.zero();
  impl_->finished = false;
}

StepResult Trainer::step(Context& ctx) {
  State& s = *impl_;
  s.finish(ctx);
  StepResult result;
  result.lr = learning_rate(s.optimizer, s.state.schedule_steps);
  const double squares = sum_of_squares(ctx, s.gradients.flat, s.parameters().flat_size());
  result.grad_norm = std::sqrt(squares);
  ++s.state.schedule_steps;
  const DType compute = s.scorer->numerics().compute;
  LossScale& loss_scale = s.state.loss_scale;
  if (loss_scale.active) result.loss_scale = loss_scale.value;
  const bool overflow = !State::in_range(squares);
  const bool expected = overflow_is_expected(s.optimizer.loss_scaling, compute, loss_scale);
  update_loss_scale(s.optimizer.loss_scaling, compute, overflow, loss_scale);
  if (overflow) {
    result.skipped = true;
    result.nonfinite = s.first_nonfinite(ctx);
    s.clear(ctx);
    if (expected) return result;
    if (++s.state.nonfinite_in_a_row >= s.optimizer.max_nonfinite_steps)
      throw Error(
          fmt::format("the gradient was not finite in {} steps in a row (optimizer.max_nonfinite_steps), now that of {}; the weights "
                      "are as before the first of them. A smaller learning rate (now {}) may help",
                      s.state.nonfinite_in_a_row, result.nonfinite, result.lr));
    return result;
  }
  s.state.nonfinite_in_a_row = 0;
  const float scale = clip_factor(result.grad_norm, s.optimizer.grad_clip);
  result.clip_factor = scale;
  const double weights = sum_of_squares(ctx, static_cast<const float*>(s.state.master.data()), s.parameters().flat_size());
  ++s.state.optimizer_steps;
  const double update = s.update(ctx, result.lr, scale);
  result.update_ratio = weights > 0 ? std::sqrt(update / weights) : 0;
  s.weights.repack(ctx);
  s.clear(ctx);
  return result;
}

std::size_t Trainer::memory_bytes() const {
  const State& s = *impl_;
  return s.scorer->memory_bytes() + s.weights.memory_bytes() + s.state.master.size() + s.state.m.size() + s.state.v.size() +
         s.flat_gradient.size() + s.tied_head.size() + s.accumulated.memory_bytes();
}

std::size_t Trainer::memory_bytes(const ModelConfig& model, const Numerics& numerics, const ExecutionConfig& execution,
                                  const OptimizerConfig& optimizer, std::int64_t max_sequence) {
  const std::int64_t elements = ParameterList(model).flat_size();
  const std::size_t flat = std::size_t(elements) * sizeof(float);
  return Scorer::memory_bytes(model, numerics, execution, max_sequence, true) + Weights::memory_bytes(model, numerics.compute) + 4 * flat +
         tied_head_gradient_bytes(model) + AccumulatedGradients::memory_bytes(optimizer.accumulation, elements);
}

}  // namespace plumb
