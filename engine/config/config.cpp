#include "engine/config/config.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/config/key_errors.h"
#include "kernels/core/error.h"
#include "kernels/core/nearest.h"
#include "model/files/files.h"

namespace plumb {
namespace {

/// Calls f(path, field) for every key that is no section, in order.
template <class F>
void for_each_key(const ConfigSection& section, const std::string& path, F&& f) {
  for (const ConfigField& field : section) {
    if (field.is_section()) {
      for_each_key(field.section, joined(path, field.name), f);
    } else {
      f(joined(path, field.name), field);
    }
  }
}

/// Where else a key of this name exists ("optimizer.lr" for "lr"); for a key that was put into the wrong section.
std::string find_elsewhere(const ConfigSection& root, const std::string& key) {
  std::string found;
  for_each_key(root, "", [&](const std::string& path, const ConfigField& field) {
    if (found.empty() && field.name == key) found = path;
  });
  return found;
}

/// Names that people bring from other frameworks, and ours; tried before the edit distance.
std::string synonym(const std::string& key, const std::vector<std::string>& keys) {
  static const std::vector<std::vector<std::string>> kGroups = {
      {"lr", "learning_rate"},
      {"grad_clip", "max_grad_norm", "clip_grad", "gradient_clipping", "max_norm"},
      {"eps", "epsilon", "adam_epsilon"},
      {"samples", "n", "num_generations", "group_size"},
      {"kl_coef", "beta", "kl_beta"},
      {"max_new_tokens", "max_tokens", "max_completion_length", "max_response_length"},
      {"steps", "max_steps", "num_steps"},
      {"layers", "num_hidden_layers", "n_layers", "num_layers"},
      {"heads", "num_attention_heads"},
      {"kv_heads", "num_key_value_heads"}};
  for (const auto& group : kGroups) {
    const bool known = std::any_of(group.begin(), group.end(), [&](const std::string& name) {
      return name == key || (key.size() > 4 && nearest(key, {name}) == name && key.front() == name.front());
    });
    if (!known) continue;
    if (std::find(keys.begin(), keys.end(), group[0]) != keys.end()) return group[0];
  }
  return "";
}

[[noreturn]] void unknown_key(const ConfigNode::Entry& entry, const ConfigSection& section, const std::string& path,
                              const ConfigSection& root) {
  std::vector<std::string> keys;
  for (const ConfigField& field : section) keys.push_back(field.name);
  std::string meant = synonym(entry.key, keys);
  if (meant.empty()) meant = nearest(entry.key, {keys.begin(), keys.end()});
  std::string hint;
  if (!meant.empty()) {
    hint = fmt::format("; did you mean {}?", in_quotes(meant));
  } else if (const std::string other = find_elsewhere(root, entry.key); !other.empty()) {
    hint = fmt::format("; did you mean {}?", in_quotes(other));
  } else {
    std::string list;
    for (const std::string& key : keys) list += (list.empty() ? "" : ", ") + key;
    hint = "; known: " + list;
  }
  throw UsageError(
      fmt::format("{}: unknown key {} {}{}", entry.where, in_quotes(entry.key), path.empty() ? "at the top" : "in " + path, hint));
}

void apply(const ConfigSection& section, const ConfigNode& node, const std::string& path, const ConfigSection& root) {
  if (node.kind == ConfigNode::Kind::null) return;  // "optimizer:" with nothing below: its defaults
  if (node.kind != ConfigNode::Kind::map) {
    throw UsageError(
        fmt::format("{}: {} is a section of keys; found {}", node.where, path.empty() ? "a configuration" : path, describe(node)));
  }
  for (const ConfigNode::Entry& entry : node.entries) {
    const auto field = std::find_if(section.begin(), section.end(), [&](const ConfigField& f) { return f.name == entry.key; });
    if (field == section.end()) unknown_key(entry, section, path, root);
    const std::string key = joined(path, entry.key);
    if (!field->set) {
      apply(field->section, entry.value, key, root);
      continue;
    }
    if (field->print) {  // names itself in its messages
      field->set(entry.value);
      continue;
    }
    with_key_in_errors(key, [&] { field->set(entry.value); });
  }
}

bool is_plain_text(const std::string& text) {
  static const std::vector<std::string> kWords = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"};
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  if (text.empty() || !is_letter(text[0])) return false;
  const auto is_fine = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '.' || c == '/' || c == '-'; };
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  return std::all_of(text.begin(), text.end(), is_fine) && std::find(kWords.begin(), kWords.end(), lower) == kWords.end();
}

/// JSON is YAML: only plain words lose their quotes.
std::string yaml_value(const nlohmann::ordered_json& value) {
  if (value.is_string() && is_plain_text(value.get_ref<const std::string&>())) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string list;
  for (const auto& item : value) list += (list.empty() ? "" : ", ") + yaml_value(item);
  return "[" + list + "]";
}

void print_section(const ConfigSection& section, const std::string& indent, std::string& out) {
  for (const ConfigField& field : section) {
    if (field.print) {
      out += field.print(indent);
      continue;
    }
    if (field.is_section()) {
      if (indent.empty() && !out.empty()) out += "\n";
      out += fmt::format("{}# {}\n{}{}:\n", indent, field.doc, indent, field.name);
      print_section(field.section, indent + "  ", out);
      continue;
    }
    const std::string line = fmt::format("{}{}: {}", indent, field.name, yaml_value(field.get()));
    out += fmt::format("{:<34}  # {}\n", line, field.doc);
  }
}

}  // namespace

void apply_config(const ConfigSection& section, const ConfigNode& document) { apply(section, document, "", section); }

std::string print_config(const ConfigSection& section) {
  std::string out;
  print_section(section, "", out);
  return out;
}

nlohmann::ordered_json config_json(const ConfigSection& section) {
  auto object = nlohmann::ordered_json::object();
  for (const ConfigField& field : section) object[field.name] = field.is_section() ? config_json(field.section) : field.get();
  return object;
}

std::vector<ConfigDifference> differing_keys(const ConfigSection& a, const ConfigSection& b) {
  std::vector<std::string> other;
  for_each_key(b, "", [&](const std::string&, const ConfigField& field) { other.push_back(yaml_value(field.get())); });
  std::vector<ConfigDifference> differences;
  std::size_t i = 0;
  for_each_key(a, "", [&](const std::string& path, const ConfigField& field) {
    const std::string value = yaml_value(field.get());
    if (value != other.at(i)) differences.push_back({path, value, other.at(i), field.scope});
    ++i;
  });
  return differences;
}

std::uint64_t config_hash(const ConfigSection& config, const ConfigSection& defaults) {
  std::uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  for (const ConfigDifference& difference : differing_keys(config, defaults)) {
    if (difference.scope == KeyScope::execution) continue;
    for (const char c : difference.key + "=" + difference.a + "\n") {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
    }
  }
  return hash;
}

std::string hash_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace plumb
