// A Hugging Face folder ready to run, and the options that sample and score share.
#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "kernels/core/context.h"
#include "kernels/numerics/numerics.h"
#include "model/config.h"
#include "model/weights.h"

namespace plumb {

struct ModelArguments {
  std::string model;
  std::string numerics = "fused";
  int threads = 0;
};
/// Adds --model, --numerics and --threads.
void add_model_options(CLI::App&, ModelArguments&);

struct LoadedModel {
  ModelConfig config;
  Numerics numerics;
  std::unique_ptr<Context> ctx;
  Buffer master;  // (flat_size) f32
  std::unique_ptr<Weights> weights;
};
LoadedModel load_model(const ModelArguments&);

}  // namespace plumb
