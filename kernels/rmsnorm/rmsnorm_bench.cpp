// kernels_bench --benchmark_filter=rmsnorm      arguments: rows, columns, threads
#include "kernels/core/bench.h"
#include "kernels/numerics/preset_sites.h"
#include "kernels/rmsnorm/rmsnorm.h"

namespace plumb {
namespace {

void rmsnorm_forward_bf16(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  const std::int64_t cols = state.range(1);
  Context ctx(int(state.range(2)));
  const test::Random h(rows, cols, DType::bf16, 1);
  test::Random r(rows, cols, DType::bf16, 2);
  const test::Random w(1, cols, DType::bf16, 3, 0.2, 1);
  test::Random out(rows, cols, DType::bf16, 4, 0);
  bench::measure(state, ctx, rows * cols * 8,
                 [&] { rmsnorm_forward(ctx, {.delta = h, .stream_in = r, .weight = w, .stream_out = r, .out = out}, kFusedSites); });
}
BENCHMARK(rmsnorm_forward_bf16)->ArgsProduct({{64, 2048}, {896}, {1, 2}})->UseManualTime();

void rmsnorm_backward_bf16(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  const std::int64_t cols = state.range(1);
  Context ctx(int(state.range(2)));
  const test::Random d_out(rows, cols, DType::bf16, 1);
  test::Random d_stream(rows, cols, DType::bf16, 2);
  const test::Random sum(rows, cols, DType::f32, 5);
  const test::Random w(1, cols, DType::bf16, 3, 0.2, 1);
  const std::vector<float> rstd(std::size_t(rows), 1.0f);
  std::vector<float> d_weight(std::size_t(cols), 0.0f);
  bench::measure(state, ctx, rows * cols * 10, [&] {
    rmsnorm_backward(ctx,
                     {.d_out = d_out,
                      .d_stream = d_stream,
                      .sum = sum,
                      .weight = w,
                      .rstd = rstd.data(),
                      .d_sum = d_stream,
                      .d_weight = d_weight.data()},
                     kFusedSites, BackwardMode::fused);
  });
}
BENCHMARK(rmsnorm_backward_bf16)->ArgsProduct({{64, 2048}, {896}, {1, 2}})->UseManualTime();

}  // namespace
}  // namespace plumb
