// A configuration struct described at run time: one ConfigField per key, made by its `visit`.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/config/node.h"
#include "engine/config/visit.h"

namespace plumb {

struct ConfigField;
/// The keys of one struct, in its order. Refers to the struct it was made from.
using ConfigSection = std::vector<ConfigField>;

struct ConfigField {
  std::string name;
  std::string doc;
  KeyScope scope = KeyScope::identity;
  std::function<void(const ConfigNode&)> set;  // throws UsageError; null for a section of plain keys
  std::function<nlohmann::ordered_json()> get;
  ConfigSection section;  // of a nested struct
  /// YAML lines that set() reads back, for what is written in another form than it is compared and hashed in; else null.
  std::function<std::string(const std::string& indent)> print;
  bool is_section() const { return !section.empty(); }
};

/// Conversions of scalars. Each throws UsageError: where, what was found, what would be right.
void read_value(const ConfigNode&, bool&);
void read_value(const ConfigNode&, std::int32_t&);
void read_value(const ConfigNode&, std::int64_t&);
void read_value(const ConfigNode&, std::uint64_t&);
void read_value(const ConfigNode&, double&);
void read_value(const ConfigNode&, float&);
void read_value(const ConfigNode&, std::string&);
/// The index of the node's text in `names`; the error lists them.
std::size_t read_choice(const ConfigNode&, const std::vector<std::string>& names);
/// The items of a list node.
const std::vector<ConfigNode>& read_list(const ConfigNode&);

template <class E>
requires std::is_enum_v<E>
void read_value(const ConfigNode& node, E& value) {
  std::vector<std::string> names;
  for (const auto& [_, name] : enum_names(E{})) names.emplace_back(name);
  value = enum_names(E{})[read_choice(node, names)].first;
}

template <class T>
void read_value(const ConfigNode& node, std::vector<T>& value) {
  std::vector<T> items;
  for (const ConfigNode& item : read_list(node)) read_value(item, items.emplace_back());
  value = std::move(items);
}

template <class T>
void read_value(const ConfigNode& node, std::optional<T>& value) {
  value.reset();
  if (node.kind != ConfigNode::Kind::null) read_value(node, value.emplace());
}

template <class T>
nlohmann::ordered_json value_json(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    for (const auto& [candidate, name] : enum_names(T{}))
      if (candidate == value) return name;
    return nullptr;
  } else {
    return value;
  }
}
template <class T>
nlohmann::ordered_json value_json(const std::vector<T>& value) {
  auto list = nlohmann::ordered_json::array();
  for (const T& item : value) list.push_back(value_json(item));
  return list;
}
template <class T>
nlohmann::ordered_json value_json(const std::optional<T>& value) {
  return value ? value_json(*value) : nlohmann::ordered_json(nullptr);
}

/// The visitor (visit.h) that describes a struct.
class ConfigDescriber {
 public:
  ConfigDescriber(ConfigSection& out, KeyScope scope) : out_(out), scope_(scope) {}

  template <class T>
  void field(const char* name, T& value, const char* doc, KeyScope scope = KeyScope::identity) {
    out_.push_back({.name = name,
                    .doc = doc,
                    .scope = narrower(scope),
                    .set = [&value](const ConfigNode& node) { read_value(node, value); },
                    .get = [&value] { return value_json(value); }});
  }

  void custom(ConfigField field) {
    field.scope = narrower(field.scope);
    out_.push_back(std::move(field));
  }

  template <class S>
  void section(const char* name, S& value, const char* doc, KeyScope scope = KeyScope::identity) {
    ConfigField& field = out_.emplace_back(ConfigField{.name = name, .doc = doc, .scope = narrower(scope)});
    ConfigDescriber inner(field.section, field.scope);
    visit(inner, value);
  }

 private:
  KeyScope narrower(KeyScope scope) const { return scope_ == KeyScope::execution ? scope_ : scope; }

  ConfigSection& out_;
  KeyScope scope_;
};

/// The keys of `config`, which must outlive the result.
template <class C>
ConfigSection describe_config(C& config) {
  ConfigSection section;
  ConfigDescriber describer(section, KeyScope::identity);
  visit(describer, config);
  return section;
}

}  // namespace plumb
