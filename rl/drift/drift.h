// `plumb drift`: what the mismatch between two numerics consists of, on given tokens (docs/drift.md).
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rl/drift/attribution.h"
#include "rl/drift/distribution.h"
#include "rl/drift/evaluator.h"
#include "rl/drift/forensics.h"
#include "rl/drift/mix.h"
#include "rl/drift/stages.h"

namespace plumb {

struct DriftOptions {
  std::string metric = "abs_logp_diff_mean";  // a name of rl/algorithm/mismatch.h without "mismatch/"
  std::vector<PlayersBy> attribute_by = {PlayersBy::regions, PlayersBy::sites, PlayersBy::layers};
  AttributionOptions attribution;
};

/// How much each player takes off the mismatch when it moves from A's value to B's. With recorded log-probs what B leaves is
/// `unexplained`; players and unexplained sum to the mismatch of A.
struct DriftAttribution {
  PlayersBy by = PlayersBy::regions;
  std::vector<Player> players;
  std::vector<Player> absent;
  Attribution shares;
  /// Of each player's part of the total: the 95 % interval over which sequences were looked at, by a jackknife that leaves out one of at
  /// most kJackknifeGroups runs of consecutive sequences (answers to one prompt stand together). Empty with fewer than 4 sequences.
  static constexpr int kJackknifeGroups = 16;
  struct PartInterval {
    double low = 0;
    double high = 0;
  };
  std::vector<PartInterval> part_intervals;
  /// shapley / total; 0 when there is no total.
  double part(std::size_t player) const;
};

struct DriftReport {
  std::string model;
  Numerics a;
  Numerics b;
  float temperature = 1;
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;
  bool recorded = false;  // the other side is a record; b is the numerics that explains it
  std::string metric;
  double mismatch = 0;        // the metric between A and the other side
  double unexplained = 0;     // the metric between B and the record; 0 without one
  Distribution distribution;  // other side - A
  std::vector<std::pair<std::string, double>> mismatch_metrics;
  std::vector<std::string> differences;  // sites and facts in which A and B differ, as a forward shows them
  StageComparison stages;
  std::vector<DriftAttribution> attributions;
  std::optional<Forensics> forensics;
  std::vector<float> logprob_a;      // of each token
  std::vector<float> logprob_other;  // of each token
};

/// What a record says of the evaluator's response tokens.
struct Record {
  std::vector<float> logprob;
  std::vector<float> tolerance;
};

/// progress(what, done, total) is called after each evaluation. Throws UsageError for an unknown metric.
DriftReport explain_drift(Evaluator&, const Numerics& a, const Numerics& b, const Record* record, const DriftOptions&,
                          const std::function<void(const char*, std::int64_t, std::int64_t)>& progress = {});

/// The metrics by which a mismatch can be measured.
std::vector<std::string> drift_metrics();

}  // namespace plumb
