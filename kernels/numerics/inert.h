// Toggles that change nothing, by right: a site that sees only values which are BF16 already, or that the model does not have.
#pragma once
#include <string>
#include <vector>

#include "kernels/numerics/numerics.h"

namespace plumb {

struct InertSite {
  Site site = Site::embedding;
  std::string reason;
};

/// What the model and the run add to the numerics.
struct InertContext {
  bool qk_norm = true;  // Qwen3
  int head_dim = 0;     // 0: not known
  bool temperature_one = false;
};

/// The sites of which changing the base value changes no output bit of any forward. Sites that are stored in the compute dtype
/// (and can only be `b`) are not listed.
std::vector<InertSite> inert_sites(const Numerics&, const InertContext&);

}  // namespace plumb
