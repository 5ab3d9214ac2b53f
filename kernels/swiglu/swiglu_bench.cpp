// kernels_bench --benchmark_filter=swiglu      arguments: rows, columns, threads
#include "kernels/core/bench.h"
#include "kernels/numerics/preset_sites.h"
#include "kernels/swiglu/swiglu.h"

namespace plumb {
namespace {

void swiglu_forward_bf16(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  const std::int64_t cols = state.range(1);
  Context ctx(int(state.range(2)));
  const test::Random gate(rows, cols, DType::bf16, 1);
  const test::Random up(rows, cols, DType::bf16, 2);
  test::Random out(rows, cols, DType::bf16, 4, 0);
  bench::measure(state, ctx, rows * cols * 6, [&] { swiglu_forward(ctx, {.gate = gate, .up = up, .out = out}, kFusedSites); });
}
BENCHMARK(swiglu_forward_bf16)->ArgsProduct({{16, 512}, {4864}, {1, 2}})->UseManualTime();

void swiglu_backward_bf16(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  const std::int64_t cols = state.range(1);
  Context ctx(int(state.range(2)));
  const test::Random d(rows, cols, DType::bf16, 3);
  const test::Random gate(rows, cols, DType::bf16, 1);
  const test::Random up(rows, cols, DType::bf16, 2);
  test::Random d_gate(rows, cols, DType::bf16, 4, 0);
  test::Random d_up(rows, cols, DType::bf16, 5, 0);
  bench::measure(state, ctx, rows * cols * 10, [&] {
    swiglu_backward(ctx, {.d_out = d, .gate = gate, .up = up, .d_gate = d_gate, .d_up = d_up}, kFusedSites, BackwardMode::fused);
  });
}
BENCHMARK(swiglu_backward_bf16)->ArgsProduct({{16, 512}, {4864}, {1, 2}})->UseManualTime();

}  // namespace
}  // namespace plumb
