// Training: percent of the FMA peak for the multiply-adds below the diagonal. Decode: percent of the raw read rate of the
// keys and values. `kernels_bench --benchmark_filter=attention`
#include "kernels/attention/attention.h"
#include "kernels/core/bench.h"
#include "kernels/matmul/peak.h"

namespace plumb {
namespace {

struct Shape {
  std::int64_t sequences;
  std::int64_t length;
  int heads;
  int kv_heads;
  int head_dim;
};

struct Problem {
  Shape s;
  bench::Filled q, k, v, out, d_out, d_q, d_k, d_v;
  std::vector<float> max, sum;
  std::vector<AttentionSequence> sequences;

  /// rows: queries; keys of a sequence lie beside each other.
  Problem(const Shape& shape, std::int64_t queries)
      : s(shape),
        q(s.sequences * queries, std::int64_t(s.heads) * s.head_dim, DType::bf16),
        k(s.sequences * s.length, std::int64_t(s.kv_heads) * s.head_dim, DType::bf16),
        v(k.mat.rows, k.mat.cols, DType::bf16),
        out(q.mat.rows, q.mat.cols, DType::bf16),
        d_out(q.mat.rows, q.mat.cols, DType::bf16),
        d_q(q.mat.rows, q.mat.cols, DType::bf16),
        d_k(k.mat.rows, k.mat.cols, DType::bf16),
        d_v(k.mat.rows, k.mat.cols, DType::bf16),
        max(std::size_t(q.mat.rows * s.heads)),
        sum(max.size()) {
    for (std::int64_t i = 0; i < s.sequences; ++i) {
      auto rows = [&](const Mat& m) { return KvRows{.own = m.row_bytes(i * s.length), .stride = m.cols}; };
      sequences.push_back({.first_row = i * queries, .rows = queries, .first_pos = s.length - queries, .k = rows(k.mat), .v = rows(v.mat)});
    }
  }

  void forward(Context& ctx, const Numerics& n) {
    attention_forward(ctx,
                      {.q = q.mat,
                       .heads = s.heads,
                       .kv_heads = s.kv_heads,
                       .head_dim = s.head_dim,
                       .sequences = sequences.data(),
                       .n_sequences = s.sequences,
                       .out = out.mat,
                       .row_max = max.data(),
                       .row_sum = sum.data()},
                      n, n.sites(0, 1, Place::block));
  }
  void backward(Context& ctx, const Numerics& n) {
    attention_backward(ctx,
                       {.d_out = d_out.mat,
                        .q = q.mat,
                        .k = k.mat,
                        .v = v.mat,
                        .out = out.mat,
                        .row_max = max.data(),
                        .row_sum = sum.data(),
                        .heads = s.heads,
                        .kv_heads = s.kv_heads,
                        .head_dim = s.head_dim,
                        .sequences = sequences.data(),
                        .n_sequences = s.sequences,
                        .d_q = d_q.mat,
                        .d_k = d_k.mat,
                        .d_v = d_v.mat},
                       n, n.sites(0, 1, Place::block), n.backward.attention);
  }
};

void training_bench(benchmark::State& state, Shape s, const std::string& name, int threads, bool backward) {
  Context ctx(threads, Isa::avx2);
  const Numerics n = preset(name);
  Problem p(s, s.length);
  p.forward(ctx, n);
  const double products = backward ? 5 : 2;
  const double work = products * 2 * double(s.sequences * s.heads * s.head_dim) * double(s.length) * double(s.length + 1) / 2;
  bench::sample(
      state, work, 1e8, "peak%", [&] { return measure_peak_flops(ctx, 5e-4); },
      [&] {
        if (backward) return p.backward(ctx, n);
        p.forward(ctx, n);
      });
}

void decode_bench(benchmark::State& state, Shape s, int threads) {
  Context ctx(threads, Isa::avx2);
  const Numerics n = preset("fused");
  Problem p(s, 1);
  bench::sample(
      state, double(p.k.memory.size() + p.v.memory.size()), 1e7, "read%",
      [&] { return measure_read_rate(ctx, p.k.memory.data(), p.k.memory.size() / 64 * 64); }, [&] { p.forward(ctx, n); });
}

const int registered = [] {
  const Shape training[] = {{16, 16, 4, 2, 32}, {16, 64, 4, 2, 32}, {4, 256, 8, 4, 64}, {1, 1024, 8, 4, 64}, {2, 256, 8, 2, 128}};
  const Shape decode[] = {{1, 32768, 16, 8, 64}, {32, 2048, 9, 3, 64}, {8, 2048, 16, 8, 128}, {256, 32, 4, 2, 32}};
  for (int threads : {1, 2}) {
    auto name = [&](const Shape& s) {
      return std::to_string(s.sequences) + "x" + std::to_string(s.length) + "/heads:" + std::to_string(s.heads) + "," +
             std::to_string(s.kv_heads) + "x" + std::to_string(s.head_dim) + "/threads:" + std::to_string(threads);
    };
    for (const Shape& s : training)
      for (const std::string numerics : {"fused", "hf_eager"})
        for (bool backward : {false, true})
          bench::add("attention/" + numerics + (backward ? "/backward/" : "/forward/") + name(s),
                     [=](benchmark::State& state) { training_bench(state, s, numerics, threads, backward); });
    for (const Shape& s : decode)
      bench::add("attention/decode/" + name(s), [=](benchmark::State& state) { decode_bench(state, s, threads); });
  }
  return 0;
}();

}  // namespace
}  // namespace plumb
