#include "rl/drift/tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/data/json_lines.h"
#include "kernels/core/error.h"
#include "model/tokenizer/tokenizer.h"
#include "rl/rollout/token_rows.h"

namespace plumb {
namespace {

void check_length(std::size_t tokens, const std::string& where, const ModelConfig& model) {
  if (std::int64_t(tokens) <= model.max_positions) return;
  throw Error(fmt::format("{}: a sequence of {} tokens; the model's window is {}", where, tokens, model.max_positions));
}

void add_line(const JsonLine& line, const ModelConfig& model, const std::string& key, DriftTokens& out, std::vector<double>& numbers) {
  const RecordedTokens tokens = recorded_tokens(line, model.vocab_size, key);
  if (tokens.prompt.empty() && tokens.response.empty()) line.fail("there is no token in it");
  const std::size_t unpredicted = tokens.prompt.empty() ? 1 : 0;  // nothing predicts the first token
  out.prompt_lens.push_back(std::max<std::int64_t>(1, std::int64_t(tokens.prompt.size())));
  std::vector<std::int32_t>& ids = out.ids.emplace_back(tokens.prompt);
  ids.insert(ids.end(), tokens.response.begin(), tokens.response.end());
  check_length(ids.size(), line.where(), model);
  numbers.insert(numbers.end(), tokens.logprobs.begin() + std::ptrdiff_t(unpredicted), tokens.logprobs.end());
}

}  // namespace

std::int64_t DriftTokens::response_tokens() const {
  std::int64_t n = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) n += std::int64_t(ids[i].size()) - prompt_lens[i];
  return n;
}

std::vector<TrainSequence> DriftTokens::sequences(std::int64_t max_tokens) const {
  std::vector<TrainSequence> out;
  std::int64_t left = max_tokens > 0 ? max_tokens : response_tokens();
  for (std::size_t i = 0; i < ids.size() && left > 0; ++i) {
    const std::int64_t response = std::min(left, std::int64_t(ids[i].size()) - prompt_lens[i]);
    if (response <= 0) continue;
    out.push_back({.tokens = std::span(ids[i]).first(std::size_t(prompt_lens[i] + response)), .prompt_len = prompt_lens[i]});
    left -= response;
  }
  return out;
}

DriftTokens read_token_file(const std::filesystem::path& path, const ModelConfig& model, const std::string& logprobs_key) {
  const SafetensorsFile file(path);
  const TokenRows rows = read_token_rows(file, model);
  DriftTokens out;
  for (std::int64_t i = 0; i < rows.batch; ++i) out.ids.emplace_back(rows.row(i).begin(), rows.row(i).end());
  out.prompt_lens.assign(out.ids.size(), 1);
  if (!logprobs_key.empty()) out.recorded = read_predicted(file, logprobs_key, rows);
  return out;
}

DriftTokens read_prompts(const std::filesystem::path& path, const std::filesystem::path& model_folder, const ModelConfig& model) {
  const Tokenizer tokenizer = Tokenizer::load(model_folder);
  DriftTokens out;
  for_each_line(path, [&](std::string_view line, std::int64_t number) {
    std::vector<std::int32_t> ids = tokenizer.encode(line, true);
    check_length(ids.size(), fmt::format("{}:{}", path.string(), number), model);
    if (ids.size() < 2) return;  // nothing in it is predicted
    out.ids.push_back(std::move(ids));
    out.prompt_lens.push_back(1);
  });
  if (out.ids.empty()) throw Error(fmt::format("{}: no line has two tokens or more", path.string()));
  return out;
}

DriftTokens read_recorded(const std::filesystem::path& path, const ModelConfig& model, const std::string& logprobs_key) {
  if (path.extension() == ".safetensors") return read_token_file(path, model, logprobs_key);
  DriftTokens out;
  std::vector<double> numbers;
  for_each_json_line(path, [&](const JsonLine& line) { add_line(line, model, logprobs_key, out, numbers); });
  if (numbers.empty()) throw Error(fmt::format("{}: there is no recorded log-prob in it", path.string()));
  out.recorded.assign(numbers.begin(), numbers.end());
  out.quantum = quantum_of(numbers);
  return out;
}

double quantum_of(const std::vector<double>& numbers) {
  const auto exact = [](double x) { return double(float(x)) == x; };
  if (std::all_of(numbers.begin(), numbers.end(), exact)) return 0;
  for (double step : {1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9}) {
    const auto multiple = [&](double x) { return std::abs(std::nearbyint(x / step) * step - x) <= 1e-3 * step; };
    if (std::all_of(numbers.begin(), numbers.end(), multiple)) return step;
  }
  return 0;
}

}  // namespace plumb
