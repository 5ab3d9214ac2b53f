// kernels_bench --benchmark_filter=rope      arguments: rows, head_dim (14 heads), QK norm, threads
#include "kernels/core/bench.h"
#include "kernels/numerics/preset_sites.h"
#include "kernels/rope/rope.h"

namespace plumb {
namespace {

constexpr int kHeads = 14;

/// What both directions share.
struct Inputs {
  Inputs(std::int64_t rows, int head_dim)
      : table(head_dim, 1e6, 1024), q(rows, kHeads * head_dim, DType::bf16, 1), weight(1, head_dim, DType::bf16, 2, 0.2, 1) {
    for (std::int64_t r = 0; r < rows; ++r) positions.push_back(std::int32_t(r % 1024));
  }
  RopeTable table;
  test::Random q;
  test::Random weight;
  std::vector<std::int32_t> positions;
};

void rope_forward_bf16(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  Inputs x(rows, int(state.range(1)));
  Context ctx(int(state.range(3)));
  RopeForward a{.in = x.q, .heads = kHeads, .table = &x.table, .positions = x.positions.data(), .out = x.q};
  if (state.range(2)) a.norm_weight = x.weight;
  bench::measure(state, ctx, x.q.mat.rows * x.q.mat.cols * 4, [&] { rope_forward(ctx, a, kFusedSites); });
}
BENCHMARK(rope_forward_bf16)->ArgsProduct({{64, 2048}, {64, 128}, {0, 1}, {1, 2}})->UseManualTime();

void rope_backward_bf16(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  const int head_dim = int(state.range(1));
  Inputs x(rows, head_dim);
  Context ctx(int(state.range(3)));
  test::Random d(rows, kHeads * head_dim, DType::bf16, 3);
  const std::vector<float> rstd(std::size_t(rows * kHeads), 1.0f);
  std::vector<float> d_weight(std::size_t(head_dim), 0.0f);
  RopeBackward a{.d_out = d, .in = x.q, .heads = kHeads, .table = &x.table, .positions = x.positions.data(), .d_in = d};
  if (state.range(2)) {
    a.norm_weight = x.weight;
    a.rstd = rstd.data();
    a.d_norm_weight = d_weight.data();
  }
  const std::int64_t bytes = x.q.mat.rows * x.q.mat.cols * (state.range(2) ? 6 : 4);
  bench::measure(state, ctx, bytes, [&] { rope_backward(ctx, a, kFusedSites, BackwardMode::fused, BackwardMode::fused); });
}
BENCHMARK(rope_backward_bf16)->ArgsProduct({{2048}, {64, 128}, {0, 1}, {1, 2}})->UseManualTime();

}  // namespace
}  // namespace plumb
