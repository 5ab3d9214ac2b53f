// Inputs that tell every choice of a region's sites apart, in as few rows as possible: of a pool of random rows those are kept in which two
// choices give different outputs.
#pragma once
#include <filesystem>

#include "kernels/core/context.h"
#include "model/probe/region.h"

namespace plumb {

/// Elements by which any two choices of sites, and any two backward modes, differ on crafted inputs unless no inputs could tell them: far
/// more than flipped ties. Two orders of a norm's sum, which now and then flip a tie, differ by kCraftedTies where a million elements hold
/// as many.
inline constexpr int kCraftedApart = 200;
inline constexpr int kCraftedTies = 2;

/// width: head_dim (even, 8 to 512; 0: 64), or the columns of swiglu and of the norm (8 to 8192; 0: 256). A function of its arguments. RoPE
/// has two heads in q and one in k, positions below 128, theta 10000. Throws UsageError for another width.
RegionInputs craft_inputs(Context&, Region, int width = 0);

/// The inputs as RegionFile reads them; beside them, for implementations that take a table, table.cos and table.sin in FP32 (rows,
/// head_dim/2). Written whole or not at all.
void write_region_inputs(const std::filesystem::path&, const RegionInputs&);

}  // namespace plumb
