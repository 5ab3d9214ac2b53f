// The machine's own limit, measured: what "% of peak" in logs and benches refers to.
#pragma once
#include "kernels/core/context.h"

namespace plumb {

/// FLOP/s that all threads of the context reach together in the matmul's innermost instruction (FMA, or vdpbf16ps on
/// avx512bf16) on registers alone, best of a few samples. Takes about 20 ms.
double measure_peak_flops(Context&);

}  // namespace plumb
