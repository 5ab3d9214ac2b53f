#include "rl/drift/drift.h"

#include <fmt/format.h>

#include <cmath>
#include <unordered_map>

#include "kernels/core/error.h"
#include "kernels/core/nearest.h"
#include "rl/algorithm/mismatch.h"

namespace plumb {
namespace {

constexpr std::string_view kPrefix = "mismatch/";

/// Consecutive sequences [first, last).
struct SequenceRun {
  std::size_t first = 0;
  std::size_t last = 0;
};

/// All metrics of A's log-probs (the trainer's place) against the other side's, without a run of sequences.
std::vector<std::pair<std::string, double>> metrics_of(const Evaluator& evaluator, SequenceRun without, std::span<const float> a,
                                                       std::span<const float> other, std::span<const std::int32_t> argmax_a = {},
                                                       std::span<const std::int32_t> argmax_other = {}) {
  Mismatch mismatch;
  std::size_t at = 0;
  for (std::size_t i = 0; i < evaluator.sequences().size(); ++i) {
    const auto n = std::size_t(evaluator.sequences()[i].response_len());
    const auto part = [&](auto span) { return span.empty() ? span : span.subspan(at, n); };
    if (i < without.first || i >= without.last) {
      mismatch.add({.trainer = a.subspan(at, n),
                    .rollout = other.subspan(at, n),
                    .trainer_argmax = part(argmax_a),
                    .rollout_argmax = part(argmax_other)});
    }
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
class MismatchGame {
 public:
  MismatchGame(Evaluator& evaluator, const NumericsMix& mix, std::span<const float> other, const DriftOptions& options,
               const std::function<void()>& counted)
      : evaluator_(evaluator), mix_(mix), other_(other), options_(options), counted_(counted) {}

  Attribution play(SequenceRun without = {}) {
    const double start = mismatch_of(scores_of(0), without);
    const auto worth = [&](std::uint64_t moved) {
      const SideScores& e = scores_of(moved);
      return Worth{.value = start - mismatch_of(e, without), .bits = e.bits};
    };
    return attribute(int(mix_.players().size()), worth, options_.attribution);
  }

 private:
  /// The evaluator keeps what it computed, at a fixed place.
  const SideScores& scores_of(std::uint64_t moved) {
    const SideScores*& known = known_[moved];
    if (known == nullptr) {
      known = &evaluator_.of(mix_.mix(moved));
      counted_();
    }
    return *known;
  }
  double mismatch_of(const SideScores& e, SequenceRun without) const {
    return value_of(metrics_of(evaluator_, without, e.logprob, other_), options_.metric);
  }

  Evaluator& evaluator_;
  const NumericsMix& mix_;
  std::span<const float> other_;
  const DriftOptions& options_;
  const std::function<void()>& counted_;
  std::unordered_map<std::uint64_t, const SideScores*> known_;
};

/// The jackknife of each player's part of the total.
std::vector<DriftAttribution::PartInterval> part_intervals(MismatchGame& game, const DriftAttribution& whole, std::size_t sequences) {
  const std::size_t groups = std::min<std::size_t>(sequences, DriftAttribution::kJackknifeGroups);
  if (groups < 4 || whole.players.empty() || whole.shares.total == 0) return {};
  std::vector<DriftAttribution> rest(groups, {.shares = {}});
  for (std::size_t g = 0; g < groups; ++g) {
    rest[g].shares = game.play({.first = g * sequences / groups, .last = (g + 1) * sequences / groups});
  }
  const double n = double(groups), t = t_quantile(int(groups) - 1);
  std::vector<DriftAttribution::PartInterval> out;
  for (std::size_t p = 0; p < whole.players.size(); ++p) {
    double mean = 0, squares = 0;
    for (const DriftAttribution& r : rest) mean += r.part(p) / n;
    for (const DriftAttribution& r : rest) squares += (r.part(p) - mean) * (r.part(p) - mean);
    const double half = t * std::sqrt(squares * (n - 1) / n);
    out.push_back({whole.part(p) - half, whole.part(p) + half});
  }
  return out;
}

DriftAttribution attribute_mismatch(Evaluator& evaluator, const NumericsMix& mix, PlayersBy by, std::span<const float> other,
                                    const DriftOptions& options, const std::function<void()>& counted) {
  MismatchGame game(evaluator, mix, other, options, counted);
  DriftAttribution out{.by = by, .players = mix.players(), .absent = mix.absent(), .shares = game.play(), .part_intervals = {}};
  out.part_intervals = part_intervals(game, out, evaluator.sequences().size());
  return out;
}

}  // namespace

double DriftAttribution::part(std::size_t player) const { return shares.total != 0 ? shares.players[player].shapley / shares.total : 0; }

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
      metrics_of(evaluator, {}, scores_a.logprob, other, known_argmax ? std::span(scores_a.argmax) : std::span<const std::int32_t>{},
                 known_argmax ? std::span(scores_b.argmax) : std::span<const std::int32_t>{});
  out.mismatch = value_of(out.mismatch_metrics, options.metric);
  if (record != nullptr) out.unexplained = value_of(metrics_of(evaluator, {}, scores_b.logprob, other), options.metric);
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
