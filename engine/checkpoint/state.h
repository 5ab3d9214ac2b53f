// How a class saves and loads what changes: all of it is one struct, and one function serves both directions:
//
//   template <class V> void visit_state(V& v, Position& s) {
//     v.value("epoch", s.epoch);
//     v.buffer("optimizer/m", s.m, s.m.size() / 4, DType::f32);
//   }
//
// Values go to state.json (doubles with 17 digits: exact), buffers to FILE.safetensors by their name "FILE/TENSOR".
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"

namespace plumb {

/// One buffer to be written.
struct StateBuffer {
  std::string tensor;
  const Buffer* buffer = nullptr;
  std::int64_t elements = 0;
  DType dtype = DType::f32;
};

class SaveVisitor {
 public:
  void value(const std::string& name, const bool& x) { put(name, x); }
  void value(const std::string& name, const std::int32_t& x) { put(name, x); }
  void value(const std::string& name, const std::uint32_t& x) { put(name, x); }
  void value(const std::string& name, const std::int64_t& x) { put(name, x); }
  void value(const std::string& name, const std::uint64_t& x) { put(name, x); }
  void value(const std::string& name, const double& x);  // NaN and infinities included
  void value(const std::string& name, const std::string& x) { put(name, x); }
  void value(const std::string& name, const std::vector<std::int64_t>& x) { put(name, x); }
  void value(const std::string& name, const std::vector<std::uint64_t>& x) { put(name, x); }
  void value(const std::string& name, const std::vector<double>& x);
  void value(const std::string& name, const std::vector<std::string>& x) { put(name, x); }
  /// `name` is "FILE/TENSOR"; the buffer holds `elements` elements of `dtype` and must live until the checkpoint is written.
  void buffer(const std::string& name, const Buffer& data, std::int64_t elements, DType dtype);

  const nlohmann::ordered_json& values() const { return values_; }
  const std::map<std::string, std::vector<StateBuffer>>& files() const { return files_; }

 private:
  void put(const std::string& name, nlohmann::ordered_json x);

  nlohmann::ordered_json values_ = nlohmann::ordered_json::object();
  std::map<std::string, std::vector<StateBuffer>> files_;
};

/// Every call throws Error naming checkpoint and value when it is missing, of another type or (buffers) of another size.
class LoadVisitor {
 public:
  /// where: the checkpoint's folder. skipped: FILEs whose buffers are left as they are.
  LoadVisitor(std::filesystem::path where, std::string section, const nlohmann::ordered_json& values, std::set<std::string> skipped);

  void value(const std::string& name, bool& x);
  void value(const std::string& name, std::int32_t& x);
  void value(const std::string& name, std::uint32_t& x);
  void value(const std::string& name, std::int64_t& x);
  void value(const std::string& name, std::uint64_t& x);
  void value(const std::string& name, double& x);
  void value(const std::string& name, std::string& x);
  void value(const std::string& name, std::vector<std::int64_t>& x);
  void value(const std::string& name, std::vector<std::uint64_t>& x);
  void value(const std::string& name, std::vector<double>& x);
  void value(const std::string& name, std::vector<std::string>& x);
  /// The buffer must be allocated with the right size.
  void buffer(const std::string& name, Buffer& data, std::int64_t elements, DType dtype);
  /// Throws Error when the section holds values that nothing asked for.
  void finish() const;

 private:
  const nlohmann::ordered_json& take(const std::string& name);
  [[noreturn]] void wrong(const std::string& name, const std::string& expected) const;
  template <class T>
  void integer(const std::string& name, const nlohmann::ordered_json& found, T& x) const;
  double number(const std::string& name, const nlohmann::ordered_json& found) const;

  std::filesystem::path where_;
  std::string section_;
  const nlohmann::ordered_json& values_;
  std::set<std::string> skipped_;
  std::set<std::string> taken_;
};

}  // namespace plumb
