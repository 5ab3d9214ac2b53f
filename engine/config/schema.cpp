#include "engine/config/schema.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "kernels/core/error.h"
#include "kernels/core/nearest.h"
#include "model/files/files.h"

namespace plumb {
namespace {

using Kind = ConfigNode::Kind;

[[noreturn]] void wrong(const ConfigNode& node, const std::string& right) {
  throw UsageError(fmt::format("{}: found {}; {} is right", node.where, describe(node), right));
}

std::string_view plain(const ConfigNode& node, const char* right) {
  if (node.kind != Kind::scalar || node.quoted || node.text.empty()) wrong(node, right);
  std::string_view text = node.text;
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  return text;
}

template <class T>
void read_integer(const ConfigNode& node, T& value) {
  const std::string right = fmt::format("a whole number from {} to {}", std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
  const std::string_view text = plain(node, right.c_str());
  T parsed{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error != std::errc() || end != text.data() + text.size()) wrong(node, right);
  value = parsed;
}

}  // namespace

void read_value(const ConfigNode& node, bool& value) {
  const std::string_view text = plain(node, "true or false");
  if (text != "true" && text != "false") wrong(node, "true or false");
  value = text == "true";
}

void read_value(const ConfigNode& node, std::int32_t& value) { read_integer(node, value); }
void read_value(const ConfigNode& node, std::int64_t& value) { read_integer(node, value); }
void read_value(const ConfigNode& node, std::uint64_t& value) { read_integer(node, value); }

void read_value(const ConfigNode& node, double& value) {
  constexpr const char* kRight = "a number such as 0.5 or 1e-6";
  const std::string_view text = plain(node, kRight);
  double parsed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(parsed)) wrong(node, kRight);
  value = parsed;
}

void read_value(const ConfigNode& node, float& value) {
  double wide = 0;
  read_value(node, wide);
  if (std::abs(wide) > double(std::numeric_limits<float>::max())) wrong(node, "a number in the range of FP32");
  value = float(wide);
}

void read_value(const ConfigNode& node, std::string& value) {
  if (node.kind != Kind::scalar) wrong(node, "text (quoted where it is empty)");
  value = node.text;
}

std::size_t read_choice(const ConfigNode& node, const std::vector<std::string>& names) {
  if (node.kind == Kind::scalar) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (names[i] == node.text) return i;
    }
  }
  std::string list;
  for (std::size_t i = 0; i < names.size(); ++i) list += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  const std::string_view meant = node.kind == Kind::scalar ? nearest(node.text, {names.begin(), names.end()}) : "";
  throw UsageError(fmt::format("{}: found {}; {} is right{}", node.where, describe(node), list,
                               meant.empty() ? "" : fmt::format(" (did you mean {}?)", in_quotes(meant))));
}

const std::vector<ConfigNode>& read_list(const ConfigNode& node) {
  if (node.kind != Kind::list) wrong(node, "a list such as [a, b]");
  return node.items;
}

}  // namespace plumb
