// Test only: what an action says when it fails.
#pragma once
#include <string>

#include "kernels/core/error.h"

namespace plumb::test {

/// The message of the Error that `action` throws, or "no error".
template <class F>
std::string error_of(F&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace plumb::test
