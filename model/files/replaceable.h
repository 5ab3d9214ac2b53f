// What a whole-file write may replace.
#pragma once
#include <filesystem>

namespace plumb {

/// The file that a write to `path` replaces: behind symbolic links, and a regular file or nothing yet. Throws Error for anything
/// else (a folder, a device, a pipe, a link to nothing): renaming over it would destroy it. AtomicFile asks this first.
std::filesystem::path replaceable(const std::filesystem::path& path);

}  // namespace plumb
