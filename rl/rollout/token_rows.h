// Tokens of a safetensors file: `ids` ([B, T]), and numbers of the predicted ones, ids[:, 1:].
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/safetensors/safetensors.h"

namespace plumb {

struct TokenRows {
  std::int64_t batch = 0;         // B, at least 1
  std::int64_t length = 0;        // T, at least 2
  std::vector<std::int32_t> ids;  // (B, T)
  std::span<const std::int32_t> row(std::int64_t i) const { return std::span(ids).subspan(std::size_t(i * length), std::size_t(length)); }
};

/// `ids`, I64 or I32 [B, T], within the model's vocabulary and window. Throws Error naming the file and what would be right.
TokenRows read_token_rows(const SafetensorsFile&, const ModelConfig&);
/// The tensor `name`, F32 [B, T-1], all finite. Throws Error likewise.
std::vector<float> read_predicted(const SafetensorsFile&, std::string_view name, const TokenRows&);

}  // namespace plumb
