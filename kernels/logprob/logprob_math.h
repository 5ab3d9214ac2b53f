// The one place where the log-prob rounds: the temperature, the row sums and the gradient of the logits. Internal, but for
// the sampler, which must compute the same bits.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/core/math.h"
#include "kernels/logprob/logprob.h"

namespace plumb::logprob_detail {

/// z = l: temperature 1 is no operation at all.
struct NoTemperature {
  template <class V>
  V scale(V l) const {
    return l;
  }
  template <class V>
  V gradient(V dz) const {
    return dz;
  }
};
/// z = R?(l / T), dl = R?(dz) / T: the division's own result and gradient are tensors of the site's type.
struct Temperature {
  float t;
  bool round;
  template <class V>
  V scale(V l) const {
    return round_if(round, l / V(t));
  }
  template <class V>
  V gradient(V dz) const {
    return round_if(round, dz) / V(t);
  }
};
/// The same, rounded to a format held in FP32 memory.
struct EmulatedTemperature {
  float t;
  DType to;
  template <class V>
  V scale(V l) const {
    return round_to(to, l / V(t));
  }
  template <class V>
  V gradient(V dz) const {
    return round_to(to, dz) / V(t);
  }
};
/// f(a NoTemperature, Temperature or EmulatedTemperature).
template <class F>
auto with_temperature(float t, Sites sites, F&& f) {
  if (t == 1.0f) return f(NoTemperature{});
  const bool rounded = sites.rounded(Site::logits_temperature);
  if (rounded && sites.to != DType::bf16) return f(EmulatedTemperature{t, sites.to});
  return f(Temperature{t, rounded});
}

/// f(const BF16* or const float*).
template <class F>
auto with_row(const void* logits, DType dtype, F&& f) {
  if (dtype == DType::bf16) return f(static_cast<const BF16*>(logits));
  return f(static_cast<const float*>(logits));
}

/// f(first, n, lanes) over a row, 16 scaled logits at a time; lanes from n on are 0.
template <class T, class Temp, class F>
void for_each_lanes(const T* logits, std::int64_t vocab, const Temp& temp, F&& f) {
  std::int64_t v = 0;
  for (; v + 16 <= vocab; v += 16) f(v, 16, temp.scale(load16(logits + v)));
  if (v < vocab) f(v, int(vocab - v), temp.scale(load_part(logits + v, int(vocab - v))));
}

/// max z: scaling is monotone, so it is the scaled maximum. NaN logits are passed over (they show in the sum).
template <class T, class Temp>
float row_max(const T* logits, std::int64_t vocab, const Temp& temp) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  F32x16 top(kNone);
  std::int64_t v = 0;
  for (; v + 16 <= vocab; v += 16) top = max(load16(logits + v), top);
  float best = fold_max(top);
  for (; v < vocab; ++v) best = max(to_float(logits[v]), best);
  return temp.scale(best);
}

/// Lowest index whose scaled logit is `top`; 0 when there is none (NaN).
template <class T, class Temp>
std::int32_t first_equal(const T* logits, std::int64_t vocab, const Temp& temp, float top) {
  for (std::int64_t v = 0; v < vocab; ++v)
    if (temp.scale(to_float(logits[v])) == top) return std::int32_t(v);
  return 0;
}

inline F32x16 keep_lanes(F32x16 x, int n) {
  if (n >= 16) return x;
  float lanes[16];
  store16(lanes, x);
  return load_part(lanes, n);
}

/// log of a row's sum: one a row, so it can be correctly rounded (in all but a vanishing share), which PyTorch's is too. A last
/// bit here moves every probability of the row. Infinities and NaN pass through log_.
inline float log_of_sum(float total) {
  const bool normal = total >= std::numeric_limits<float>::min() && total <= std::numeric_limits<float>::max();
  return normal ? float(log_double(double(total))) : log_(total);
}

struct RowStatistics {
  RowLogprob logprob;
  float entropy = 0;
};

/// log sum exp(z - max) over 16 lanes, and H = log sum - (sum e (z - max)) / sum e, where a zero probability adds nothing.
template <bool kEntropy, class T, class Temp>
RowStatistics row_statistics(const T* logits, std::int64_t vocab, const Temp& temp) {
  RowStatistics s;
  s.logprob.max = row_max(logits, vocab, temp);
  F32x16 sum(0.0f);
  F32x16 weighted(0.0f);
  for_each_lanes(logits, vocab, temp, [&](std::int64_t, int n, F32x16 z) {
    const F32x16 d = z - F32x16(s.logprob.max);
    const F32x16 e = keep_lanes(exp_(d), n);
    sum = sum + e;
    if constexpr (kEntropy) weighted = fma(e, math_detail::select_less(F32x16(0.0f), e, d, F32x16(0.0f)), weighted);
  });
  const float total = fold_sum(sum);
  s.logprob.log_sum = log_of_sum(total);
  if constexpr (kEntropy) s.entropy = s.logprob.log_sum - fold_sum(weighted) / total;
  return s;
}
template <class T, class Temp>
RowStatistics row_statistics(const T* logits, std::int64_t vocab, const Temp& temp, bool entropy) {
  return entropy ? row_statistics<true>(logits, vocab, temp) : row_statistics<false>(logits, vocab, temp);
}

/// Upstream gradients of one row.
struct RowUpstream {
  std::int32_t target = 0;
  float logprob = 0;
  float entropy = 0;
};

/// dl = (d_logprob (onehot - p) - d_entropy p (log p + H)) / T, p = exp(z - lse). Written to out (BF16: rounded), which may be
/// the memory of the logits: element v is written after it and everything before it was read.
template <class T, class Temp, class Out>
void row_gradient(const T* logits, std::int64_t vocab, const Temp& temp, const RowStatistics& s, const RowUpstream& up, Out* out) {
  const F32x16 minus(-up.logprob);
  for_each_lanes(logits, vocab, temp, [&](std::int64_t v, int n, F32x16 z) {
    const F32x16 logp = (z - F32x16(s.logprob.max)) - F32x16(s.logprob.log_sum);
    const F32x16 p = exp_(logp);
    F32x16 dz = p * minus;
    if (up.target >= v && up.target < v + n) {
      float lanes[16];
      float probs[16];
      store16(lanes, dz);
      store16(probs, p);
      lanes[up.target - v] = fma(probs[up.target - v], -up.logprob, up.logprob);
      dz = load16(lanes);
    }
    if (up.entropy != 0.0f) {
      const F32x16 slope = math_detail::select_less(F32x16(0.0f), p, p * (logp + F32x16(s.entropy)), F32x16(0.0f));
      dz = fma(F32x16(-up.entropy), slope, dz);
    }
    store_part(out + v, temp.gradient(dz), n);
  });
}

}  // namespace plumb::logprob_detail
