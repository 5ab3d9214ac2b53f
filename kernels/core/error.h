// The engine's two kinds of failure. Messages are one line: what, where, what would be right.
#pragma once
#include <stdexcept>
#include <string>

namespace plumb {

/// Something went wrong while doing what was asked (bad file, full disk, ...). Exit code 1.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What was asked for is wrong (configuration, command line). Exit code 2.
struct UsageError : Error {
  using Error::Error;
};

/// Throws Error(message) unless `ok`; for conditions that depend on input. The message is only built on failure.
inline void require(bool ok, const char* message) {
  if (!ok) throw Error(message);
}
inline void require(bool ok, const std::string& message) {
  if (!ok) throw Error(message);
}

}  // namespace plumb
