// What a YAML document is to the rest of the configuration code: a tree of plain values that know where they were written.
// node.cpp is the only file that sees yaml-cpp.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace plumb {

struct ConfigNode {
  enum class Kind : std::uint8_t { null, scalar, list, map };
  struct Entry;

  Kind kind = Kind::null;
  std::string text;               // of a scalar
  bool quoted = false;            // a quoted scalar is a string whatever it looks like
  std::string where;              // "file:line"
  std::vector<ConfigNode> items;  // of a list
  std::vector<Entry> entries;     // of a map, in the order of the document; keys are unique
};

struct ConfigNode::Entry {
  std::string key;
  std::string where;
  ConfigNode value;
};

/// "the text 'abc'", "a list", "a section", "nothing": for messages.
std::string describe(const ConfigNode&);

/// Parses one YAML document; `name` is what messages call it. An empty document is an empty map. Throws UsageError with
/// file and line for malformed YAML, duplicate keys (both lines), aliases, several documents, invalid UTF-8.
ConfigNode parse_yaml(std::string_view text, const std::string& name);

/// The file's document, with `base: other.yaml` (relative to the file) at the top level resolved: the base's documents come
/// first, oldest ancestor at the front, to be applied in order. Throws Error for an unreadable file, UsageError for a cycle.
std::vector<ConfigNode> read_yaml_chain(const std::filesystem::path& file);

/// "a.b=value" of the command line as a document {a: {b: value}}; positions read "--set a.b". Throws UsageError.
ConfigNode parse_override(std::string_view assignment);

}  // namespace plumb
