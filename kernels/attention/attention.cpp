#include "kernels/attention/attention.h"

#include <cmath>
#include <string>

#include "kernels/attention/attention_cpu.h"
#include "kernels/core/error.h"

namespace plumb {
namespace {

void check_heads(int heads, int kv_heads, int head_dim) {
  if (!(heads > 0 && kv_heads > 0 && heads % kv_heads == 0))
    throw Error("attention: " + std::to_string(heads) + " heads are no multiple of " + std::to_string(kv_heads) + " kv heads");
  if (!(head_dim > 0 && head_dim % 2 == 0)) throw Error("attention: head_dim must be even and positive, not " + std::to_string(head_dim));
}

void check_shape(ConstMat m, std::int64_t rows, std::int64_t cols, const char* name) {
  if (!(m.rows == rows && m.cols == cols))
    throw Error(std::string("attention: ") + name + " must be (" + std::to_string(rows) + ", " + std::to_string(cols) + "), not (" +
                std::to_string(m.rows) + ", " + std::to_string(m.cols) + ")");
}

void check_numerics(const Numerics& n) {
  if (!(n.reductions.attention_kv_tile > 0 && n.reductions.attention_kv_tile % 16 == 0))
    throw Error("reductions.attention_kv_tile must be a positive multiple of 16, not " + std::to_string(n.reductions.attention_kv_tile));
  const Reductions& r = n.reductions;
  for (const MatmulOrder o : {r.attention_qk, r.attention_pv}) {
    if (o != MatmulOrder::pair_swapped && o != MatmulOrder::natural)
      throw Error(std::string("reductions.attention_qk and attention_pv are pair_swapped or natural, not ") + enum_name(o));
  }
  if (!(r.attention_kv_split > 0))
    throw Error("reductions.attention_kv_split must be positive, not " + std::to_string(r.attention_kv_split));
  if (r.attention_kv_split > 1 && n.softmax == Softmax::normalised)
    throw Error("reductions.attention_kv_split needs flash softmax: a normalised one has no tiles");
}

void check_sequences(const AttentionSequence* sequences, std::int64_t n, std::int64_t rows, const Reductions& r) {
  const bool whole = needs_whole_sequences(r);
  for (std::int64_t s = 0; s < n; ++s) {
    const AttentionSequence& a = sequences[s];
    if (!(a.rows >= 0 && a.first_row >= 0 && a.first_row + a.rows <= rows && a.first_pos >= 0))
      throw Error("attention: sequence " + std::to_string(s) + " lies outside the queries' rows");
    if (whole && a.first_pos != 0)
      throw Error("attention: torch_fast and lanes16_tail need whole sequences; without them use torch_fast_all and lanes16");
  }
}

void check_keys(const KvRows& kv, const AttentionSequence& a, std::int64_t s) {
  const bool needs_own = a.first_pos + a.rows > kv.prefix_len;
  if (!((kv.prefix_len == 0 || kv.prefix != nullptr) && (!needs_own || kv.own != nullptr)))
    throw Error("attention: sequence " + std::to_string(s) + " has no memory for its keys or values");
}

}  // namespace

float attention_detail::attention_scale(int head_dim) { return float(1.0 / std::sqrt(double(head_dim))); }

void attention_forward(Context& ctx, const AttentionForward& a, const Numerics& numerics, Sites sites) {
  check_heads(a.heads, a.kv_heads, a.head_dim);
  check_numerics(numerics);
  const std::int64_t width = std::int64_t(a.heads) * a.head_dim;
  check_shape(a.q, a.q.rows, width, "q");
  check_shape(a.out, a.q.rows, width, "out");
  require((a.row_max == nullptr) == (a.row_sum == nullptr), "attention: row_max and row_sum are wanted together or not at all");
  check_sequences(a.sequences, a.n_sequences, a.q.rows, numerics.reductions);
  for (std::int64_t s = 0; s < a.n_sequences; ++s) {
    if (a.sequences[s].rows == 0) continue;
    check_keys(a.sequences[s].k, a.sequences[s], s);
    check_keys(a.sequences[s].v, a.sequences[s], s);
  }
  attention_detail::forward_cpu(ctx, a, numerics, sites);
}

void attention_backward(Context& ctx, const AttentionBackward& a, const Numerics& numerics, Sites sites, BackwardMode mode) {
  check_heads(a.heads, a.kv_heads, a.head_dim);
  check_numerics(numerics);
  const std::int64_t width = std::int64_t(a.heads) * a.head_dim;
  const std::int64_t kv_width = std::int64_t(a.kv_heads) * a.head_dim;
  check_shape(a.q, a.q.rows, width, "q");
  check_shape(a.d_out, a.q.rows, width, "d_out");
  check_shape(a.out, a.q.rows, width, "out");
  check_shape(a.d_q, a.q.rows, width, "d_q");
  check_shape(a.k, a.q.rows, kv_width, "k");
  check_shape(a.v, a.q.rows, kv_width, "v");
  check_shape(a.d_k, a.q.rows, kv_width, "d_k");
  check_shape(a.d_v, a.q.rows, kv_width, "d_v");
  require(a.k.dtype == a.v.dtype, "attention: k and v must have one dtype");
  require(a.row_max != nullptr && a.row_sum != nullptr, "attention: the backward needs the row_max and row_sum that the forward saved");
  check_sequences(a.sequences, a.n_sequences, a.q.rows, numerics.reductions);
  for (std::int64_t s = 0; s < a.n_sequences; ++s)
    require(a.sequences[s].first_pos == 0, "attention: the backward takes whole sequences, from position 0");
  attention_detail::backward_cpu(ctx, a, numerics, sites, mode);
}

}  // namespace plumb
