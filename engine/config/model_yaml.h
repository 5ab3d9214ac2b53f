// The shape of a randomly initialised model from configs/models/*.yaml.
#pragma once
#include <filesystem>
#include <string>

#include "model/config.h"

namespace plumb {

/// A YAML file, or the name of one in configs/models: `name`.yaml is looked for in configs/models of the working folder, of
/// the program's folder and its parents, and in share/plumb/configs/models beside them. Throws UsageError with the names known.
std::filesystem::path find_model_yaml(const std::string& name_or_path);

/// The shape in the file; vocab_size stays 0 when the file leaves it to the tokenizer. Throws UsageError with file and line.
ModelConfig read_model_yaml(const std::filesystem::path& file);

}  // namespace plumb
