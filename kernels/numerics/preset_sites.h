// The sites of the shipped presets as compile-time masks (kFusedSites, kHfEagerSites, ...; no overrides by layer), for tests and
// benches: kernels decide by the sites that concern them (site_dispatch.h).
#pragma once
#include "kernels/numerics/preset_masks.h"
