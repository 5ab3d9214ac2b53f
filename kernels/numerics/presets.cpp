#include "kernels/numerics/presets.h"

#include "kernels/core/error.h"
#include "kernels/core/nearest.h"

namespace plumb {

const Preset& find_preset(std::string_view name) {
  for (const Preset& p : presets()) {
    if (p.name == name) return p;
  }
  throw UsageError("unknown numerics preset '" + std::string(name) + "'" + suggestion(name, preset_names()));
}

Numerics preset(std::string_view name) { return find_preset(name).numerics; }

const std::vector<std::string_view>& preset_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> out;
    for (const Preset& p : presets()) out.push_back(p.name);
    return out;
  }();
  return names;
}

std::vector<std::string_view> usable_presets() {
  std::vector<std::string_view> out;
  for (const Preset& p : presets()) {
    if (unsupported(p.numerics).empty()) out.push_back(p.name);
  }
  return out;
}

}  // namespace plumb
