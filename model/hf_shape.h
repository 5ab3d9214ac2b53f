// How Hugging Face files shape a parameter.
#pragma once
#include <cstdint>
#include <vector>

#include "model/config.h"

namespace plumb {

/// Matrices (rows, cols); vectors have one dimension.
std::vector<std::int64_t> hf_shape(const Parameter&);

}  // namespace plumb
