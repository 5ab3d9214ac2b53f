// The sites of the shipped presets as compile-time masks: what the ops instantiate their inner loops for.
#pragma once
#include <initializer_list>

#include "kernels/numerics/numerics.h"

namespace plumb {

constexpr Sites make_sites(std::initializer_list<Site> rounded) {
  Sites s;
  for (Site x : rounded) s.set(x, true);
  return s;
}

/// Every intermediate in FP32, every output and the stored stream rounded, logits FP32.
inline constexpr Sites kFusedSites =
    make_sites({Site::embedding, Site::resid_store, Site::norm_out, Site::rope_out, Site::attn_out, Site::swiglu_out, Site::linear_out});

/// PyTorch eager: every operator's result is a BF16 tensor.
inline constexpr Sites kHfEagerSites{(1u << kSites) - 1u};

/// vLLM on a CPU, compiled (its default): the residual stream is never rounded, the rope table is BF16.
inline constexpr Sites kVllmCpuCompiledSites = make_sites({Site::embedding, Site::norm_out, Site::rope_cos_sin_table, Site::rope_out,
                                                           Site::attn_out, Site::swiglu_out, Site::linear_out, Site::lm_head_logits});

}  // namespace plumb
