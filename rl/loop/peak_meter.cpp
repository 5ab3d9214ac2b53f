#include "rl/loop/peak_meter.h"

#include <algorithm>
#include <utility>

namespace plumb {
namespace {
constexpr int kProbes = 4;
constexpr double kAgreement = 0.95;
}  // namespace

PeakMeter::PeakMeter(std::function<double()> probe) : probe_(std::move(probe)) {}

void PeakMeter::probe_if_due(std::chrono::steady_clock::time_point now) {
  if (any_ && now - last_ < interval) return;
  any_ = true;
  last_ = now;
  for (int i = 0; i < kProbes; ++i) {
    const double flops = probe_();
    if (flops > best_)
      second_ = std::exchange(best_, flops);
    else
      second_ = std::max(second_, flops);
  }
}

double PeakMeter::flops() const { return second_ >= kAgreement * best_ ? best_ : 0; }

}  // namespace plumb
