// Builds a JSON value from the events of nlohmann's SAX parser and refuses what a plain parse lets pass: duplicate keys.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace plumb {

class StrictJsonBuilder {
 public:
  using json = nlohmann::json;

  explicit StrictJsonBuilder(std::string where) : where_(std::move(where)) {}

  json& result() { return root_; }
  /// Objects and arrays that are open.
  std::size_t depth() const { return open_.size(); }

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(json::number_integer_t value) { return put(value); }
  bool number_unsigned(json::number_unsigned_t value) { return put(value); }
  bool number_float(json::number_float_t value, const std::string&) { return put(value); }
  bool string(std::string& value) { return put(std::move(value)); }
  bool binary(json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(json::object()); }
  bool start_array(std::size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name);
  bool parse_error(std::size_t byte, const std::string&, const nlohmann::detail::exception& error);

 private:
  template <class Value>
  bool put(Value&& value) {
    place() = std::forward<Value>(value);
    return true;
  }
  bool open(json container);
  bool close();
  json& place();  // where the next value goes

  std::string where_;
  json root_;
  std::vector<json*> open_;
  json* member_ = nullptr;  // the value of the key that came last
};

/// What JSON does not have but the library lets pass: NUL as the end of text, a byte order mark. Throws Error.
void refuse_stray_bytes(std::string_view text, const std::string& where);

/// Runs nlohmann's parser over `text` into `sax`; throws Error that starts with `where`.
template <class Sax>
void parse_strict(std::string_view text, const std::string& where, Sax& sax) {
  refuse_stray_bytes(text, where);
  nlohmann::json::sax_parse(text, &sax);
}

}  // namespace plumb
