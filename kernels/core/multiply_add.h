// The multiply-add units alone: what an instruction set's matmul could reach if nothing else took time.
#pragma once
#include <cstdint>

#include "kernels/core/context.h"

namespace plumb {

/// Runs `steps` steps of independent chains of the instruction that the BF16 matmul of `isa` uses for many rows (the machine must have
/// it) on the calling thread. Returns the floating-point operations done; a multiply-add is two.
double run_multiply_adds(Isa isa, std::int64_t steps);

/// True when this machine does more multiply-adds a second with AVX-512 FMA than with vdpbf16ps, which does two a lane but may have half
/// the units or less. Timed once per process, in about a millisecond; only for machines that have both.
bool fma_beats_dpbf16();

}  // namespace plumb
