// Test only: a new folder for one test, a path like any other, gone at the end.
#pragma once
#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace plumb::test {

struct TempFolder : std::filesystem::path {
  TempFolder() : std::filesystem::path(create()) {}
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(*this, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

 private:
  static std::string create() {
    std::string pattern = (std::filesystem::temp_directory_path() / "plumb-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    return pattern;
  }
};

}  // namespace plumb::test
