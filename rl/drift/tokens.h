// What is compared: sequences of token ids, and, if some engine recorded them, its log-probs.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/trainer/packing.h"
#include "model/config.h"

namespace plumb {

struct DriftTokens {
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<std::int64_t> prompt_lens;
  std::vector<float> recorded;  // of each response token in order; empty: nothing was recorded
  double quantum = 0;           // the recorded numbers are multiples of it; 0: full FP32
  std::int64_t response_tokens() const;
  /// Views of the first sequences: as many as are needed for max_tokens response tokens (0: all), the last one cut.
  std::vector<TrainSequence> sequences(std::int64_t max_tokens = 0) const;
};

/// safetensors with `ids` (I64 [B, T]); with a key, also its log-probs (F32 [B, T-1]) of ids[:, 1:].
DriftTokens read_token_file(const std::filesystem::path&, const ModelConfig&, const std::string& logprobs_key = "");
/// A text file, one prompt a line, by the model folder's tokenizer; every token but the first is scored.
DriftTokens read_prompts(const std::filesystem::path&, const std::filesystem::path& model_folder, const ModelConfig&);
/// Lines {"prompt_ids", "response_ids", KEY: log-probs of the response}; other keys are ignored. A safetensors file is read as above,
/// by KEY. Throws Error with file and line.
DriftTokens read_recorded(const std::filesystem::path&, const ModelConfig&, const std::string& logprobs_key);

/// The decimal step that all numbers are multiples of, 1e-9 .. 1e-2; 0 when they are FP32 values written out, or finer.
double quantum_of(const std::vector<double>& numbers);

}  // namespace plumb
