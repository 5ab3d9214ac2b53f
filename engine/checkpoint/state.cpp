#include "engine/checkpoint/state.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "kernels/core/error.h"
#include "model/files/files.h"
#include "model/safetensors/safetensors.h"

namespace plumb {
namespace {

using Json = nlohmann::ordered_json;

/// JSON has no NaN and no infinities; their names stand for them.
Json double_json(double x) {
  if (std::isnan(x)) return "NaN";
  if (std::isinf(x)) return x > 0 ? "Infinity" : "-Infinity";
  return x;  // the shortest text that reads back to the same bits
}

std::optional<double> double_of(const Json& json) {
  if (json.is_number()) return json.get<double>();
  if (json == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (json == "Infinity") return std::numeric_limits<double>::infinity();
  if (json == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

std::pair<std::string, std::string> split(const std::string& name) {
  const auto slash = name.find('/');
  require(slash != std::string::npos && slash > 0, "internal: a state buffer is named FILE/TENSOR, not " + name);
  return {name.substr(0, slash), name.substr(slash + 1)};
}

}  // namespace

void SaveVisitor::put(const std::string& name, Json x) {
  require(!values_.contains(name), "internal: state value " + name + " is saved twice");
  values_[name] = std::move(x);
}

void SaveVisitor::value(const std::string& name, const double& x) { put(name, double_json(x)); }

void SaveVisitor::value(const std::string& name, const std::vector<double>& x) {
  Json list = Json::array();
  for (const double item : x) list.push_back(double_json(item));
  put(name, std::move(list));
}

void SaveVisitor::buffer(const std::string& name, const Buffer& data, std::int64_t elements, DType dtype) {
  const auto [file, tensor] = split(name);
  require(std::size_t(elements) * bytes_of(dtype) <= data.size(), "internal: state buffer " + name + " is smaller than said");
  files_[file].push_back({tensor, &data, elements, dtype});
}

LoadVisitor::LoadVisitor(std::filesystem::path where, std::string section, const Json& values, std::set<std::string> skipped)
    : where_(std::move(where)), section_(std::move(section)), values_(values), skipped_(std::move(skipped)) {}

const Json& LoadVisitor::take(const std::string& name) {
  const auto it = values_.find(name);
  if (it == values_.end()) throw Error(fmt::format("{}: state.json: {}.{} is missing", where_.string(), section_, name));
  taken_.insert(name);
  return *it;
}

void LoadVisitor::wrong(const std::string& name, const std::string& expected) const {
  throw Error(fmt::format("{}: state.json: {}.{} is not {}", where_.string(), section_, name, expected));
}

template <class T>
void LoadVisitor::integer(const std::string& name, const Json& found, T& x) const {
  const std::string expected = fmt::format("a whole number from {} to {}", std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
  if (found.is_number_unsigned()) {
    const auto wide = found.get<std::uint64_t>();
    if (!std::in_range<T>(wide)) wrong(name, expected);
    x = T(wide);
  } else if (found.is_number_integer()) {
    const auto wide = found.get<std::int64_t>();
    if (!std::in_range<T>(wide)) wrong(name, expected);
    x = T(wide);
  } else {
    wrong(name, expected);
  }
}

double LoadVisitor::number(const std::string& name, const Json& found) const {
  const auto x = double_of(found);
  if (!x) wrong(name, "a number");
  return *x;
}

void LoadVisitor::value(const std::string& name, bool& x) {
  const Json& found = take(name);
  if (!found.is_boolean()) wrong(name, "true or false");
  x = found.get<bool>();
}
void LoadVisitor::value(const std::string& name, std::int32_t& x) { integer(name, take(name), x); }
void LoadVisitor::value(const std::string& name, std::uint32_t& x) { integer(name, take(name), x); }
void LoadVisitor::value(const std::string& name, std::int64_t& x) { integer(name, take(name), x); }
void LoadVisitor::value(const std::string& name, std::uint64_t& x) { integer(name, take(name), x); }
void LoadVisitor::value(const std::string& name, double& x) { x = number(name, take(name)); }
void LoadVisitor::value(const std::string& name, std::string& x) {
  const Json& found = take(name);
  if (!found.is_string()) wrong(name, "text");
  x = found.get<std::string>();
}

void LoadVisitor::value(const std::string& name, std::vector<std::int64_t>& x) {
  const Json& found = take(name);
  if (!found.is_array()) wrong(name, "a list");
  x.clear();
  for (const Json& item : found) integer(name, item, x.emplace_back());
}
void LoadVisitor::value(const std::string& name, std::vector<std::uint64_t>& x) {
  const Json& found = take(name);
  if (!found.is_array()) wrong(name, "a list");
  x.clear();
  for (const Json& item : found) integer(name, item, x.emplace_back());
}
void LoadVisitor::value(const std::string& name, std::vector<double>& x) {
  const Json& found = take(name);
  if (!found.is_array()) wrong(name, "a list");
  x.clear();
  for (const Json& item : found) x.push_back(number(name, item));
}
void LoadVisitor::value(const std::string& name, std::vector<std::string>& x) {
  const Json& found = take(name);
  if (!found.is_array()) wrong(name, "a list");
  x.clear();
  for (const Json& item : found) {
    if (!item.is_string()) wrong(name, "a list of texts");
    x.push_back(item.get<std::string>());
  }
}

void LoadVisitor::buffer(const std::string& name, Buffer& data, std::int64_t elements, DType dtype) {
  const auto [file, tensor] = split(name);
  if (skipped_.contains(file)) return;
  const SafetensorsFile stored(where_ / (file + ".safetensors"));
  const StoredTensor& found = stored.get(tensor);
  const StoredType type = dtype == DType::f32 ? StoredType::f32 : StoredType::bf16;
  if (found.dtype != type || found.shape != std::vector<std::int64_t>{elements}) {
    throw Error(fmt::format("{}: tensor {} is {}; this run has {} [{}]", stored.path().string(), in_quotes(tensor), describe(found),
                            name_of(type), elements));
  }
  data.write(found.data.data(), 0, found.data.size());
}

void LoadVisitor::finish() const {
  for (const auto& [name, _] : values_.items()) {
    if (!taken_.contains(name))
      throw Error(fmt::format("{}: state.json: {}.{} is not known to this release", where_.string(), section_, name));
  }
}

}  // namespace plumb
