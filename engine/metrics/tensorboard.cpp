#include "engine/metrics/tensorboard.h"

#include <array>
#include <bit>
#include <cstring>
#include <optional>

namespace plumb {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}
constexpr auto kTable = make_table();

std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return std::rotr(crc, 15) + 0xA282EAD8u;
}

template <class T>
void put_raw(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <class T>
T get_raw(std::string_view bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

enum WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out += char(value | 0x80);
    value >>= 7;
  }
  out += char(value);
}
void put_tag(std::string& out, std::uint32_t field, WireType type) { put_varint(out, field << 3 | type); }
void put_bytes(std::string& out, std::uint32_t field, std::string_view bytes) {
  put_tag(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

std::optional<std::uint64_t> get_varint(std::string_view bytes, std::size_t& at) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64 && at < bytes.size(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes[at++]);
    value |= std::uint64_t(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

/// The step of one of our events: the fields come in ascending order, so it is the first or second. 0 when left out.
std::int64_t step_of(std::string_view event) {
  std::size_t at = 0;
  while (at < event.size()) {
    const auto tag = get_varint(event, at);
    if (!tag || *tag >> 3 > 2) return 0;
    if (*tag >> 3 == 2) return std::int64_t(get_varint(event, at).value_or(0));
    at += 8;  // wall_time
  }
  return 0;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~crc;
}

std::string tensorboard_record(std::string_view event) {
  std::string length;
  put_raw(length, std::uint64_t(event.size()));
  std::string out = length;
  put_raw(out, masked_crc(length));
  out += event;
  put_raw(out, masked_crc(event));
  return out;
}

std::string tensorboard_version_event(double wall_time) {
  std::string event;
  put_tag(event, 1, kFixed64);
  put_raw(event, wall_time);
  put_bytes(event, 3, "brain.Event:2");
  return event;
}

std::string tensorboard_scalars_event(double wall_time, std::int64_t step, const MetricSet& metrics) {
  std::string summary;
  for (const auto& [name, metric] : metrics.all()) {
    std::string value;
    put_bytes(value, 1, name);
    put_tag(value, 2, kFixed32);
    put_raw(value, float(metric.value()));
    put_bytes(summary, 1, value);
  }
  std::string event;
  put_tag(event, 1, kFixed64);
  put_raw(event, wall_time);
  put_tag(event, 2, kVarint);
  put_varint(event, std::uint64_t(step));
  put_bytes(event, 5, summary);
  return event;
}

std::size_t tensorboard_prefix(std::string_view file, std::int64_t step) {
  constexpr std::size_t kHeader = 12, kFooter = 4;
  std::size_t at = 0;
  while (file.size() - at >= kHeader + kFooter) {
    const auto length = get_raw<std::uint64_t>(file, at);
    if (get_raw<std::uint32_t>(file, at + 8) != masked_crc(file.substr(at, 8))) break;
    if (length > file.size() - at - kHeader - kFooter) break;
    const std::string_view event = file.substr(at + kHeader, length);
    if (get_raw<std::uint32_t>(file, at + kHeader + length) != masked_crc(event)) break;
    if (at > 0 && step_of(event) > step) break;
    at += kHeader + length + kFooter;
  }
  return at;
}

}  // namespace plumb
