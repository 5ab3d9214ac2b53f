#include "rl/drift/tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/core/error.h"
#include "model/files/files.h"
#include "model/safetensors/safetensors.h"
#include "model/tokenizer/tokenizer.h"

namespace plumb {
namespace {

using nlohmann::json;

std::vector<std::int32_t> ids_of(const json& line, const char* key, const std::string& where, const ModelConfig& model) {
  const auto it = line.find(key);
  if (it == line.end() || !it->is_array()) throw Error(fmt::format("{}: \"{}\" must be a list of token ids", where, key));
  std::vector<std::int32_t> out;
  for (const json& x : *it) {
    if (!x.is_number_integer()) throw Error(fmt::format("{}: \"{}\" must be a list of token ids (integers)", where, key));
    const auto id = x.get<std::int64_t>();
    if (id < 0 || id >= model.vocab_size)
      throw Error(fmt::format("{}: \"{}\": token id {} is not in the vocabulary of {}", where, key, id, model.vocab_size));
    out.push_back(std::int32_t(id));
  }
  return out;
}

void check_length(std::size_t tokens, const std::string& where, const ModelConfig& model) {
  if (std::int64_t(tokens) <= model.max_positions) return;
  throw Error(fmt::format("{}: a sequence of {} tokens; the model's window is {}", where, tokens, model.max_positions));
}

void add_line(const json& line, const std::string& where, const ModelConfig& model, const std::string& key, DriftTokens& out,
              std::vector<double>& numbers) {
  std::vector<std::int32_t> ids = ids_of(line, "prompt_ids", where, model);
  const std::vector<std::int32_t> response = ids_of(line, "response_ids", where, model);
  const auto it = line.find(key);
  if (it == line.end() || !it->is_array()) throw Error(fmt::format("{}: \"{}\" must be a list of log-probs", where, key));
  if (it->size() != response.size())
    throw Error(fmt::format("{}: \"{}\" has {} numbers for {} response tokens", where, key, it->size(), response.size()));
  if (ids.empty() && response.empty()) throw Error(fmt::format("{}: there is no token in it", where));
  std::size_t skip = 0;
  if (ids.empty()) skip = 1;  // nothing predicts the first token
  out.prompt_lens.push_back(std::max<std::int64_t>(1, std::int64_t(ids.size())));
  ids.insert(ids.end(), response.begin(), response.end());
  check_length(ids.size(), where, model);
  out.ids.push_back(std::move(ids));
  for (std::size_t i = skip; i < it->size(); ++i) {
    const json& x = (*it)[i];
    if (!x.is_number() || !std::isfinite(x.get<double>()) || x.get<double>() > 0)
      throw Error(fmt::format("{}: \"{}\" must hold log-probs: finite numbers, at most 0", where, key));
    numbers.push_back(x.get<double>());
  }
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
  const StoredTensor& ids = file.get("ids");
  if (ids.shape.size() != 2 || ids.shape[0] < 1 || ids.shape[1] < 2)
    throw Error(fmt::format("{}: ids is {}; I64 [B, T] with B at least 1 and T at least 2 is right", path.string(), describe(ids)));
  const std::int64_t length = ids.shape[1];
  check_length(std::size_t(length), path.string() + ": ids", model);
  DriftTokens out;
  const std::vector<std::int64_t> all = read_i64(ids);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] < 0 || all[i] >= model.vocab_size)
      throw Error(fmt::format("{}: ids holds {}, outside the vocabulary of {}", path.string(), all[i], model.vocab_size));
    if (std::int64_t(i) % length == 0) out.ids.emplace_back();
    out.ids.back().push_back(std::int32_t(all[i]));
  }
  out.prompt_lens.assign(out.ids.size(), 1);
  if (logprobs_key.empty()) return out;
  const StoredTensor& logprobs = file.get(logprobs_key);
  if (logprobs.shape != std::vector<std::int64_t>{ids.shape[0], length - 1})
    throw Error(
        fmt::format("{}: {} is {}; F32 [{}, {}] is right", path.string(), logprobs_key, describe(logprobs), ids.shape[0], length - 1));
  out.recorded = read_f32(logprobs);
  return out;
}

DriftTokens read_prompts(const std::filesystem::path& path, const std::filesystem::path& model_folder, const ModelConfig& model) {
  const std::string text = read_file(path);
  const Tokenizer tokenizer = Tokenizer::load(model_folder);
  DriftTokens out;
  for (std::size_t begin = 0, number = 1; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    std::vector<std::int32_t> ids = tokenizer.encode(line, true);
    check_length(ids.size(), fmt::format("{}:{}", path.string(), number), model);
    if (ids.size() < 2) continue;  // nothing in it is predicted
    out.ids.push_back(std::move(ids));
    out.prompt_lens.push_back(1);
  }
  if (out.ids.empty()) throw Error(fmt::format("{}: no line has two tokens or more", path.string()));
  return out;
}

DriftTokens read_recorded(const std::filesystem::path& path, const ModelConfig& model, const std::string& logprobs_key) {
  if (path.extension() == ".safetensors") return read_token_file(path, model, logprobs_key);
  const std::string text = read_file(path);
  DriftTokens out;
  std::vector<double> numbers;
  for (std::size_t begin = 0, number = 1; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view content = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (content.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", path.string(), number);
    const json line = parse_json(content, where);
    if (!line.is_object()) throw Error(fmt::format("{}: each line must be a JSON object", where));
    add_line(line, where, model, logprobs_key, out, numbers);
  }
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
