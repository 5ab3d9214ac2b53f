// Recorded inputs and outputs of a region's op in a safetensors file, as conformance/regions has them: inputs `in.*`, upstream gradients
// `up.*`, and what an implementation gave, `MODE.out.*` and `MODE.grad.*` (or `out.*`, `grad.*`: the mode without a name), in BF16 or FP32.
//   rope        in.q, in.k (or q alone): (tokens, heads*head_dim), (tokens, heads, head_dim) or (1, heads, tokens, head_dim); with QK norm
//               in.wq, in.wk; the table as in.const_cos and in.const_sin (tokens, head_dim or head_dim/2), as in.const_table (tokens,
//               head_dim: cos then sin), or computed from in.pos (tokens) and the metadata's theta; metadata head_dim
//   swiglu      in.gate, in.up        resid_norm  in.h, in.r, in.w        metadata eps: 1e-6 when absent
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "model/probe/region.h"
#include "model/safetensors/safetensors.h"

namespace plumb {

/// What one implementation gave for known inputs.
struct RegionObservation {
  std::string mode;  // "eager"; may be empty
  RegionTensors outputs;
};
/// The dtypes in which they were recorded.
RegionWanted outputs_of(const RegionObservation&);

class RegionFile {
 public:
  /// Throws Error naming file and tensor when the file is no safetensors file.
  explicit RegionFile(const std::filesystem::path& path) : file_(path) {}
  /// The region, told by the inputs' names, with checked shapes. Throws Error naming the file when it holds none.
  RegionInputs inputs() const;
  /// Every mode, by name. Other tensors are ignored. Throws Error naming the file and the tensor when there is none, when the inputs give
  /// no such output, or one of another size.
  std::vector<RegionObservation> observations(const RegionInputs&) const;

 private:
  Region region() const;
  RegionTensor tensor(const std::string& name, std::int64_t head_dim) const;
  void read_table(RegionInputs&) const;
  double number(const std::string& key, double otherwise) const;
  [[noreturn]] void fail(const std::string& what) const;

  SafetensorsFile file_;
};

}  // namespace plumb
