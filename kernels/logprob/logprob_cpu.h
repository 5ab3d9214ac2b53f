// What logprob.cpp validates and the CPU computes. Internal to this folder.
#pragma once
#include "kernels/logprob/logprob.h"

namespace plumb::logprob_detail {

void forward_cpu(Context&, const LogprobForward&, Sites);
void backward_cpu(Context&, const LogprobBackward&, Sites);

/// How the logits are stored between the LM head and the log-softmax.
inline DType logits_dtype(Sites sites) { return sites.rounded(Site::lm_head_logits) ? sites.to : DType::f32; }

}  // namespace plumb::logprob_detail
