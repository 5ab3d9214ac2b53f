// One token: percent of the read rate for one pass over its logits, and the time. `kernels_bench --benchmark_filter=sampling`
#include "kernels/core/bench.h"
#include "kernels/matmul/peak.h"
#include "kernels/sampling/sampling.h"

namespace plumb {
namespace {

void sampling_bench(benchmark::State& state, std::int64_t vocab, SamplingParams params) {
  Context ctx(1);
  bench::Filled logits(1, vocab, DType::f32);
  for (std::int64_t v = 0; v < vocab; ++v) logits.mat.row<float>(0)[v] *= 20;
  std::vector<float> work(2 * std::size_t(vocab));
  std::uint64_t position = 0;
  bench::sample(
      state, double(vocab) * 4, 4e6, "read%", [&] { return measure_read_rate(ctx, logits.mat.data, std::size_t(vocab * 4) / 64 * 64); },
      [&] {
        const float u = random_uniform({.seed = 1}, position++);
        benchmark::DoNotOptimize(sample_token(logits.mat.data, DType::f32, vocab, params, u, {}, work.data()));
      });
}

const int registered = [] {
  for (std::int64_t vocab : {32, 1024, 151936}) {
    const std::string tail = "/vocab:" + std::to_string(vocab);
    bench::add("sampling/greedy" + tail, [=](benchmark::State& s) { sampling_bench(s, vocab, {.temperature = 0}); });
    bench::add("sampling/plain" + tail, [=](benchmark::State& s) { sampling_bench(s, vocab, {}); });
    bench::add("sampling/top_k" + tail, [=](benchmark::State& s) { sampling_bench(s, vocab, {.top_k = 20}); });
    bench::add("sampling/top_p" + tail, [=](benchmark::State& s) { sampling_bench(s, vocab, {.top_p = 0.95f}); });
  }
  return 0;
}();

}  // namespace
}  // namespace plumb
