// The one place where attention rounds: steps on a value type V (a float or sixteen lanes), and rows of scores built from them.
#pragma once
#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/core/exp_approximations.h"
#include "kernels/core/math.h"
#include "kernels/numerics/site_dispatch.h"

namespace plumb::attention_detail {

/// R?(R?(q.k) * scale); with ScaleAt::query the scale is 1 here, the query has it.
template <bool kScores, bool kScaled, class V>
V scaled_score(V dot, V scale) {
  return round_if(kScaled, round_if(kScores, dot) * scale);
}

/// The unrounded exponential of a score.
template <AttentionExp kExp, class V>
[[gnu::always_inline]] inline V exp_score(V s, V max) {
  if constexpr (kExp == AttentionExp::u20) return exp_u20(s - max);
  if constexpr (kExp == AttentionExp::torch_fast || kExp == AttentionExp::torch_fast_all) return exp_fast(s - max);
  return exp_(s - max);
}
/// The factor by which what was summed so far moves to a new maximum: every stack computes it exactly.
inline float max_shift(float old_max, float new_max) { return exp_(old_max - new_max); }

/// The exp of the keys at a sequence's end.
constexpr AttentionExp end_exp(AttentionExp e) { return e == AttentionExp::torch_fast ? AttentionExp::exact : e; }

/// The keys at a sequence's end that are taken apart: those from `first` on, a multiple of 16.
struct SequenceEnd {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  bool one_by_one = false;  // in the sum of e

  /// Of a sequence of `length` keys.
  static SequenceEnd of(const Reductions& r, std::int64_t length) {
    if (!needs_whole_sequences(r)) return {};
    return {.first = length / 16 * 16, .one_by_one = r.attention_sum == AttentionSum::lanes16_tail};
  }
};

/// f(std::integral_constant<AttentionExp, ...>): the exp as a template parameter.
template <class F>
void with_exp(AttentionExp e, F&& f) {
  switch (e) {
    case AttentionExp::exact: return f(std::integral_constant<AttentionExp, AttentionExp::exact>{});
    case AttentionExp::torch_fast: return f(std::integral_constant<AttentionExp, AttentionExp::torch_fast>{});
    case AttentionExp::torch_fast_all: return f(std::integral_constant<AttentionExp, AttentionExp::torch_fast_all>{});
    case AttentionExp::u20: return f(std::integral_constant<AttentionExp, AttentionExp::u20>{});
  }
}

/// f(std::bool_constant...) for run-time flags: rounding sites as template parameters.
template <class F>
void with_flag(bool flag, F&& f) {
  if (flag) return f(std::true_type{});
  f(std::false_type{});
}

/// x in the first n lanes, `other` in the rest.
inline F32x16 first_lanes(F32x16 x, std::int64_t n, F32x16 other) {
  if (n >= 16) return x;
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i lo = _mm256_cmpgt_epi32(_mm256_set1_epi32(int(n)), index);
  const __m256i hi = _mm256_cmpgt_epi32(_mm256_set1_epi32(int(n) - 8), index);
  return {_mm256_blendv_ps(other.lo, x.lo, _mm256_castsi256_ps(lo)), _mm256_blendv_ps(other.hi, x.hi, _mm256_castsi256_ps(hi))};
}
inline F32x16 keep_lanes(F32x16 x, std::int64_t n) { return first_lanes(x, n, F32x16(0.0f)); }

/// Whole groups of 16 cover n.
inline void round_row(float* s, std::int64_t n, DType to) {
  for (std::int64_t j = 0; j < n; j += 16) store16(s + j, round_to(to, load16(s + j)));
}

/// s[0..n) = scaled scores in place; returns their maximum. Whole groups of 16 are read and written: what lies beyond n is
/// not used, and undefined afterwards.
template <bool kScores, bool kScaled>
float scale_row(float* s, std::int64_t n, float scale) {
  const F32x16 none(-std::numeric_limits<float>::infinity());
  F32x16 top = none;
  for (std::int64_t j = 0; j < n; j += 16) {
    const F32x16 x = scaled_score<kScores, kScaled>(load16(s + j), F32x16(scale));
    store16(s + j, x);
    top = max(first_lanes(x, n - j, none), top);
  }
  return fold_max(top);
}
inline float scale_row(Sites sites, float* s, std::int64_t n, float scale) {
  float row_max = 0;
  if (sites.to != DType::bf16) {
    if (sites.rounded(Site::attn_scores)) round_row(s, n, sites.to);
    row_max = scale_row<false, false>(s, n, scale);
    if (!sites.rounded(Site::attn_scaled)) return row_max;
    round_row(s, n, sites.to);
    return scale_row<false, false>(s, n, 1.0f);
  }
  with_flag(sites.rounded(Site::attn_scores), [&](auto scores) {
    with_flag(sites.rounded(Site::attn_scaled), [&](auto scaled) { row_max = scale_row<scores(), scaled()>(s, n, scale); });
  });
  return row_max;
}

/// s[0..n) = R?(exp(s - max)), then zeros to the next multiple of 16; returns the unrounded exponentials' sum over each lane:
/// element j in lane j % 16.
template <bool kRound, AttentionExp kExp>
[[gnu::always_inline]] inline F32x16 exp_groups(float* s, std::int64_t n, float max) {
  F32x16 sum(0.0f);
  for (std::int64_t j = 0; j < n; j += 16) {
    const F32x16 e = keep_lanes(exp_score<kExp>(load16(s + j), F32x16(max)), n - j);
    sum = sum + e;
    store16(s + j, round_if(kRound, e));
  }
  return sum;
}

/// exp_row of a row that reaches into the sequence's end: the last n - end.first keys are fewer than 16.
template <bool kRound, AttentionExp kExp>
[[gnu::noinline]] float exp_row_end(float* s, std::int64_t n, float max, const SequenceEnd& end) {
  const F32x16 sum = exp_groups<kRound, kExp>(s, end.first, max);
  const F32x16 e = keep_lanes(exp_score<end_exp(kExp)>(load16(s + end.first), F32x16(max)), n - end.first);
  store16(s + end.first, round_if(kRound, e));
  if (!end.one_by_one) return fold_sum(sum + e);
  float total = fold_sum(sum);
  float last[16];
  store16(last, e);
  for (std::int64_t i = 0; i < n - end.first; ++i) total += last[i];
  return total;
}

/// s[0..n) = R?(exp(s - max)), then zeros to the next multiple of 16; returns the sum of the unrounded exponentials, the lanes
/// folded by halves, and those at the sequence's end as `end` says.
template <bool kRound, AttentionExp kExp>
float exp_row(float* s, std::int64_t n, float max, const SequenceEnd& end) {
  if (n > end.first) return exp_row_end<kRound, kExp>(s, n, max, end);
  return fold_sum(exp_groups<kRound, kExp>(s, n, max));
}

/// p[0..n) = R?(e * (1 / sum)), as PyTorch normalises.
template <bool kRound>
void normalise_row(float* p, std::int64_t n, float sum) {
  const F32x16 inverse(1.0f / sum);
  for (std::int64_t j = 0; j < n; j += 16) store16(p + j, round_if(kRound, load16(p + j) * inverse));
}

/// The gradient of a score: softmax backward, before the scale.
template <class V>
V score_gradient(V p, V dp, V row_dot) {
  return (dp - row_dot) * p;
}

/// What the softmax backward of one row needs besides the scores and dP.
struct RowGradient {
  std::int64_t n = 0;      // keys seen
  std::int64_t width = 0;  // results are zero from n to here, a multiple of 16
  float max = 0;
  float sum = 0;
  float scale = 1;    // what the forward multiplied scores by
  float row_dot = 0;  // fused: <dO, O>
  SequenceEnd end;
};

/// The probabilities of the keys j.. of a row of scaled scores.
template <AttentionExp kExp>
[[gnu::always_inline]] inline F32x16 probability(const RowGradient& g, const float* s, std::int64_t j, F32x16 inverse) {
  if constexpr (end_exp(kExp) != kExp)
    if (j >= g.end.first) return keep_lanes(exp_score<end_exp(kExp)>(load16(s + j), F32x16(g.max)) * inverse, g.n - j);
  return keep_lanes(exp_score<kExp>(load16(s + j), F32x16(g.max)) * inverse, g.n - j);
}

/// In: p = scaled scores, ds = dP. Out: p = the probabilities, ds = the gradient of q.k, all FP32.
template <AttentionExp kExp>
void fused_gradient_row(const RowGradient& g, float* p, float* ds) {
  const F32x16 inverse(1.0f / g.sum);
  for (std::int64_t j = 0; j < g.n; j += 16) {
    const F32x16 prob = probability<kExp>(g, p, j, inverse);
    const F32x16 gradient = score_gradient(prob, load16(ds + j), F32x16(g.row_dot)) * F32x16(g.scale);
    store16(p + j, prob);
    store16(ds + j, keep_lanes(gradient, g.n - j));
  }
  const std::int64_t done = (g.n + 15) / 16 * 16;
  std::fill(p + done, p + g.width, 0.0f);
  std::fill(ds + done, ds + g.width, 0.0f);
}

/// In: p = scaled scores, ds = dP. Out: p = the probabilities, ds = dP rounded. Returns their dot product, 16 lanes.
template <AttentionExp kExp>
float mirror_probabilities(const RowGradient& g, bool rounded, float* p, float* ds) {
  const F32x16 inverse(1.0f / g.sum);
  F32x16 sum(0.0f);
  for (std::int64_t j = 0; j < g.n; j += 16) {
    const F32x16 prob = probability<kExp>(g, p, j, inverse);
    const F32x16 dp = keep_lanes(round_if(rounded, load16(ds + j)), g.n - j);
    sum = sum + dp * prob;
    store16(p + j, prob);
    store16(ds + j, dp);
  }
  return fold_sum(sum);
}

/// The softmax backward behind mirror_probabilities. S: RunTimeSites or EmulatedSites.
template <class S>
void mirror_scores(const RowGradient& g, S sites, F32x16 row_dot, float* p, float* ds) {
  for (std::int64_t j = 0; j < g.n; j += 16) {
    const F32x16 prob = load16(p + j);
    const F32x16 gradient = round_if(sites.rounded(Site::attn_scaled), score_gradient(prob, load16(ds + j), row_dot), sites.to);
    store16(ds + j, keep_lanes(round_if(sites.rounded(Site::attn_scores), gradient * F32x16(g.scale), sites.to), g.n - j));
    store16(p + j, round_if(sites.rounded(Site::attn_probs), prob, sites.to));
  }
}

/// fused_gradient_row with a gradient rounded wherever its forward value was: dP at attn.probs, dS at attn.scaled and, after the
/// scale, at attn.scores. The softmax backward itself is FP32 on unrounded probabilities, its row sum 16 lanes; p is
/// rounded (attn.probs) for the product with dO.
template <AttentionExp kExp>
void mirror_gradient_row(const RowGradient& g, Sites sites, float* p, float* ds) {
  const bool probs = sites.rounded(Site::attn_probs);
  if (sites.to == DType::bf16) {
    mirror_scores(g, RunTimeSites{sites.mask}, F32x16(mirror_probabilities<kExp>(g, probs, p, ds)), p, ds);
  } else {
    if (probs) round_row(ds, g.n, sites.to);
    mirror_scores(g, EmulatedSites{sites.mask, sites.to}, F32x16(mirror_probabilities<kExp>(g, false, p, ds)), p, ds);
  }
  const std::int64_t done = (g.n + 15) / 16 * 16;
  std::fill(p + done, p + g.width, 0.0f);
  std::fill(ds + done, ds + g.width, 0.0f);
}

}  // namespace plumb::attention_detail
