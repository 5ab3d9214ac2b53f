// `plumb bench presets` and `toggles`: what each rounding preset costs in speed, and what each of its facts does.
#pragma once
#include "rl/cli/bench_work.h"

namespace plumb {

/// Times an optimizer step and batched decoding of a random model under every preset, or under `numerics` with one site, formula or order
/// of summation moved, each between two runs of the preset `numerics`, and prints the ratios of the times and percent of this machine's
/// limit. Throws UsageError for an unknown preset or a model that does not take so many tokens.
void bench_presets(const BenchArguments&);

}  // namespace plumb
