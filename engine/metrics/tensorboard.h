// TensorBoard's event file: TFRecord framing (length, masked CRC-32C of it, payload, masked CRC-32C of that) around
// Event messages of protocol buffers, of which the few fields that scalars need are encoded by hand:
//   Event   { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5; }
//   Summary { repeated Value value = 1; }   Value { string tag = 1; float simple_value = 2; }
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "engine/metrics/metric.h"

namespace plumb {

/// CRC-32C (Castagnoli), as the framing wants it before masking.
std::uint32_t crc32c(std::string_view bytes);

/// One framed record of a file that starts with the version event.
std::string tensorboard_record(std::string_view event);
std::string tensorboard_version_event(double wall_time);
std::string tensorboard_scalars_event(double wall_time, std::int64_t step, const MetricSet& metrics);

/// Bytes of the file's whole and undamaged records before the first one of a step beyond `step`.
std::size_t tensorboard_prefix(std::string_view file, std::int64_t step);

}  // namespace plumb
