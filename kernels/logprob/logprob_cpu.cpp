// Chunks of rows: the logits of a chunk are computed, used and forgotten. Chunks have an even number of rows, so that the
// chain of d_weight over the rows splits between pairs.
// Scratch: op0 of thread 0, the logits of a chunk, and in the backward their gradient in the same memory.
#include "kernels/logprob/logprob_cpu.h"

#include <algorithm>

#include "kernels/logprob/logprob_math.h"

namespace plumb::logprob_detail {
namespace {

constexpr std::int64_t kChunkBytes = 4 << 20;
// A chunk streams the whole head (and the backward its gradient): fewer rows than this and memory decides the speed.
constexpr std::int64_t kMinForwardRows = 64;
constexpr std::int64_t kMinBackwardRows = 128;

std::int64_t padded(std::int64_t vocab) { return (vocab + 15) / 16 * 16; }

std::int64_t chunk_rows(std::int64_t asked, std::int64_t n, std::int64_t vocab, DType dtype, std::int64_t least) {
  const std::int64_t fits = kChunkBytes / (padded(vocab) * std::int64_t(bytes_of(dtype)));
  const std::int64_t rows = asked > 0 ? asked : std::max(fits, least);
  return std::max<std::int64_t>(2, std::min((rows + 1) / 2 * 2, (n + 1) / 2 * 2));
}

Mat chunk_memory(Context& ctx, std::int64_t rows, std::int64_t vocab, DType dtype) {
  const std::int64_t stride = padded(vocab);
  void* data = ctx.scratch(0, ScratchSlot::op0).get(std::size_t(rows * stride) * bytes_of(dtype));
  return {data, rows, vocab, stride, dtype};
}

template <class Args>
void head(Context& ctx, const Args& a, ConstMat hidden, Mat logits) {
  matmul(ctx, {.a = {.mat = hidden}, .b = {.mat = a.weight}, .packed = a.packed, .c = logits}, a.matmul_order);
}

/// The outputs of one row.
void row_forward(const LogprobForward& a, Sites sites, ConstMat logits, std::int64_t row, std::int64_t out) {
  const std::int32_t target = a.targets[out];
  if (target < 0) {
    a.logprob[out] = 0;
    if (a.entropy != nullptr) a.entropy[out] = 0;
    if (a.argmax != nullptr) a.argmax[out] = 0;
    return;
  }
  with_row(logits.row_bytes(row), logits.dtype, [&](auto* l) {
    with_temperature(a.temperature, sites, [&](auto temp) {
      const RowStatistics s = row_statistics(l, logits.cols, temp, a.entropy != nullptr);
      a.logprob[out] = logprob_of(s.logprob, temp.scale(to_float(l[target])));
      if (a.entropy != nullptr) a.entropy[out] = s.entropy;
      if (a.argmax != nullptr) a.argmax[out] = first_equal(l, logits.cols, temp, s.logprob.max);
    });
  });
}

/// Rounds a row of FP32 memory.
void round_row(float* row, std::int64_t n, DType to) {
  for (std::int64_t i = 0; i < n; i += 16) {
    const int part = int(std::min<std::int64_t>(16, n - i));
    store_part(row + i, round_to(to, load_part(row + i, part)), part);
  }
}

/// Turns a row of logits into a row of their gradient, in the same memory.
template <class Out>
void row_backward(const LogprobBackward& a, Sites sites, Mat logits, std::int64_t row, std::int64_t in) {
  Out* out = reinterpret_cast<Out*>(logits.row_bytes(row));
  const RowUpstream up{.target = a.targets[in], .logprob = a.d_logprob[in], .entropy = a.d_entropy != nullptr ? a.d_entropy[in] : 0.0f};
  if (up.target < 0 || (up.logprob == 0 && up.entropy == 0)) {
    std::fill_n(out, logits.cols, Out{});
    return;
  }
  with_row(logits.row_bytes(row), logits.dtype, [&](auto* l) {
    with_temperature(a.temperature, sites, [&](auto temp) {
      row_gradient(l, logits.cols, temp, row_statistics(l, logits.cols, temp, up.entropy != 0), up, out);
    });
  });
}

/// The gradient of a chunk of logits as a matrix: of the hidden states' type whatever the logits' site, so that the two
/// products are BF16 x BF16 in a BF16 model (with lm_head.logits `f` this is the fused backward's one rounding).
Mat gradient_of(Mat logits, DType hidden) {
  if (logits.dtype == DType::bf16 || hidden == DType::f32) return logits;
  if (is_emulated(hidden)) return {logits.data, logits.rows, logits.cols, logits.stride, hidden};
  return {logits.data, logits.rows, logits.cols, 2 * logits.stride, DType::bf16};
}

}  // namespace

void forward_cpu(Context& ctx, const LogprobForward& a, Sites sites) {
  const std::int64_t n = a.hidden.rows;
  const std::int64_t vocab = a.weight.rows;
  const DType dtype = logits_dtype(sites);
  const std::int64_t chunk = chunk_rows(a.row_chunk, n, vocab, dtype, kMinForwardRows);
  const Mat memory = a.logits ? a.logits : chunk_memory(ctx, chunk, vocab, dtype);
  for (std::int64_t first = 0; first < n; first += chunk) {
    const std::int64_t rows = std::min(chunk, n - first);
    const Mat logits = memory.slice_rows(a.logits ? first : 0, rows);
    head(ctx, a, a.hidden.slice_rows(first, rows), logits);
    ctx.parallel_for(rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t r = begin; r < end; ++r) row_forward(a, sites, logits, r, first + r);
    });
  }
}

void backward_cpu(Context& ctx, const LogprobBackward& a, Sites sites) {
  const std::int64_t n = a.hidden.rows;
  const std::int64_t vocab = a.weight.rows;
  const DType dtype = logits_dtype(sites);
  const std::int64_t chunk = chunk_rows(a.row_chunk, n, vocab, dtype, kMinBackwardRows);
  const Mat memory = chunk_memory(ctx, chunk, vocab, dtype);
  for (std::int64_t first = 0; first < n; first += chunk) {
    const std::int64_t rows = std::min(chunk, n - first);
    const Mat logits = memory.slice_rows(0, rows);
    const ConstMat hidden = a.hidden.slice_rows(first, rows);
    head(ctx, a, hidden, logits);
    const Mat gradient = gradient_of(logits, a.hidden.dtype);
    ctx.parallel_for(rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t r = begin; r < end; ++r) {
        if (gradient.dtype == DType::bf16) {
          row_backward<BF16>(a, sites, logits, r, first + r);
        } else {
          row_backward<float>(a, sites, logits, r, first + r);
          if (is_emulated(gradient.dtype)) round_row(gradient.row<float>(r), gradient.cols, gradient.dtype);
        }
      }
    });
    matmul(ctx, {.a = {.mat = gradient}, .b = {.mat = a.weight, .transposed = true}, .c = a.d_hidden.slice_rows(first, rows)},
           a.matmul_order);
    if (!a.d_weight) continue;
    matmul(ctx, {.a = {.mat = gradient, .transposed = true}, .b = {.mat = hidden, .transposed = true}, .c = a.d_weight, .accumulate = true},
           weight_gradient_order(a.matmul_order));
  }
}

}  // namespace plumb::logprob_detail
