#include "rl/loop/peak_meter.h"

#include <gtest/gtest.h>

#include <vector>

namespace plumb {
namespace {

using Time = std::chrono::steady_clock::time_point;

TEST(PeakMeter, KeepsTheBestProbeOfTheRunOnceASecondOneConfirmsIt) {
  std::vector<double> probes = {30, 70,  40, 50,   // busy: nothing agrees
                                60, 100, 80, 99,   // idle: 100, confirmed by 99
                                20, 20,  20, 20};  // busy again: the peak stays
  std::size_t at = 0;
  PeakMeter meter([&] { return probes.at(at++); });
  EXPECT_EQ(meter.flops(), 0);
  const Time start{};
  meter.probe_if_due(start);
  EXPECT_EQ(at, 4u);
  EXPECT_EQ(meter.flops(), 0);
  meter.probe_if_due(start + PeakMeter::interval / 2);
  EXPECT_EQ(at, 4u) << "too soon";
  meter.probe_if_due(start + PeakMeter::interval);
  EXPECT_EQ(meter.flops(), 100);
  meter.probe_if_due(start + 2 * PeakMeter::interval);
  EXPECT_EQ(at, 12u);
  EXPECT_EQ(meter.flops(), 100);
}

}  // namespace
}  // namespace plumb
