// `plumb numerics probe`: where an implementation rounds, told from what it gave for known inputs.
#pragma once
#include <string>

#include "model/probe/infer.h"

namespace plumb {

struct ProbeArguments {
  std::string file;                          // outputs, and inputs unless given apart
  std::string inputs;                        // empty: in `file`
  std::string mode;                          // empty: every one
  double tolerance = 100 * kProbeTolerance;  // percent
  int threads = 0;                           // 0: one per core
  bool json = false;
};

/// Prints what was found, of every mode. 0 when all modes have sites that fit, else 1.
int probe_numerics(const ProbeArguments&);

}  // namespace plumb
