#include "engine/config/node.h"

#include <fmt/format.h>
#include <utf8proc.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>

#include "kernels/core/error.h"
#include "model/files/files.h"

namespace plumb {
namespace {

using Kind = ConfigNode::Kind;

/// Builds the tree from the parser's events: unlike YAML::Node they keep duplicate keys and aliases apart.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::string name, bool lines) : name_(std::move(name)), lines_(lines) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { leaf({.where = where(mark)}, anchor); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { fail(mark, "aliases (*name) are not supported: write the value out"); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, const std::string& text) override {
    if (tag != "?" && tag != "!") fail(mark, fmt::format("tags ({}) are not supported", in_quotes(tag)));
    ConfigNode node{.kind = Kind::scalar, .text = text, .quoted = tag == "!", .where = where(mark)};
    const bool is_null = !node.quoted && (text == "~" || text == "null" || text == "Null" || text == "NULL");
    if (is_null && !expects_key()) node = {.where = where(mark)};
    leaf(std::move(node), anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor, YAML::EmitterStyle::value) override {
    open({.kind = Kind::list, .where = where(mark)}, mark, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor, YAML::EmitterStyle::value) override {
    open({.kind = Kind::map, .where = where(mark)}, mark, anchor);
  }
  void OnMapEnd() override { close(); }

  ConfigNode take() { return std::move(root_); }

 private:
  struct Open {
    ConfigNode node;
    bool has_key = false;
    std::string key;
    std::string key_where;
  };

  std::string where(const YAML::Mark& mark) const { return lines_ ? fmt::format("{}:{}", name_, mark.line + 1) : name_; }
  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& what) const {
    throw UsageError(fmt::format("{}: {}", where(mark), what));
  }
  bool expects_key() const { return !open_.empty() && open_.back().node.kind == Kind::map && !open_.back().has_key; }

  void open(ConfigNode node, const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor != 0) fail(mark, "anchors (&name) are not supported: write the value out");
    if (expects_key()) fail(mark, "a key must be plain text");
    open_.push_back({.node = std::move(node)});
  }
  void close() {
    ConfigNode node = std::move(open_.back().node);
    open_.pop_back();
    place(std::move(node));
  }
  void leaf(ConfigNode node, YAML::anchor_t anchor) {
    if (anchor != 0) throw UsageError(node.where + ": anchors (&name) are not supported: write the value out");
    if (!expects_key()) return place(std::move(node));
    if (node.kind != Kind::scalar) throw UsageError(node.where + ": a key must be plain text");
    Open& map = open_.back();
    for (const auto& entry : map.node.entries) {
      if (entry.key != node.text) continue;
      throw UsageError(fmt::format("{}: duplicate key {}, first given at {}", node.where, in_quotes(node.text), entry.where));
    }
    map.has_key = true;
    map.key = std::move(node.text);
    map.key_where = std::move(node.where);
  }
  void place(ConfigNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.kind == Kind::list) {
      parent.node.items.push_back(std::move(node));
      return;
    }
    parent.node.entries.push_back({std::move(parent.key), std::move(parent.key_where), std::move(node)});
    parent.has_key = false;
  }

  std::string name_;
  bool lines_;
  ConfigNode root_;
  std::vector<Open> open_;
};

void require_utf8(std::string_view text, const std::string& name) {
  std::size_t i = 0, line = 1;
  while (i < text.size()) {
    utf8proc_int32_t code = 0;
    const auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + i, utf8proc_ssize_t(text.size() - i), &code);
    if (n <= 0 || code == 0) throw UsageError(fmt::format("{}:{}: not UTF-8 text", name, line));
    if (code == '\n') ++line;
    i += std::size_t(n);
  }
}

ConfigNode parse(std::string_view text, const std::string& name, bool lines) {
  require_utf8(text, name);
  std::istringstream stream{std::string(text)};
  TreeBuilder builder(name, lines);
  try {
    YAML::Parser parser(stream);
    const bool any = parser.HandleNextDocument(builder);
    if (!any) return {.kind = Kind::map, .where = lines ? name + ":1" : name};
    TreeBuilder second(name, lines);
    if (parser.HandleNextDocument(second)) throw UsageError(name + ": holds several YAML documents; one is right");
  } catch (const YAML::Exception& error) {
    const auto where = lines && error.mark.line >= 0 ? fmt::format("{}:{}", name, error.mark.line + 1) : name;
    throw UsageError(fmt::format("{}: not valid YAML: {}", where, error.msg));
  }
  return builder.take();
}

/// Takes the top-level entry `base` out of a document; empty when there is none.
std::filesystem::path take_base(ConfigNode& document, const std::filesystem::path& file) {
  const auto it = std::find_if(document.entries.begin(), document.entries.end(), [](const auto& entry) { return entry.key == "base"; });
  if (it == document.entries.end()) return {};
  if (it->value.kind != Kind::scalar || it->value.text.empty())
    throw UsageError(fmt::format("{}: base is {}; the name of a YAML file is right", it->where, describe(it->value)));
  std::filesystem::path base = file.parent_path() / it->value.text;
  document.entries.erase(it);
  return base;
}

}  // namespace

std::string describe(const ConfigNode& node) {
  switch (node.kind) {
    case Kind::null: return "empty";
    case Kind::list: return "a list";
    case Kind::map: return "a section of keys";
    case Kind::scalar: break;
  }
  return (node.quoted ? "the text " : "") + in_quotes(node.text);
}

ConfigNode parse_yaml(std::string_view text, const std::string& name) { return parse(text, name, true); }

std::vector<ConfigNode> read_yaml_chain(const std::filesystem::path& file) {
  std::vector<ConfigNode> chain;
  std::vector<std::filesystem::path> seen;
  for (std::filesystem::path next = file; !next.empty();) {
    std::error_code ignored;  // a path that cannot be resolved fails at reading, with a better message
    const auto identity = std::filesystem::weakly_canonical(next, ignored);
    if (std::find(seen.begin(), seen.end(), identity) != seen.end())
      throw UsageError(fmt::format("{}: base leads back to this file", next.string()));
    seen.push_back(identity);
    if (!std::filesystem::exists(next, ignored))
      throw UsageError(fmt::format("{}: there is no such file{}", next.string(), seen.size() > 1 ? ", which `base` names" : ""));
    ConfigNode document = parse_yaml(read_file(next), next.string());
    const auto base = take_base(document, next);
    chain.insert(chain.begin(), std::move(document));
    next = base;
  }
  return chain;
}

ConfigNode parse_override(std::string_view assignment) {
  const auto equals = assignment.find('=');
  const std::string key(assignment.substr(0, equals));
  if (equals == std::string_view::npos || key.empty())
    throw UsageError(fmt::format("--set {}: not of the form key=value, such as optimizer.lr=1e-5", in_quotes(assignment)));
  const std::string where = "--set " + key;
  ConfigNode node = parse(assignment.substr(equals + 1), where, false);
  // An empty value is an empty text, not an empty section: --set model.path=
  if (node.kind == Kind::map && node.entries.empty() && assignment.substr(equals + 1).find('{') == std::string_view::npos)
    node = {.kind = Kind::scalar, .quoted = true, .where = where};
  std::size_t end = key.size();
  while (true) {
    const auto dot = end == 0 ? std::string::npos : key.rfind('.', end - 1);
    const std::size_t begin = dot == std::string::npos ? 0 : dot + 1;
    ConfigNode outer{.kind = Kind::map, .where = where};
    outer.entries.push_back({key.substr(begin, end - begin), where, std::move(node)});
    node = std::move(outer);
    if (dot == std::string::npos) return node;
    end = dot;
  }
}

}  // namespace plumb
