// What the trainer needs of its optimizer's settings: which parameters move, and by which factor the gradient is clipped.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/config/sections.h"
#include "kernels/core/dtype.h"
#include "model/config.h"

namespace plumb {

/// Throws UsageError naming the key when a value makes no sense.
void check_optimizer(const OptimizerConfig&);

/// By index in ParameterList::all(): 1 where a pattern (fnmatch over Hugging Face names) matches. Throws UsageError when a
/// pattern matches no parameter, or when nothing is left to train.
std::vector<char> frozen_parameters(const ParameterList&, const std::vector<std::string>& patterns);

/// Elements [first, first + count) of the flat index space.
struct FlatRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
/// The trained parameters as few ranges as possible; gaps between trained neighbours, which hold zeros, belong to them.
std::vector<FlatRange> trained_ranges(const ParameterList&, const std::vector<char>& frozen);

inline DType dtype_of(StateDType t) { return t == StateDType::bf16 ? DType::bf16 : DType::f32; }
inline DType dtype_of(GradientDType t) {
  if (t == GradientDType::fp32) return DType::f32;
  return t == GradientDType::bf16 ? DType::bf16 : DType::f16;
}

/// min(1, max_norm / (norm + 1e-6)) in FP32, operation by operation as torch.nn.utils.clip_grad_norm_. max_norm 0: 1.
float clip_factor(double norm, double max_norm);

}  // namespace plumb
