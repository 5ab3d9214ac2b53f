// Every way in which one fact of a numerics could be otherwise, as far as a forward shows it.
#pragma once
#include <string>
#include <vector>

#include "kernels/numerics/numerics.h"
#include "model/config.h"

namespace plumb {

struct FactChange {
  std::string fact;  // "rope.products", "reductions.matmul"; "the reductions of hf_eager" for all of a preset's at once
  std::string from;  // "b"; "b, in places f" where layers differ; empty for a preset's reductions
  std::string to;    // "f"; likewise
  Numerics numerics;
  std::string name() const { return to.empty() ? fact : fact + " " + to; }
};

/// One site set to one value everywhere, one attention formula, one order of summation, or another preset's orders; without what no
/// kernel does and what the model has not.
std::vector<FactChange> single_changes(const Numerics& from, const ModelConfig&);

}  // namespace plumb
