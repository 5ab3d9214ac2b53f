#include "kernels/logprob/logprob.h"

#include <string>

#include "kernels/core/error.h"
#include "kernels/logprob/logprob_cpu.h"
#include "kernels/logprob/logprob_math.h"

namespace plumb {
namespace {

std::string shape(std::int64_t rows, std::int64_t cols) {
  std::string text("(");
  return text.append(std::to_string(rows)).append(", ").append(std::to_string(cols)).append(")");
}

void check_shape(ConstMat m, std::int64_t rows, std::int64_t cols, const char* name) {
  if (!(m.rows == rows && m.cols == cols))
    throw Error(std::string("logprob: ") + name + " must be " + shape(rows, cols) + ", not " + shape(m.rows, m.cols));
}

void check_head(ConstMat hidden, ConstMat weight, const PackedWeight& packed, float temperature) {
  if (!(weight.cols == hidden.cols))
    throw Error("logprob: weight " + shape(weight.rows, weight.cols) + " does not fit hidden " + shape(hidden.rows, hidden.cols));
  require(!packed || (packed.rows == weight.rows && packed.depth == weight.cols),
          "logprob: the packed weight has another shape than the weight");
  if (!(temperature > 0)) throw Error("logprob: temperature must be positive, not " + std::to_string(temperature));
}

void check_targets(const std::int32_t* targets, std::int64_t n, std::int64_t vocab) {
  require(targets != nullptr || n == 0, "logprob: targets are missing");
  for (std::int64_t i = 0; i < n; ++i)
    if (!(targets[i] < vocab))
      throw Error("logprob: target " + std::to_string(targets[i]) + " of row " + std::to_string(i) + " is outside the vocabulary of " +
                  std::to_string(vocab));
}

}  // namespace

void logprob_forward(Context& ctx, const LogprobForward& a, Sites sites) {
  check_head(a.hidden, a.weight, a.packed, a.temperature);
  check_targets(a.targets, a.hidden.rows, a.weight.rows);
  if (a.logits) {
    check_shape(a.logits, a.hidden.rows, a.weight.rows, "logits");
    require(a.logits.dtype == logprob_detail::logits_dtype(sites), "logprob: logits must be stored as the site lm_head.logits says");
  }
  logprob_detail::forward_cpu(ctx, a, sites);
}

void logprob_backward(Context& ctx, const LogprobBackward& a, Sites sites) {
  check_head(a.hidden, a.weight, a.packed, a.temperature);
  check_targets(a.targets, a.hidden.rows, a.weight.rows);
  require(a.d_logprob != nullptr || a.hidden.rows == 0, "logprob: d_logprob is missing");
  check_shape(a.d_hidden, a.hidden.rows, a.hidden.cols, "d_hidden");
  if (a.d_weight) {
    check_shape(a.d_weight, a.weight.rows, a.weight.cols, "d_weight");
    require(a.d_weight.dtype == DType::f32, "logprob: d_weight must be f32");
  }
  logprob_detail::backward_cpu(ctx, a, sites);
}

RowLogprob row_log_softmax(const void* logits, DType dtype, std::int64_t vocab, float temperature, Sites sites, float* z) {
  using namespace logprob_detail;
  FtzScope ftz;
  return with_row(logits, dtype, [&](auto* row) {
    return with_temperature(temperature, sites, [&](auto temp) {
      for_each_lanes(row, vocab, temp, [&](std::int64_t v, int n, F32x16 lanes) { store_part(z + v, lanes, n); });
      return row_statistics<false>(z, vocab, NoTemperature{}).logprob;
    });
  });
}

float scaled_logit(const void* logits, DType dtype, std::int64_t token, float temperature, Sites sites) {
  using namespace logprob_detail;
  FtzScope ftz;
  return with_row(logits, dtype, [&](auto* row) {
    return with_temperature(temperature, sites, [&](auto temp) { return temp.scale(to_float(row[token])); });
  });
}

}  // namespace plumb
