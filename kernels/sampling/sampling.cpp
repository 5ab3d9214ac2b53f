#include "kernels/sampling/sampling.h"

#include <string>

#include "kernels/core/error.h"
#include "kernels/sampling/sampling_cpu.h"

namespace plumb {

SampledToken sample_token(const void* logits, DType dtype, std::int64_t vocab, const SamplingParams& params, float u, Sites sites,
                          float* work) {
  require(vocab > 0, "sampling: the vocabulary is empty");
  require(params.temperature >= 0, "sampling: temperature must not be negative");
  require(params.top_k >= 0, "sampling: top_k must not be negative");
  require(params.top_p > 0 && params.top_p <= 1, "sampling: top_p must be in (0, 1]");
  require(u >= 0 && u < 1, "sampling: u must be in [0, 1)");
  return sampling_detail::sample_cpu(logits, dtype, vocab, params, u, sites, work);
}

}  // namespace plumb
