// Keys by their paths, and errors of scalars with the key that they belong to.
#pragma once
#include <string>

#include "kernels/core/error.h"

namespace plumb {

/// "path.key", or the key alone at the top.
inline std::string joined(const std::string& path, const std::string& key) { return path.empty() ? key : path + "." + key; }

/// Calls f; a UsageError "file:line: found ..." out of it becomes "file:line: KEY: found ...".
template <class F>
void with_key_in_errors(const std::string& key, F&& f) {
  try {
    f();
  } catch (const UsageError& error) {
    const std::string what = error.what();
    const auto at = what.find(": found ");
    throw UsageError(at == std::string::npos ? what : what.substr(0, at) + ": " + key + what.substr(at));
  }
}

}  // namespace plumb
