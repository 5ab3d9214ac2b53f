// Golden files of the three regions (RoPE with or without QK norm, SwiGLU, residual RMSNorm) against this engine: inputs `in.*`, upstream
// gradients `up.*`, and what a stack gave, `MODE.out.*` and `MODE.grad.*`, in BF16. What a file holds is told by its tensors; one whose
// name begins with "serving" holds a serving engine's formulas.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/core/context.h"
#include "kernels/numerics/numerics.h"

namespace plumb {

/// A mode of a golden file ("eager": as PyTorch runs it; "compiled": by Inductor) and the numerics that should give it.
struct RegionCase {
  std::string mode;
  std::string preset;  // with a remark where the file asks for one: "hf_compiled, table given"
  Numerics numerics;
};
/// The matching presets of a file. Throws Error when it holds no region.
std::vector<RegionCase> region_cases(const std::filesystem::path& file);

struct RegionResult {
  std::string output;  // "out.0", "grad.w"
  std::int64_t differ = 0;
  std::int64_t elements = 0;
  /// 0.01 % or two elements: a tie in a rare FP32 sum of another order.
  bool acceptable() const { return differ <= 2 || double(differ) <= 1e-4 * double(elements); }
};
/// Computes the file's region, forward and backward, and counts the BF16 elements that are not those of the mode.
std::vector<RegionResult> check_region(Context&, const std::filesystem::path& file, const RegionCase&);

/// The golden files of a folder, by name. Throws Error when there are none.
std::vector<std::filesystem::path> region_files(const std::filesystem::path& folder);

}  // namespace plumb
