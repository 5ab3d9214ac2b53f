// Percent of the multiply-add peak, or of the raw read rate, measured around every sample: only ratios mean anything on a
// shared machine. `kernels_bench --benchmark_filter=matmul`
#include <string>

#include "kernels/core/bench.h"
#include "kernels/matmul/matmul.h"

namespace plumb {
namespace {

using bench::Filled;

constexpr double kSampleWork = 2e8;  // operations, or bytes

enum class Product { packed, unpacked, d_input, d_weight };
constexpr const char* name_of(Product p) {
  switch (p) {
    case Product::packed: return "packed";
    case Product::unpacked: return "unpacked";
    case Product::d_input: return "dX";
    case Product::d_weight: return "dW";
  }
  return "?";
}

struct Shape {
  std::int64_t m, n, k;
};

void product_bench(benchmark::State& state, Product product, Shape s, Isa isa, int threads, DType storage, DType out, bool bias) {
  Context ctx(threads, isa);
  const Filled x(s.m, s.k, storage);
  const Filled w(s.n, s.k, storage);
  const Filled dy(s.m, s.n, storage);
  const Filled b(1, s.n, storage);
  const Buffer panels(packed_bytes(s.n, s.k, storage));
  pack_weight(ctx, w.mat, 0, s.n, panels.data());
  Matmul m{.a = {x.mat}, .b = {w.mat}};
  if (bias) m.bias = b.mat;
  if (product == Product::packed) m.packed = {.panels = panels.data(), .rows = s.n, .depth = s.k, .dtype = storage};
  if (product == Product::d_input) m = {.a = {dy.mat}, .b = {w.mat, true}};
  if (product == Product::d_weight) m = {.a = {dy.mat, true}, .b = {x.mat, true}, .accumulate = out == DType::f32};
  const Filled c(m.a.rows(), m.b.rows(), out);
  m.c = c.mat;
  bench::sample(
      state, 2.0 * double(s.m) * double(s.n) * double(s.k), kSampleWork, "peak%", [&] { return measure_peak_flops(ctx, 5e-4); },
      [&] { matmul(ctx, m); });
}

void decode_bench(benchmark::State& state, std::int64_t rows, Isa isa, int threads) {
  constexpr std::int64_t kVocab = 151936;
  constexpr std::int64_t kWidth = 896;
  Context ctx(threads, isa);
  const Filled x(rows, kWidth, DType::bf16);
  const Buffer panels(packed_bytes(kVocab, kWidth, DType::bf16));
  {
    const Filled w(kVocab, kWidth, DType::bf16);
    pack_weight(ctx, w.mat, 0, kVocab, panels.data());
  }
  const Filled logits(rows, kVocab, DType::f32);
  const Matmul m{.a = {x.mat}, .packed = {.panels = panels.data(), .rows = kVocab, .depth = kWidth}, .c = logits.mat};
  bench::sample(
      state, double(panels.size()), kSampleWork, "read%", [&] { return measure_read_rate(ctx, panels.data(), panels.size()); },
      [&] { matmul(ctx, m); });
  const double peak = measure_peak_flops(ctx, 2e-3);
  const double seconds = bench::seconds_of([&] { matmul(ctx, m); });
  state.counters["peak%"] = 100 * 2.0 * double(rows) * double(kVocab) * double(kWidth) / seconds / peak;
}

void add(const std::string& name, auto&& f) {
  benchmark::RegisterBenchmark(name.c_str(), std::forward<decltype(f)>(f))->UseManualTime()->Unit(benchmark::kMillisecond)->MinTime(0.05);
}

const int registered = [] {
  const Shape shapes[] = {{512, 896, 896}, {512, 4864, 896}, {512, 896, 4864}, {2048, 256, 256},
                          {512, 512, 64},  {512, 64, 512},   {2048, 64, 64}};
  for (Isa isa : machine_isas()) {
    for (int threads : {1, 2}) {
      const std::string tail = std::string("/") + name_of(isa) + "/threads:" + std::to_string(threads);
      for (const Shape& s : shapes) {
        const std::string size = std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k);
        for (Product p : {Product::packed, Product::unpacked, Product::d_input, Product::d_weight})
          add("matmul/bf16/" + std::string(name_of(p)) + "/" + size + tail, [=](benchmark::State& state) {
            product_bench(state, p, s, isa, threads, DType::bf16, p == Product::d_weight ? DType::f32 : DType::bf16, p == Product::packed);
          });
        for (Product p : {Product::packed, Product::d_input, Product::d_weight})
          add("matmul/f32/" + std::string(name_of(p)) + "/" + size + tail,
              [=](benchmark::State& state) { product_bench(state, p, s, isa, threads, DType::f32, DType::f32, false); });
      }
      for (std::int64_t rows : {1, 4, 8, 16, 32})
        add("matmul/decode/rows:" + std::to_string(rows) + tail, [=](benchmark::State& state) { decode_bench(state, rows, isa, threads); });
    }
  }
  return 0;
}();

}  // namespace
}  // namespace plumb
