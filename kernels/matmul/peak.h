// The speed of light: what this machine's multiply-add units and memory do at best, measured here and now. Shared machines
// change speed by the minute, so a percentage means something only against a peak from the same seconds.
#pragma once
#include <cstddef>

#include "kernels/core/context.h"

namespace plumb {

/// Floating-point operations a second (a multiply-add is two) of the instruction that the BF16 matmul of the context's
/// instruction set uses, on all of its threads, measured for about `seconds`.
double measure_peak_flops(Context&, double seconds);
/// The best of 20 such samples of about half a millisecond: less shy of a busy moment.
double best_peak_flops(Context&);

/// Bytes a second when all threads of the context read `bytes` bytes from `data` (64-byte aligned) once.
double measure_read_rate(Context&, const void* data, std::size_t bytes);

}  // namespace plumb
