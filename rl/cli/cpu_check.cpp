// Everything is compiled for x86-64-v3. On a lesser machine the first such instruction would be a bare "illegal instruction",
// so this runs before any other code of ours and is itself compiled for every x86-64.
#include <unistd.h>

namespace {

constexpr unsigned kFma = 1u << 12, kOsxsave = 1u << 27, kAvx = 1u << 28;  // leaf 1, ecx
constexpr unsigned kBmi1 = 1u << 3, kAvx2 = 1u << 5, kBmi2 = 1u << 8;      // leaf 7, ebx
constexpr unsigned kSavedRegisters = 6;                                    // xcr0: xmm and ymm

#define PLUMB_ANY_X86_64 __attribute__((target("arch=x86-64,general-regs-only"), noinline))

struct Registers {
  unsigned a, b, c, d;
};

PLUMB_ANY_X86_64 void cpuid(unsigned leaf, Registers& r) {
  asm volatile("cpuid" : "=a"(r.a), "=b"(r.b), "=c"(r.c), "=d"(r.d) : "a"(leaf), "c"(0u));
}

PLUMB_ANY_X86_64 bool machine_is_enough() {
  Registers r;
  cpuid(0, r);
  if (r.a < 7) return false;
  cpuid(1, r);
  constexpr unsigned kWanted = kFma | kOsxsave | kAvx;
  if ((r.c & kWanted) != kWanted) return false;
  unsigned xcr0 = 0, high = 0;
  asm volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0u));
  if ((xcr0 & kSavedRegisters) != kSavedRegisters) return false;
  cpuid(7, r);
  constexpr unsigned kWanted7 = kBmi1 | kAvx2 | kBmi2;
  return (r.b & kWanted7) == kWanted7;
}

constexpr char kMessage[] = "plumb: this processor lacks AVX2 or FMA, which Plumb needs (x86-64-v3, from 2013 on)\n";

__attribute__((constructor(101))) PLUMB_ANY_X86_64 void refuse_lesser_machines() {
  if (machine_is_enough()) return;
  if (::write(STDERR_FILENO, kMessage, sizeof kMessage - 1) < 0) ::_exit(1);
  ::_exit(1);
}

}  // namespace
