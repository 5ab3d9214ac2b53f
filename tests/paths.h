// Where this checkout and its binary are. Strings in one generated file, so that everything else compiles alike everywhere.
#pragma once

namespace plumb::test {

extern const char* const source_dir;
extern const char* const binary_dir;
extern const char* const plumb_binary;  // the command-line program; empty when it is not built

}  // namespace plumb::test
