// `plumb bench presets`: what each rounding preset costs in speed.
#pragma once
#include "rl/cli/bench_work.h"

namespace plumb {

/// Times an optimizer step and batched decoding of a random model under every preset, each between two runs of the preset
/// `numerics`, and prints the ratios of the times and percent of this machine's limit. Throws UsageError for an unknown preset or a
/// model that does not take so many tokens.
void bench_presets(const BenchArguments&);

}  // namespace plumb
