#include "model/files/strict_json.h"

#include <fmt/format.h>

#include "kernels/core/error.h"
#include "model/files/files.h"

namespace plumb {

StrictJsonBuilder::json& StrictJsonBuilder::place() {
  if (open_.empty()) return root_;
  if (open_.back()->is_object()) return *member_;
  return open_.back()->emplace_back();
}

bool StrictJsonBuilder::open(json container) {
  json& here = place();
  here = std::move(container);
  open_.push_back(&here);
  return true;
}

bool StrictJsonBuilder::close() {
  open_.pop_back();
  return true;
}

bool StrictJsonBuilder::key(std::string& name) {
  const auto [it, fresh] = open_.back()->emplace(name, nullptr);
  if (!fresh) throw Error(fmt::format("{}: duplicate key {}", where_, in_quotes(name)));
  member_ = &*it;
  return true;
}

bool StrictJsonBuilder::parse_error(std::size_t byte, const std::string&, const nlohmann::detail::exception& error) {
  // The library's text quotes raw input; the position is what helps.
  const std::string_view what = error.what();
  const auto begin = what.find("at line ");
  if (begin == std::string_view::npos) throw Error(fmt::format("{}: not valid JSON (at byte {})", where_, byte));
  throw Error(fmt::format("{}: not valid JSON ({})", where_, what.substr(begin, what.find(':', begin) - begin)));
}

void refuse_stray_bytes(std::string_view text, const std::string& where) {
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    throw Error(fmt::format("{}: not valid JSON (NUL at byte {})", where, nul));
  }
  if (text.starts_with("\xEF\xBB\xBF")) throw Error(fmt::format("{}: not valid JSON (starts with a byte order mark)", where));
}

}  // namespace plumb
