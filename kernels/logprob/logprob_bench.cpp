// Percent of the matmul's peak for the multiply-adds of the LM head: one product forward, three backward (the logits are
// computed again). `kernels_bench --benchmark_filter=logprob`
#include "kernels/core/bench.h"
#include "kernels/logprob/logprob.h"
#include "kernels/matmul/peak.h"

namespace plumb {
namespace {

struct Shape {
  std::int64_t rows;
  std::int64_t depth;
  std::int64_t vocab;
};

void logprob_bench(benchmark::State& state, Shape s, const std::string& name, int threads, bool backward) {
  Context ctx(threads);
  const Numerics n = preset(name);
  const Sites sites = n.sites(0, 1, Place::block);
  const bench::Filled hidden(s.rows, s.depth, DType::bf16);
  const bench::Filled weight(s.vocab, s.depth, DType::bf16);
  const bench::Filled d_hidden(s.rows, s.depth, DType::bf16);
  const bench::Filled d_weight(s.vocab, s.depth, DType::f32);
  const Buffer panels(packed_bytes(s.vocab, s.depth, DType::bf16));
  pack_weight(ctx, weight.mat, 0, s.vocab, panels.data());
  const PackedWeight packed{.panels = panels.data(), .rows = s.vocab, .depth = s.depth, .dtype = DType::bf16};
  std::vector<std::int32_t> targets;
  for (std::int64_t i = 0; i < s.rows; ++i) targets.push_back(std::int32_t(i * 7919 % s.vocab));
  const std::vector<float> upstream(std::size_t(s.rows), 1.0f);
  std::vector<float> logprob(upstream.size());
  std::vector<float> entropy(upstream.size());
  const double work = (backward ? 6.0 : 2.0) * double(s.rows) * double(s.depth) * double(s.vocab);
  bench::sample(
      state, work, 2e8, "peak%", [&] { return measure_peak_flops(ctx, 5e-4); },
      [&] {
        if (backward) {
          logprob_backward(ctx,
                           {.hidden = hidden.mat,
                            .weight = weight.mat,
                            .packed = packed,
                            .targets = targets.data(),
                            .d_logprob = upstream.data(),
                            .d_hidden = d_hidden.mat,
                            .d_weight = d_weight.mat},
                           sites);
        } else {
          logprob_forward(ctx,
                          {.hidden = hidden.mat,
                           .weight = weight.mat,
                           .packed = packed,
                           .targets = targets.data(),
                           .logprob = logprob.data(),
                           .entropy = entropy.data()},
                          sites);
        }
      });
}

const int registered = [] {
  for (int threads : {1, 2})
    for (const Shape& s : {Shape{256, 128, 32}, Shape{2048, 512, 1024}, Shape{128, 896, 151936}})
      for (const std::string name : {"fused", "hf_eager"})
        for (bool backward : {false, true})
          bench::add("logprob/" + name + (backward ? "/backward/" : "/forward/") + std::to_string(s.rows) + "x" + std::to_string(s.depth) +
                         "x" + std::to_string(s.vocab) + "/threads:" + std::to_string(threads),
                     [=](benchmark::State& state) { logprob_bench(state, s, name, threads, backward); });
  return 0;
}();

}  // namespace
}  // namespace plumb
