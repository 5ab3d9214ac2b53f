#include "model/tokenizer/stream.h"

#include <algorithm>
#include <utility>

#include "kernels/core/error.h"
#include "model/tokenizer/unicode.h"

namespace plumb {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

/// Whether the bytes are a proper prefix of some code point's UTF-8.
bool begins_code_point(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned lead = byte(0);
  const std::size_t length = lead >= 0xC2 && lead <= 0xDF ? 2 : lead >= 0xE0 && lead <= 0xEF ? 3 : lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
  if (bytes.size() >= length) return false;
  if (bytes.size() >= 2) {
    // No overlong forms, no surrogates, nothing over U+10FFFF.
    const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (byte(1) < low || byte(1) > high) return false;
  }
  return bytes.size() < 3 || (byte(2) & 0xC0) == 0x80;
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  std::string out;
  std::size_t i = 0;
  while (i < held_.size()) {
    const std::string_view rest = std::string_view(held_).substr(i);
    const CodePoint c = first_code_point(rest);
    if (c.code >= 0) {
      out.append(rest.substr(0, c.bytes));
      i += c.bytes;
      continue;
    }
    std::size_t begun = 0;  // bytes that do begin a code point
    while (begun < rest.size() && begins_code_point(rest.substr(0, begun + 1))) ++begun;
    if (begun == rest.size()) break;
    out += kReplacement;
    i += std::max<std::size_t>(begun, 1);
  }
  held_.erase(0, i);
  return out;
}

std::string Utf8Stream::finish() { return std::exchange(held_, {}).empty() ? "" : kReplacement; }

std::string StreamDecoder::push(std::int32_t id) {
  if (skip_special_ && tokenizer_.is_special(id)) return "";
  std::string text;
  if (!first_) text = stream_.push(tokenizer_.separator());
  first_ = false;
  return text + stream_.push(tokenizer_.token_bytes(id));
}

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) throw UsageError("a stop string is empty");
  }
}

std::string StopMatcher::push(std::string_view piece) {
  std::string out;
  for (const char c : piece) {
    if (stopped_) break;
    held_ += c;
    std::size_t longest = 0;
    for (const std::string& stop : stops_) {
      if (held_.ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) {
      stopped_ = true;
      out.append(held_, 0, held_.size() - longest);
      held_.clear();
      break;
    }
    // Keep only what may still become a stop string.
    std::size_t keep = 0;
    for (const std::string& stop : stops_) {
      for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
        if (held_.ends_with(std::string_view(stop).substr(0, n))) keep = n;
      }
    }
    out.append(held_, 0, held_.size() - keep);
    held_.erase(0, held_.size() - keep);
  }
  return out;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace plumb
