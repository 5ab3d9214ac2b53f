// Calls somebody's function (model/probe/probe_abi.h) on known inputs, in a process of its own: what crashes there, or writes where it must
// not, is told and harms nothing here.
#pragma once
#include <filesystem>
#include <string>

#include "model/probe/region_file.h"

namespace plumb {

struct ProbeLibrary {
  std::filesystem::path path;
  std::string symbol;       // of the forward
  std::string backward;     // of the backward; empty: none
  bool stream_f32 = false;  // resid_norm: r and the stored stream are FP32
};

/// The outputs, and with `backward` the gradients, that the library gives. `inputs` are checked ones in BF16 (resid_norm's r may be FP32
/// with stream_f32). To be called while the process has one thread. Throws Error, one line, when the library or a function is not there,
/// and when the function fails, crashes, writes outside its outputs or into its inputs, leaves an element unwritten, or gives other bits
/// the second time.
RegionObservation observe_library(const ProbeLibrary&, const RegionInputs& inputs);

}  // namespace plumb
