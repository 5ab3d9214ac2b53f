// "did you mean": the name that is closest to a misspelt one.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace plumb {

/// Number of single-character insertions, deletions, replacements and swaps of neighbours that turn a into b.
int edit_distance(std::string_view a, std::string_view b);

/// The candidate closest to `word` (the first of equals); empty when there is none within half of word's length (at least 2).
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);

/// "; did you mean 'x'?" or, when nothing is close, "; known: a, b, c".
std::string suggestion(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace plumb
