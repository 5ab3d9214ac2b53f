#include <fmt/format.h>

#include <cmath>

#include "engine/trainer/loss_scaling.h"
#include "engine/trainer/optimizer.h"
#include "kernels/core/error.h"

namespace plumb {
namespace {

constexpr double kPi = 3.14159265358979323846;

void require_usage(bool ok, const char* key, double value, const char* right) {
  if (!ok) throw UsageError(fmt::format("optimizer: {} is {}; it must be {}", key, value, right));
}

/// What is left of the peak when `progress` (0 to 1) of the decay is done.
double decay(LrSchedule kind, double progress) {
  switch (kind) {
    case LrSchedule::constant: return 1;
    case LrSchedule::linear: return 1 - progress;
    case LrSchedule::cosine: return 0.5 * (1 + std::cos(kPi * progress));
  }
  return 1;
}

}  // namespace

void check_optimizer(const OptimizerConfig& c) {
  require_usage(c.lr >= 0 && std::isfinite(c.lr), "lr", c.lr, "at least 0");
  require_usage(c.beta1 >= 0 && c.beta1 < 1, "beta1", c.beta1, "in [0, 1)");
  require_usage(c.beta2 >= 0 && c.beta2 < 1, "beta2", c.beta2, "in [0, 1)");
  require_usage(c.eps > 0 && std::isfinite(c.eps), "eps", c.eps, "above 0");
  require_usage(c.weight_decay >= 0 && std::isfinite(c.weight_decay), "weight_decay", c.weight_decay, "at least 0");
  require_usage(c.grad_clip >= 0 && std::isfinite(c.grad_clip), "grad_clip", c.grad_clip, "at least 0 (0: no clipping)");
  require_usage(c.max_nonfinite_steps >= 1, "max_nonfinite_steps", c.max_nonfinite_steps, "at least 1");
  const LossScalingConfig& s = c.loss_scaling;
  require_usage(s.scale >= kLeastLossScale && s.scale <= kMostLossScale, "loss_scaling.scale", s.scale, "from 2^-126 to 2^126");
  require_usage(s.growth_factor > 1 && std::isfinite(s.growth_factor), "loss_scaling.growth_factor", s.growth_factor, "above 1");
  require_usage(s.backoff_factor > 0 && s.backoff_factor < 1, "loss_scaling.backoff_factor", s.backoff_factor, "between 0 and 1");
  require_usage(s.growth_interval >= 1, "loss_scaling.growth_interval", s.growth_interval, "at least 1");
  require_usage(c.accumulation.sequences >= 0, "accumulation.sequences", c.accumulation.sequences, "at least 0 (0: one chain)");
  if (c.accumulation.dtype != GradientDType::fp32 && c.accumulation.sequences == 0)
    throw UsageError(
        fmt::format("optimizer: accumulation.dtype {} needs accumulation.sequences: the sum depends on the sequences of a part",
                    enum_names(GradientDType{})[std::size_t(c.accumulation.dtype)].second));
  require_usage(c.schedule.warmup_steps >= 0, "schedule.warmup_steps", c.schedule.warmup_steps, "at least 0");
  require_usage(c.schedule.final_ratio >= 0 && c.schedule.final_ratio <= 1, "schedule.final_ratio", c.schedule.final_ratio, "in [0, 1]");
  require_usage(c.schedule.kind == LrSchedule::constant || c.schedule.total_steps > c.schedule.warmup_steps, "schedule.total_steps",
                c.schedule.total_steps, "above schedule.warmup_steps for a linear or cosine schedule");
}

double learning_rate(const OptimizerConfig& c, std::int64_t step) {
  const ScheduleConfig& s = c.schedule;
  if (step < s.warmup_steps) return c.lr * double(step + 1) / double(s.warmup_steps);
  if (s.kind == LrSchedule::constant) return c.lr;
  const double progress = std::fmin(1.0, double(step - s.warmup_steps) / double(s.total_steps - s.warmup_steps));
  return c.lr * (s.final_ratio + (1 - s.final_ratio) * decay(s.kind, progress));
}

}  // namespace plumb
