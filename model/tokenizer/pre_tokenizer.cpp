#include "model/tokenizer/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/core/error.h"
#include "model/files/files.h"

namespace plumb {
namespace {

constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

SplitBehavior behavior_of(const std::string& name) {
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  throw Error(fmt::format("pre_tokenizer Split: behavior {} is not supported", in_quotes(name)));
}

/// The ranges after `behavior`; what is removed is left out.
std::vector<TextRange> arrange(const std::vector<TextRange>& ranges, SplitBehavior behavior) {
  std::vector<TextRange> out;
  bool previous_match = false;
  switch (behavior) {
    case SplitBehavior::isolated: return ranges;
    case SplitBehavior::removed:
      std::copy_if(ranges.begin(), ranges.end(), std::back_inserter(out), [](const TextRange& r) { return !r.match; });
      break;
    case SplitBehavior::contiguous:
      for (const TextRange& range : ranges) {
        if (!out.empty() && range.match == previous_match) {
          out.back().end = range.end;
        } else {
          out.push_back(range);
        }
        previous_match = range.match;
      }
      break;
    case SplitBehavior::merged_with_previous:
      for (const TextRange& range : ranges) {
        if (range.match && !previous_match && !out.empty()) {
          out.back().end = range.end;
        } else {
          out.push_back(range);
        }
        previous_match = range.match;
      }
      break;
    case SplitBehavior::merged_with_next:
      for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
        if (range->match && !previous_match && !out.empty()) {
          out.back().begin = range->begin;
        } else {
          out.push_back(*range);
        }
        previous_match = range->match;
      }
      std::reverse(out.begin(), out.end());
      break;
  }
  return out;
}

}  // namespace

PreTokenizer::PreTokenizer(const nlohmann::json& description) {
  if (!description.is_null()) add(description);
}

void PreTokenizer::add_split(std::string_view pattern, SplitBehavior behavior, bool invert) {
  Stage stage{.behavior = behavior, .invert = invert};
  stage.pattern.emplace_back(pattern);
  stages_.push_back(std::move(stage));
}

void PreTokenizer::add(const nlohmann::json& description) {
  const std::string type = description.at("type");
  if (type == "Sequence") {
    for (const auto& part : description.at("pretokenizers")) add(part);
  } else if (type == "Split") {
    const auto& pattern = description.at("pattern");
    const bool literal = pattern.contains("String");
    const std::string text = pattern.at(literal ? "String" : "Regex");
    if (text.empty()) throw Error("pre_tokenizer Split: an empty pattern is not supported");
    add_split(literal ? escaped_pattern(text) : text, behavior_of(description.at("behavior")), description.value("invert", false));
  } else if (type == "Digits") {
    add_split("\\p{N}", description.value("individual_digits", false) ? SplitBehavior::isolated : SplitBehavior::contiguous, false);
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    if (description.value("add_prefix_space", true)) stages_.push_back({.prefix_space = true});
    if (description.value("use_regex", true)) add_split(kGpt2Pattern, SplitBehavior::isolated, false);
  } else if (type == "Whitespace") {
    add_split("\\w+|[^\\w\\s]+", SplitBehavior::removed, true);
  } else if (type == "WhitespaceSplit") {
    add_split("\\s", SplitBehavior::removed, false);
  } else {
    throw Error(fmt::format("pre_tokenizer {} is not supported", in_quotes(type)));
  }
}

std::vector<std::string_view> PreTokenizer::split(std::string_view text, std::deque<std::string>& storage) const {
  std::vector<std::string_view> words;
  if (!text.empty()) words.push_back(text);
  for (const Stage& stage : stages_) {
    if (stage.prefix_space) {
      for (std::string_view& word : words) {
        if (!word.starts_with(' ')) word = storage.emplace_back(" " + std::string(word));
      }
      continue;
    }
    std::vector<std::string_view> next;
    for (const std::string_view word : words) {
      std::vector<TextRange> ranges = stage.pattern[0].split(word);
      if (stage.invert) {
        for (TextRange& range : ranges) range.match = !range.match;
      }
      for (const TextRange& range : arrange(ranges, stage.behavior)) {
        if (range.begin < range.end) next.push_back(word.substr(range.begin, range.end - range.begin));
      }
    }
    words = std::move(next);
  }
  return words;
}

}  // namespace plumb
