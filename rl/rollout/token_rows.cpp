#include "rl/rollout/token_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/core/error.h"

namespace plumb {
namespace {

[[noreturn]] void refuse_file(const SafetensorsFile& file, const std::string& what) {
  throw Error(fmt::format("{}: {}", file.path().string(), what));
}

}  // namespace

TokenRows read_token_rows(const SafetensorsFile& file, const ModelConfig& model) {
  const StoredTensor& ids = file.get("ids");
  if (ids.shape.size() != 2 || ids.shape[0] < 1 || ids.shape[1] < 2)
    refuse_file(file, fmt::format("ids is {}; I64 or I32 [B, T] with B at least 1 and T at least 2 is right", describe(ids)));
  if (ids.dtype != StoredType::i64 && ids.dtype != StoredType::i32)
    refuse_file(file, fmt::format("ids is {}; I64 or I32 is right", describe(ids)));
  TokenRows rows{.batch = ids.shape[0], .length = ids.shape[1]};
  if (rows.length > model.max_positions)
    refuse_file(file, fmt::format("ids has {} tokens a row; the model's window is {}", rows.length, model.max_positions));
  for (const std::int64_t id : read_i64(ids)) {
    if (id < 0 || id >= model.vocab_size)
      refuse_file(file, fmt::format("ids holds {}, outside the vocabulary of {}", id, model.vocab_size));
    rows.ids.push_back(std::int32_t(id));
  }
  return rows;
}

std::vector<float> read_predicted(const SafetensorsFile& file, std::string_view name, const TokenRows& rows) {
  const StoredTensor& tensor = file.get(name);
  const std::int64_t width = rows.length - 1;
  if (tensor.dtype != StoredType::f32 || tensor.shape != std::vector<std::int64_t>{rows.batch, width})
    refuse_file(file, fmt::format("{} is {}; F32 [{}, {}] is right", name, describe(tensor), rows.batch, width));
  std::vector<float> out = read_f32(tensor);
  const auto odd = std::find_if(out.begin(), out.end(), [](float x) { return !std::isfinite(x); });
  if (odd != out.end()) {
    const auto at = odd - out.begin();
    refuse_file(file, fmt::format("{}[{}, {}] is {}; finite numbers are right", name, at / width, at % width, *odd));
  }
  return out;
}

}  // namespace plumb
