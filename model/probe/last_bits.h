// Are two results the same, up to what a last bit of FP32 inside may do?
#pragma once
#include <cstdint>

#include "model/probe/region.h"

namespace plumb {

/// How many elements of `got` are not those of `want` (same shape and dtype). BF16: any other bits, NaNs apart. FP32: further apart than
/// another exp or another order of a sum explains, 2^-17 of the larger or 2^-20 of the tensor's root mean square; a rounding to BF16
/// moves nearly every value further.
std::int64_t elements_apart(const RegionTensor& want, const RegionTensor& got);

}  // namespace plumb
