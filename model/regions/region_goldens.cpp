#include "model/regions/region_goldens.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/core/error.h"
#include "model/probe/region_file.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;

std::int64_t count_different(const RegionTensor& want, const RegionTensor& got) {
  const std::size_t size = bytes_of(want.dtype());
  std::int64_t differ = 0;
  for (std::size_t i = 0; i < want.bytes().size(); i += size) differ += std::memcmp(&want.bytes()[i], &got.bytes()[i], size) != 0;
  return differ;
}

}  // namespace

std::vector<RegionCase> region_cases(const fs::path& path) {
  const RegionFile file(path);
  const RegionInputs in = file.inputs();
  const bool rope = in.head_dim > 0;
  const bool serving = path.filename().string().starts_with("serving");
  // The serving formulas run eagerly round as vLLM's kernels do: RoPE as the older ones, the norm as the CPU's.
  const std::string eager = !serving ? "hf_eager" : rope ? "vllm_cuda_legacy" : "vllm_cpu_eager";
  const std::string compiled = serving ? "vllm_compiled" : "hf_compiled";
  std::vector<RegionCase> cases;
  for (const RegionObservation& o : file.observations(in)) {
    if (o.mode != "eager" && o.mode != "compiled") continue;
    const std::string& name = o.mode == "eager" ? eager : compiled;
    RegionCase c{.mode = o.mode, .preset = name, .numerics = preset(name)};
    // PyTorch's autograd gives serving formulas the backward of their mode, which a serving stack itself does not have.
    const BackwardMode backward = c.mode == "eager" ? BackwardMode::mirror : BackwardMode::fused;
    c.numerics.backward.norm = c.numerics.backward.qk_norm = c.numerics.backward.rope = c.numerics.backward.swiglu = backward;
    if (c.mode == "eager") c.numerics.reductions.row_sum = preset("hf_eager").reductions.row_sum;  // PyTorch ran it
    if (in.table_given_bf16) c.preset += ", table given";
    cases.push_back(std::move(c));
  }
  if (cases.empty()) throw Error(fmt::format("{}: holds no outputs (eager.out.* or compiled.out.*)", path.string()));
  return cases;
}

std::vector<RegionResult> check_region(Context& ctx, const fs::path& path, const RegionCase& c) {
  const RegionFile file(path);
  const RegionInputs in = file.inputs();
  std::vector<RegionResult> results;
  for (const RegionObservation& o : file.observations(in)) {
    if (o.mode != c.mode) continue;
    const RegionTensors got = run_region(ctx, in, region_numerics(c.numerics, in.region), outputs_of(o));
    for (const auto& [name, want] : o.outputs)
      results.push_back({.output = name, .differ = count_different(want, got.at(name)), .elements = want.elements()});
  }
  return results;
}

std::vector<fs::path> region_files(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  if (error) throw Error(fmt::format("{}: {}", folder.string(), error.message()));
  if (files.empty()) throw Error(fmt::format("{}: holds no .safetensors files", folder.string()));
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace plumb
