#include "model/probe/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "kernels/core/error.h"
#include "model/probe/probe_abi.h"

namespace plumb {
namespace {

constexpr std::size_t kGuardBytes = 4096;  // before and after every output
constexpr std::size_t kMessageBytes = 1024;
constexpr std::byte kFills[2] = {std::byte{0xA5}, std::byte{0x5A}};  // what is there before each of the two calls

/// Memory that a child process shares.
class SharedMemory {
 public:
  explicit SharedMemory(std::size_t bytes)
      : bytes_(bytes), data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED) throw Error(fmt::format("no {} bytes of shared memory: {}", bytes, std::strerror(errno)));
  }
  ~SharedMemory() { munmap(data_, bytes_); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), bytes_}; }

 private:
  std::size_t bytes_;
  void* data_;
};

/// Runs f in a child process. The message of what it throws, how it died, or "" when it returned.
template <class F>
std::string run_isolated(F&& f) {
  const SharedMemory message(kMessageBytes);
  const auto text = message.bytes();
  const pid_t child = fork();
  if (child < 0) return fmt::format("cannot start a process: {}", std::strerror(errno));
  if (child == 0) {
    try {
      f();
    } catch (const std::exception& error) {
      std::strncpy(reinterpret_cast<char*>(text.data()), error.what(), text.size() - 1);
    }
    _exit(0);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) return fmt::format("crashed ({})", strsignal(WTERMSIG(status)));
  if (WEXITSTATUS(status) != 0) return fmt::format("ended the process with code {}", WEXITSTATUS(status));
  return reinterpret_cast<const char*>(text.data());
}

/// One output's place in each of the two passes.
struct Slot {
  std::string name;
  std::int64_t rows, cols;
  DType dtype;
  std::size_t begin = 0;  // of its data within a pass
  std::size_t size() const { return std::size_t(rows * cols) * bytes_of(dtype); }
};

/// The outputs of two calls, each between guards, in memory that the child shares.
class GuardedOutputs {
 public:
  GuardedOutputs(std::vector<Slot> slots) : slots_(std::move(slots)), pass_bytes_(place(slots_)), memory_(2 * pass_bytes_) {
    for (const int pass : {0, 1})
      std::fill_n(memory_.bytes().begin() + std::ptrdiff_t(std::size_t(pass) * pass_bytes_), pass_bytes_, kFills[pass]);
  }
  /// Null when it is not among the outputs.
  template <class T>
  T* data(int pass, std::string_view name) {
    for (const Slot& slot : slots_)
      if (slot.name == name) return reinterpret_cast<T*>(of(pass, slot).data());
    return nullptr;
  }
  /// What is wrong with them; "" when nothing is.
  std::string fault() {
    for (const int pass : {0, 1})
      for (const Slot& slot : slots_)
        if (!guards_hold(pass, slot)) return fmt::format("wrote outside {}, which has {} elements", slot.name, slot.rows * slot.cols);
    for (const Slot& slot : slots_)
      if (std::string what = difference(slot); !what.empty()) return what;
    return "";
  }
  RegionTensors tensors() {
    RegionTensors all;
    for (const Slot& slot : slots_) {
      RegionTensor& t = all[slot.name] = RegionTensor(slot.rows, slot.cols, slot.dtype);
      const auto bytes = of(0, slot);
      std::copy(bytes.begin(), bytes.end(), t.bytes().begin());
    }
    return all;
  }

 private:
  static std::size_t place(std::vector<Slot>& slots) {
    std::size_t at = 0;
    for (Slot& slot : slots) {
      slot.begin = at + kGuardBytes;
      at = (slot.begin + slot.size() + kGuardBytes + 63) / 64 * 64;
    }
    return at;
  }
  std::span<std::byte> of(int pass, const Slot& slot) const {
    return memory_.bytes().subspan(std::size_t(pass) * pass_bytes_ + slot.begin, slot.size());
  }
  bool guards_hold(int pass, const Slot& slot) const {
    const std::byte* data = of(pass, slot).data();
    const auto untouched = [&](const std::byte* p) {
      return std::all_of(p, p + kGuardBytes, [&](std::byte b) { return b == kFills[pass]; });
    };
    return untouched(data - kGuardBytes) && untouched(data + slot.size());
  }
  std::string difference(const Slot& slot) const {
    const auto first = of(0, slot), second = of(1, slot);
    const std::size_t size = bytes_of(slot.dtype);
    for (std::size_t i = 0; i < first.size(); i += size) {
      if (std::memcmp(&first[i], &second[i], size) == 0) continue;
      const auto untouched = [&](std::span<const std::byte> all, int pass) {
        return std::all_of(&all[i], &all[i] + size, [&](std::byte b) { return b == kFills[pass]; });
      };
      if (untouched(first, 0) && untouched(second, 1)) return fmt::format("did not write element {} of {}", i / size, slot.name);
      return fmt::format("gave other bits for element {} of {} when called again with the same inputs", i / size, slot.name);
    }
    return "";
  }

  std::vector<Slot> slots_;
  std::size_t pass_bytes_;
  SharedMemory memory_;
};

template <class T>
const T* input(const RegionInputs& in, std::string_view name) {
  const auto at = in.tensors.find(name);
  return at == in.tensors.end() ? nullptr : reinterpret_cast<const T*>(at->second.bytes().data());
}

/// The calls of one region. A function is (void* address, its name).
struct ForeignFunction {
  void* address = nullptr;
  std::string name;
  template <class Arguments>
  void call(const Arguments& a) const {
    const int code = reinterpret_cast<int (*)(const Arguments*)>(address)(&a);
    if (code != 0) throw Error(fmt::format("{} returned {}; 0 is success", name, code));
  }
};

void call_rope(const ForeignFunction& f, const RegionInputs& in, GuardedOutputs& out, int pass, bool backward) {
  const std::vector<std::int64_t> positions(in.positions.begin(), in.positions.end());
  for (const bool k : {false, true}) {
    const std::string which = k ? "k" : "q", index = k ? "1" : "0";
    const auto x = in.tensors.find(which);
    if (x == in.tensors.end()) continue;
    plumb_probe_rope a{.rows = x->second.rows(),
                       .heads = x->second.cols() / in.head_dim,
                       .head_dim = in.head_dim,
                       .eps = in.eps,
                       .theta = in.theta,
                       .positions = positions.empty() ? nullptr : positions.data(),
                       .cos = in.table.cos(0, false),
                       .sin = in.table.sin(0, false),
                       .in = input<std::uint16_t>(in, which),
                       .weight = input<std::uint16_t>(in, "w" + which)};
    if (backward) {
      a.d_out = input<std::uint16_t>(in, "up." + index);
      a.d_in = out.data<std::uint16_t>(pass, "grad." + which);
      a.d_weight = out.data<std::uint16_t>(pass, "grad.w" + which);
    } else {
      a.out = out.data<std::uint16_t>(pass, "out." + index);
    }
    f.call(a);
  }
}

void call_swiglu(const ForeignFunction& f, const RegionInputs& in, GuardedOutputs& out, int pass, bool backward) {
  const RegionTensor& gate = in.tensors.at("gate");
  plumb_probe_swiglu a{
      .rows = gate.rows(), .cols = gate.cols(), .gate = input<std::uint16_t>(in, "gate"), .up = input<std::uint16_t>(in, "up")};
  if (backward) {
    a.d_out = input<std::uint16_t>(in, "up.0");
    a.d_gate = out.data<std::uint16_t>(pass, "grad.gate");
    a.d_up = out.data<std::uint16_t>(pass, "grad.up");
  } else {
    a.out = out.data<std::uint16_t>(pass, "out.0");
  }
  f.call(a);
}

void call_resid_norm(const ForeignFunction& f, const RegionInputs& in, GuardedOutputs& out, int pass, bool backward) {
  const RegionTensor& r = in.tensors.at("r");
  plumb_probe_resid_norm a{.rows = r.rows(),
                           .cols = r.cols(),
                           .eps = in.eps,
                           .stream_is_f32 = r.dtype() == DType::f32,
                           .h = input<std::uint16_t>(in, "h"),
                           .r = r.bytes().data(),
                           .w = input<std::uint16_t>(in, "w")};
  if (backward) {
    a.d_out = input<std::uint16_t>(in, "up.0");
    a.d_stream = input<std::uint16_t>(in, "up.1");
    a.d_sum = out.data<std::uint16_t>(pass, "grad.h");
    a.d_weight = out.data<std::uint16_t>(pass, "grad.w");
  } else {
    a.out = out.data<std::uint16_t>(pass, "out.0");
    a.stream_out = out.data<std::byte>(pass, "out.1");
  }
  f.call(a);
}

void call_region(const ForeignFunction& f, const RegionInputs& in, GuardedOutputs& out, int pass, bool backward) {
  if (in.region == Region::swiglu) return call_swiglu(f, in, out, pass, backward);
  if (in.region == Region::resid_norm) return call_resid_norm(f, in, out, pass, backward);
  call_rope(f, in, out, pass, backward);
}

ForeignFunction function_of(void* library, const std::string& name) {
  void* address = dlsym(library, name.c_str());
  if (address == nullptr) throw Error(fmt::format("has no function {}", name));
  return {address, name};
}

/// In the child: both functions, twice.
void call_library(const ProbeLibrary& l, const RegionInputs& in, GuardedOutputs& out) {
  void* library = dlopen(std::filesystem::absolute(l.path).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Error(fmt::format("cannot be loaded: {}", dlerror()));
  const ForeignFunction forward = function_of(library, l.symbol);
  const RegionTensors before = in.tensors;
  for (const int pass : {0, 1}) {
    call_region(forward, in, out, pass, false);
    if (!l.backward.empty()) call_region(function_of(library, l.backward), in, out, pass, true);
  }
  for (const auto& [name, t] : in.tensors)
    if (t.bytes() != before.at(name).bytes()) throw Error(fmt::format("wrote into its input {}", name));
}

std::vector<Slot> slots_of(const RegionInputs& in, const ProbeLibrary& l) {
  std::vector<Slot> slots;
  for (const auto& [name, dtype] : all_outputs(in)) {
    const bool gradient = name.starts_with("grad.");
    if (gradient && (l.backward.empty() || (in.region == Region::resid_norm && name == "grad.r"))) continue;  // grad.r is grad.h
    const RegionTensor& like = in.tensors.at(shaped_like(in, name));
    const bool f32 = in.region == Region::resid_norm && name == "out.1" && l.stream_f32;
    slots.push_back({.name = name, .rows = like.rows(), .cols = like.cols(), .dtype = f32 ? DType::f32 : dtype});
  }
  return slots;
}

void check_for_library(const RegionInputs& in, const ProbeLibrary& l) {
  for (const auto& [name, t] : in.tensors) {
    const bool stream = in.region == Region::resid_norm && name == "r" && l.stream_f32;
    if (t.dtype() == DType::f32 && !stream) throw Error(fmt::format("the input {} is F32; a library is given BF16", name));
  }
  if (!l.backward.empty() && !in.tensors.contains("up.0")) throw Error("the inputs hold no up.0, which a backward needs");
}

/// r as the library wants it.
RegionInputs as_given(RegionInputs in, const ProbeLibrary& l) {
  if (in.region != Region::resid_norm || !l.stream_f32) return in;
  const RegionTensor r = in.tensors.at("r");
  RegionTensor& wide = in.tensors["r"] = RegionTensor(r.rows(), r.cols(), DType::f32);
  for (std::int64_t i = 0; i < r.elements(); ++i) wide.set(i, r.at(i));
  return in;
}

}  // namespace

RegionObservation observe_library(const ProbeLibrary& l, const RegionInputs& inputs) {
  check_for_library(inputs, l);
  const RegionInputs in = as_given(inputs, l);
  std::error_code unreadable;
  const auto fail = [&](const std::string& what) { throw Error(fmt::format("{}: {}", l.path.string(), what)); };
  if (!std::filesystem::is_regular_file(l.path, unreadable)) fail("there is no such file");
  GuardedOutputs outputs(slots_of(in, l));
  std::string what = run_isolated([&] { call_library(l, in, outputs); });
  if (what.empty()) what = outputs.fault();
  if (!what.empty()) fail(what);
  return {.outputs = outputs.tensors()};
}

}  // namespace plumb
