#include "kernels/sampling/sampling_cpu.h"

#include <algorithm>
#include <functional>

#include "kernels/core/math.h"

namespace plumb::sampling_detail {
namespace {

constexpr std::int64_t kBlock = 1024;

/// e[v] = exp(z[v] - max).
void exponentials(const float* z, std::int64_t vocab, float max, float* e) {
  for (std::int64_t v = 0; v < vocab; v += 16) {
    const int n = int(std::min<std::int64_t>(16, vocab - v));
    store_part(e + v, exp_(load_part(z + v, n) - F32x16(max)), n);
  }
}

/// Sum of e over one block that starts at `first`.
double block_mass(const float* e, std::int64_t first, std::int64_t vocab) {
  const std::int64_t end = std::min(first + kBlock, vocab);
  F32x16 sum(0.0f);
  for (std::int64_t v = first; v < end; v += 16) sum = sum + load_part(e + v, int(std::min<std::int64_t>(16, end - v)));
  return double(fold_sum(sum));
}

double mass(const float* e, std::int64_t vocab) {
  double total = 0;
  for (std::int64_t first = 0; first < vocab; first += kBlock) total += block_mass(e, first, vocab);
  return total;
}

/// Keeps what exceeds `least` and the first `equals` that equal it; the rest becomes 0.
void keep(float* e, std::int64_t vocab, float least, std::int64_t equals) {
  for (std::int64_t v = 0; v < vocab; ++v) {
    if (e[v] > least) continue;
    if (e[v] == least && equals > 0) {
      --equals;
      continue;
    }
    e[v] = 0;
  }
}

void keep_top_k(float* e, std::int64_t vocab, std::int64_t k, float* work) {
  std::copy_n(e, vocab, work);
  std::nth_element(work, work + (k - 1), work + vocab, std::greater<>());
  const float least = work[k - 1];
  keep(e, vocab, least, k - std::count_if(work, work + k, [least](float x) { return x > least; }));
}

/// The tokens that are each below (1 - p) / vocab of the mass together have less than 1 - p of it: the others suffice, and
/// only they, few as a rule, are sorted.
void keep_top_p(float* e, std::int64_t vocab, double p, float* work) {
  const double total = mass(e, vocab);
  const double negligible = (1 - p) * total / double(vocab);
  std::int64_t n = 0;
  for (std::int64_t v = 0; v < vocab; ++v)
    if (double(e[v]) >= negligible && e[v] > 0) work[n++] = e[v];
  std::sort(work, work + n, std::greater<>());
  double reached = 0;
  std::int64_t kept = 0;
  while (kept < n && (kept == 0 || reached < p * total)) reached += double(work[kept++]);
  if (kept == 0) return;
  const float least = work[kept - 1];
  keep(e, vocab, least, kept - std::count_if(work, work + kept, [least](float x) { return x > least; }));
}

/// The token at which the running mass first exceeds u * total, which is the sum of the blocks' masses and positive.
std::int64_t invert(const float* e, std::int64_t vocab, double total, float u) {
  const double at = double(u) * total;
  double before = 0;
  std::int64_t first = 0;
  for (;; first += kBlock) {
    const double after = before + block_mass(e, first, vocab);
    if (after > at) break;  // at the last block at the latest, because u < 1
    before = after;
  }
  // The token-by-token sum may round below the block's: then the block's last possible token is meant.
  std::int64_t token = first;
  for (std::int64_t v = first; v < std::min(first + kBlock, vocab); ++v) {
    if (!(e[v] > 0)) continue;
    token = v;
    before += double(e[v]);
    if (before > at) break;
  }
  return token;
}

}  // namespace

SampledToken sample_cpu(const void* logits, DType dtype, std::int64_t vocab, const SamplingParams& params, float u, Sites sites,
                        float* work) {
  FtzScope ftz;
  const bool greedy = params.temperature == 0;
  float* z = work;
  float* e = work + vocab;
  const RowLogprob row = row_log_softmax(logits, dtype, vocab, greedy ? 1.0f : params.temperature, sites, z);
  const float* top = std::find(z, z + vocab, row.max);
  SampledToken s;
  s.argmax = top == z + vocab ? 0 : std::int32_t(top - z);
  s.token = s.argmax;
  s.logprob = s.logprob_kept = logprob_of(row, z[s.token]);
  if (greedy) return s;

  exponentials(z, vocab, row.max, e);
  const bool cut_k = params.top_k > 0 && params.top_k < vocab;
  const bool cut_p = params.top_p < 1;
  double total = mass(e, vocab);
  if (!(total > 0)) return s;  // a NaN, which sorting would not survive
  // The scaled logits' memory serves the cuts.
  if (cut_k) keep_top_k(e, vocab, params.top_k, z);
  if (cut_p) keep_top_p(e, vocab, double(params.top_p), z);
  if (cut_k || cut_p) total = mass(e, vocab);
  s.token = std::int32_t(invert(e, vocab, total, u));
  const float drawn = scaled_logit(logits, dtype, s.token, params.temperature, sites);
  s.logprob = s.logprob_kept = logprob_of(row, drawn);
  if (cut_k || cut_p) s.logprob_kept = (drawn - row.max) - log_(float(total));
  return s;
}

}  // namespace plumb::sampling_detail
