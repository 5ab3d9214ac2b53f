// Configuration structs (those with a `visit`, see visit.h) from YAML and back: strict parsing with positions and suggestions,
// overrides, the resolved and documented print-out, JSON, differences and the identity hash.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/schema.h"

namespace plumb {

/// The non-template half, over a described struct.
void apply_config(const ConfigSection&, const ConfigNode& document);
std::string print_config(const ConfigSection&);
nlohmann::ordered_json config_json(const ConfigSection&);

struct ConfigDifference {
  std::string key;  // "optimizer.lr"
  std::string a;    // YAML text
  std::string b;
  KeyScope scope = KeyScope::identity;
};
/// Two structs of one type.
std::vector<ConfigDifference> differing_keys(const ConfigSection& a, const ConfigSection& b);
std::uint64_t config_hash(const ConfigSection& config, const ConfigSection& defaults);

/// Defaults, then the file (and what it names as `base`), then the overrides "a.b=value" in order. Throws Error when the
/// file cannot be read, UsageError when it is not there and ("file:line: ...") for unknown or duplicate keys and wrong types.
template <class C>
C load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides = {}) {
  C config;
  const ConfigSection section = describe_config(config);
  for (const ConfigNode& document : read_yaml_chain(file)) apply_config(section, document);
  for (const std::string& assignment : overrides) apply_config(section, parse_override(assignment));
  return config;
}

/// The same from text; `name` is what messages call it.
template <class C>
C parse_config(std::string_view yaml, const std::string& name, const std::vector<std::string>& overrides = {}) {
  C config;
  const ConfigSection section = describe_config(config);
  apply_config(section, parse_yaml(yaml, name));
  for (const std::string& assignment : overrides) apply_config(section, parse_override(assignment));
  return config;
}

/// YAML with every key, its value and its documentation as a comment; loads back to an equal config.
template <class C>
std::string print_config(C config) {
  return print_config(describe_config(config));
}

template <class C>
nlohmann::ordered_json config_json(C config) {
  return config_json(describe_config(config));
}

/// The keys in which a and b differ, in the order of the structs.
template <class C>
std::vector<ConfigDifference> differing_keys(C a, C b) {
  return differing_keys(describe_config(a), describe_config(b));
}

/// 64 bits over the identity keys (KeyScope::identity) whose values are not the defaults: a new key with its default
/// leaves the hash of old runs alone, and so do threads, paths, logging and the number of steps.
template <class C>
std::uint64_t config_hash(C config) {
  C defaults;
  return config_hash(describe_config(config), describe_config(defaults));
}

/// 16 hexadecimal digits: the form of hashes in files.
std::string hash_text(std::uint64_t hash);

}  // namespace plumb
