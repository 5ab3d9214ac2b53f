#include "rl/drift/drift.h"

#include <fmt/format.h>

#include "kernels/core/error.h"
#include "kernels/core/nearest.h"
#include "rl/algorithm/mismatch.h"

namespace plumb {
namespace {

constexpr std::string_view kPrefix = "mismatch/";

/// All metrics of A's log-probs (the trainer's place) against the other side's.
std::vector<std::pair<std::string, double>> metrics_of(const Evaluator& evaluator, std::span<const float> a, std::span<const float> other,
                                                       std::span<const std::int32_t> argmax_a = {},
                                                       std::span<const std::int32_t> argmax_other = {}) {
  Mismatch mismatch;
  std::size_t at = 0;
  for (const TrainSequence& s : evaluator.sequences()) {
    const auto n = std::size_t(s.response_len());
    const auto part = [&](auto span) { return span.empty() ? span : span.subspan(at, n); };
    mismatch.add({.trainer = a.subspan(at, n),
                  .rollout = other.subspan(at, n),
                  .trainer_argmax = part(argmax_a),
                  .rollout_argmax = part(argmax_other)});
    at += n;
  }
  return mismatch.metrics();
}

double value_of(const std::vector<std::pair<std::string, double>>& metrics, const std::string& name) {
  for (const auto& [key, value] : metrics) {
    if (key == std::string(kPrefix) + name) return value;
  }
  const std::vector<std::string> known = drift_metrics();
  throw UsageError(fmt::format("drift: unknown metric '{}'{}", name, suggestion(name, {known.begin(), known.end()})));
}

std::vector<bool> within(std::span<const float> a, std::span<const float> b, std::span<const float> tolerance) {
  std::vector<bool> out;
  for (std::size_t i = 0; i < a.size(); ++i) out.push_back(std::abs(double(a[i]) - b[i]) <= tolerance[i]);
  return out;
}

/// The game: what moving players from A to B takes off the mismatch with the other side.
DriftAttribution attribute_mismatch(Evaluator& evaluator, const NumericsMix& mix, PlayersBy by, std::span<const float> other,
                                    const DriftOptions& options, const std::function<void()>& counted) {
  const auto mismatch_of = [&](const SideScores& e) { return value_of(metrics_of(evaluator, e.logprob, other), options.metric); };
  const double start = mismatch_of(evaluator.of(mix.mix(0)));
  DriftAttribution out{.by = by, .players = mix.players(), .absent = mix.absent()};
  out.shares = attribute(
      int(mix.players().size()),
      [&](std::uint64_t moved) {
        const SideScores& e = evaluator.of(mix.mix(moved));
        counted();
        return Worth{.value = start - mismatch_of(e), .bits = e.bits};
      },
      options.attribution);
  return out;
}

}  // namespace

std::vector<std::string> drift_metrics() {
  const float zero = 0;
  const std::int32_t token = 0;
  Mismatch m;
  m.add({.trainer = {&zero, 1}, .rollout = {&zero, 1}, .trainer_argmax = {&token, 1}, .rollout_argmax = {&token, 1}});
  std::vector<std::string> names;
  for (const auto& [key, value] : m.metrics()) {
    if (key != "mismatch/argmax_flip_frac") names.push_back(key.substr(kPrefix.size()));
  }
  return names;
}

DriftReport explain_drift(Evaluator& evaluator, const Numerics& a, const Numerics& b, const Record* record, const DriftOptions& options,
                          const std::function<void(const char*, std::int64_t, std::int64_t)>& progress) {
  const ModelConfig& config = evaluator.model().config();
  const SideScores& scores_a = evaluator.of(a);
  const SideScores& scores_b = evaluator.of(b);
  const std::vector<float>& other = record != nullptr ? record->logprob : scores_b.logprob;
  require(other.size() == scores_a.logprob.size(), "internal: a record of another number of tokens");

  DriftReport out{.a = a, .b = b, .temperature = evaluator.temperature()};
  out.sequences = std::int64_t(evaluator.sequences().size());
  out.tokens = evaluator.tokens();
  out.recorded = record != nullptr;
  out.metric = options.metric;
  out.logprob_a = scores_a.logprob;
  out.logprob_other = other;
  const bool known_argmax = record == nullptr;
  out.mismatch_metrics =
      metrics_of(evaluator, scores_a.logprob, other, known_argmax ? std::span(scores_a.argmax) : std::span<const std::int32_t>{},
                 known_argmax ? std::span(scores_b.argmax) : std::span<const std::int32_t>{});
  out.mismatch = value_of(out.mismatch_metrics, options.metric);
  if (record != nullptr) out.unexplained = value_of(metrics_of(evaluator, scores_b.logprob, other), options.metric);
  out.distribution = describe_difference(
      scores_a.logprob, other, record != nullptr ? within(scores_a.logprob, other, record->tolerance) : bit_equal(scores_a.logprob, other));
  out.differences = forward_differences(a, b, config);
  out.stages = compare_stages(evaluator, a, b);

  for (PlayersBy by : options.attribute_by) {
    const NumericsMix mix(a, b, config, by, evaluator.temperature());
    const std::int64_t needed = coalitions_needed(int(mix.players().size()), options.attribution);
    std::int64_t done = 0;
    out.attributions.push_back(attribute_mismatch(evaluator, mix, by, other, options, [&] {
      ++done;
      if (progress) progress(enum_name(by), done, std::max(done, needed));
    }));
  }
  return out;
}

}  // namespace plumb
