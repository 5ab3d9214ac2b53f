// A DriftReport as JSON, as a table for people, token by token, and as one self-contained HTML page.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "rl/drift/drift.h"

namespace plumb {

/// A function of the report: no times, hosts or paths but the model's.
nlohmann::ordered_json drift_json(const DriftReport&, const ModelConfig&);
nlohmann::ordered_json forensics_json(const Forensics&);
std::string drift_table(const DriftReport&, const ModelConfig&);
std::string forensics_table(const Forensics&);
/// One JSON object per response token: sequence, position, id, both log-probs, where the bits part.
std::string drift_tokens_jsonl(const DriftReport&, const std::vector<TrainSequence>&);
std::string drift_html(const DriftReport&, const ModelConfig&);

/// "layer 3, rotation of q", "no difference": of one token.
std::string place_text(const FirstDifference&);

/// Tokens whose bits part at one place, in the order of the forward.
struct PlaceCount {
  FirstDifference place;
  std::int64_t tokens = 0;
};
std::vector<PlaceCount> place_counts(const StageComparison&);

}  // namespace plumb
