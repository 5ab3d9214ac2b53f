// What a model reads of the execution settings.
#pragma once
#include "engine/config/sections.h"
#include "model/qwen.h"

namespace plumb {

inline ModelExecution model_execution(const ExecutionConfig& e) { return {.merged_matmuls = e.merged_matmuls, .recompute = e.recompute}; }

}  // namespace plumb
