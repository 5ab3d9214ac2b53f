// kernels_bench --benchmark_filter=adamw      arguments: elements, threads
#include "kernels/adamw/adamw.h"
#include "kernels/core/bench.h"

namespace plumb {
namespace {

void adamw_step_bf16_copy(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  Context ctx(int(state.range(1)));
  std::vector<float> p(std::size_t(n), 1.0f);
  const std::vector<float> g(std::size_t(n), 0.5f);
  std::vector<float> m(std::size_t(n), 0.0f);
  std::vector<float> v(std::size_t(n), 0.0f);
  std::vector<BF16> weight(static_cast<std::size_t>(n));
  double squares = 0;
  bench::measure(state, ctx, n * 30, [&] {
    adamw(ctx, {.master = p.data(),
                .grad = g.data(),
                .m = m.data(),
                .v = v.data(),
                .weight = weight.data(),
                .n = n,
                .lr = 1e-6,
                .weight_decay = 0.01,
                .update_squares = &squares});
  });
}
BENCHMARK(adamw_step_bf16_copy)->ArgsProduct({{1 << 16, 1 << 24}, {1, 2}})->UseManualTime();

void sum_of_squares_f32(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  Context ctx(int(state.range(1)));
  const std::vector<float> g(std::size_t(n), 0.5f);
  bench::measure(state, ctx, n * 4, [&] { benchmark::DoNotOptimize(sum_of_squares(ctx, g.data(), n)); });
}
BENCHMARK(sum_of_squares_f32)->ArgsProduct({{1 << 16, 1 << 24}, {1, 2}})->UseManualTime();

}  // namespace
}  // namespace plumb
