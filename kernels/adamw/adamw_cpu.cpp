// Scratch slots: op0 of thread 0 (one partial sum of squares a chunk).
#include "kernels/adamw/adamw_cpu.h"

#include "kernels/core/rows.h"

namespace plumb::cpu {

namespace {

constexpr std::int64_t kChunk = 8192;  // elements of one partial sum: part of the result, not of the speed

/// A sum of squares in 16 double lanes, folded by halves.
class SquareSum {
 public:
  void add(F32x16 x) { add(widen(x.lo, 0), widen(x.lo, 1), widen(x.hi, 0), widen(x.hi, 1)); }
  /// The square of a - b, the difference in double (exact when the two are near).
  void add_difference(F32x16 a, F32x16 b) {
    const auto minus = [](__m256 x, __m256 y, int half) { return _mm256_sub_pd(widen(x, half), widen(y, half)); };
    add(minus(a.lo, b.lo, 0), minus(a.lo, b.lo, 1), minus(a.hi, b.hi, 0), minus(a.hi, b.hi, 1));
  }
  double total() const {
    const __m256d four = _mm256_add_pd(_mm256_add_pd(sums_[0], sums_[2]), _mm256_add_pd(sums_[1], sums_[3]));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
  }

 private:
  static __m256d widen(__m256 x, int half) { return _mm256_cvtps_pd(half ? _mm256_extractf128_ps(x, 1) : _mm256_castps256_ps128(x)); }
  void add(__m256d a, __m256d b, __m256d c, __m256d d) {
    sums_[0] = _mm256_fmadd_pd(a, a, sums_[0]);
    sums_[1] = _mm256_fmadd_pd(b, b, sums_[1]);
    sums_[2] = _mm256_fmadd_pd(c, c, sums_[2]);
    sums_[3] = _mm256_fmadd_pd(d, d, sums_[3]);
  }
  __m256d sums_[4] = {};
};

/// Adds up chunk(first, last) over all chunks of n elements, in their order, whoever computes them.
template <class F>
double sum_over_chunks(Context& ctx, std::int64_t n, F&& chunk) {
  const std::int64_t chunks = (n + kChunk - 1) / kChunk;
  double* partial = ctx.scratch(0, ScratchSlot::op0).get<double>(std::max<std::int64_t>(chunks, 1));
  ctx.parallel_for(chunks, 2, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t c = begin; c < end; ++c) partial[c] = chunk(c * kChunk, std::min((c + 1) * kChunk, n));
  });
  double sum = 0;
  for (std::int64_t c = 0; c < chunks; ++c) sum += partial[c];
  return sum;
}

template <bool kRounds>
double step_range(const AdamW& a, const AdamWScalars& k, std::int64_t begin, std::int64_t end) {
  const RowOut weight = a.weight ? RowOut(make_mat(a.weight, 1, a.n, a.weight_dtype), 0) : RowOut();
  SquareSum update;
  for_lanes(begin, end, [&](std::int64_t i, auto n) {
    const F32x16 p = load_part(a.master + i, n);
    auto s = adamw_step(k, p, load_part(a.m + i, n), load_part(a.v + i, n), load_part(a.grad + i, n));
    if constexpr (kRounds) {
      s = {.p = round_if(a.master_dtype == DType::bf16, s.p),
           .m = round_if(a.moments_dtype == DType::bf16, s.m),
           .v = round_if(a.moments_dtype == DType::bf16, s.v)};
    }
    store_part(a.master + i, s.p, n);
    store_part(a.m + i, s.m, n);
    store_part(a.v + i, s.v, n);
    if (weight.data) weight.store(i, s.p, n);
    if (a.update_squares) update.add_difference(load_part(a.master + i, n), p);
  });
  return update.total();
}

}  // namespace

void adamw(Context& ctx, const AdamW& a, const AdamWScalars& k) {
  const bool rounds = a.master_dtype != DType::f32 || a.moments_dtype != DType::f32;
  const double squares = sum_over_chunks(ctx, a.n, [&](std::int64_t begin, std::int64_t end) {
    return rounds ? step_range<true>(a, k, begin, end) : step_range<false>(a, k, begin, end);
  });
  if (a.update_squares) *a.update_squares = squares;
}

double sum_of_squares(Context& ctx, const float* x, std::int64_t n) {
  return sum_over_chunks(ctx, n, [&](std::int64_t begin, std::int64_t end) {
    SquareSum sum;
    for_lanes(begin, end, [&](std::int64_t i, auto count) { sum.add(load_part(x + i, count)); });
    return sum.total();
  });
}

}  // namespace plumb::cpu
