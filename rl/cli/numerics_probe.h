// `plumb numerics probe`: where an implementation rounds, told from what it gave for known inputs.
#pragma once
#include <string>

#include "model/probe/infer.h"

namespace plumb {

struct ProbeArguments {
  // One of three:
  std::string file;          // outputs that were recorded, and their inputs unless given apart
  std::string library;       // outputs that a shared library gives
  std::string write_inputs;  // none: writes crafted inputs there
  std::string inputs;        // empty: in `file`; crafted for `library`
  std::string mode;          // of `file`; empty: every one
  std::string symbol;        // of `library`
  std::string backward;      // of `library`; empty: forward alone
  std::string stream = "bf16";
  std::string region;                        // of crafted inputs
  int width = 0;                             // of crafted inputs; 0: craft_inputs' own
  double tolerance = 100 * kProbeTolerance;  // percent
  int threads = 0;                           // 0: one per core
  bool json = false;
};

/// Prints what was found, of every mode. 0 when every mode is explained, outputs and gradients, else 1. Throws UsageError when the
/// arguments do not go together.
int probe_numerics(const ProbeArguments&);

}  // namespace plumb
