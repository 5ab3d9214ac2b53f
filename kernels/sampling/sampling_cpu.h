// What sampling.cpp validates and the CPU computes. Internal to this folder.
#pragma once
#include "kernels/sampling/sampling.h"

namespace plumb::sampling_detail {

SampledToken sample_cpu(const void* logits, DType dtype, std::int64_t vocab, const SamplingParams&, float u, Sites, float* work);

}  // namespace plumb::sampling_detail
