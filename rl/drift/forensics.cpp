#include "rl/drift/forensics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/core/error.h"
#include "kernels/numerics/presets.h"
#include "rl/drift/changes.h"

namespace plumb {
namespace {

constexpr double kReproduced = 0.99;
constexpr double kNamed = 0.5;
constexpr std::int64_t kLong = 8;      // tokens of a sequence that counts when it is equal from end to end
constexpr std::int64_t kLongOnes = 3;  // so many of them name a preset,
constexpr double kLongShare = 0.1;     // with so large a share of all tokens in them
constexpr double kClearMargin = 10;    // nats: odds of 22,000 to 1; also what a change must gain to be believed, there are about 50
constexpr int kRounds = 3;             // changes of one candidate
constexpr int kStarts = 3;             // candidates that are changed
constexpr std::int64_t kRefineTokens = 128;
constexpr std::int64_t kFactTokens = 64;

struct Evidence {
  Evaluator& evaluator;
  std::span<const float> recorded;
  std::span<const float> tolerance;
};

/// Scores a candidate of which the name, the preset, the changes and the numerics are given.
Candidate judge(const Evidence& e, Candidate c) {
  const SideScores& scores = e.evaluator.of(c.numerics);
  c.tokens = e.evaluator.tokens();
  c.sequences = std::int64_t(e.evaluator.sequences().size());
  c.equal = c.equal_sequences = c.long_equal = c.tokens_in_long_equal = 0;
  c.mean_abs = c.max_abs = 0;
  double missed = 0, log_widths = 0;
  std::size_t i = 0;
  for (const TrainSequence& s : e.evaluator.sequences()) {
    const std::int64_t length = s.response_len(), before = c.equal;
    for (std::int64_t t = 0; t < length; ++t, ++i) {
      const double d = std::abs(double(e.recorded[i]) - scores.logprob[i]);
      c.mean_abs += d / double(c.tokens);
      c.max_abs = std::max(c.max_abs, d);
      if (d <= e.tolerance[i]) {
        ++c.equal;
        log_widths += std::log(2.0 * e.tolerance[i]);
      } else {
        missed += d;
      }
    }
    if (c.equal - before < length) continue;
    ++c.equal_sequences;
    if (length < kLong) continue;
    ++c.long_equal;
    c.tokens_in_long_equal += length;
  }
  const double n = double(c.tokens), hits = double(c.equal), misses = n - hits;
  const double share = (hits + 0.5) / (n + 1);
  const double scale = misses > 0 ? missed / misses : 1;
  c.log_likelihood = hits * std::log(share) - log_widths + misses * (std::log(1 - share) - std::log(2 * scale) - 1);
  return c;
}

/// The first sequences, cut to so many response tokens.
std::vector<TrainSequence> first_of(const std::vector<TrainSequence>& all, std::int64_t tokens) {
  std::vector<TrainSequence> out;
  for (const TrainSequence& s : all) {
    const std::int64_t take = std::min(tokens, s.response_len());
    if (take < 1) break;
    out.push_back({.tokens = s.tokens.first(std::size_t(s.prompt_len + take)), .prompt_len = s.prompt_len});
    tokens -= take;
  }
  return out;
}

/// Whether so much is equal that the preset is the right one but for a tie now and then.
bool fits(const Candidate& c) {
  const bool long_runs = c.long_equal >= kLongOnes && double(c.tokens_in_long_equal) >= kLongShare * double(c.tokens);
  return c.equal_share() > kNamed || long_runs;
}

bool better(const Candidate& a, const Candidate& b) { return a.log_likelihood > b.log_likelihood; }

/// The candidate with the changes that explain clearly more, one after another.
Candidate refined(const Evidence& e, Candidate best, const std::function<void()>& counted) {
  for (int round = 0; round < kRounds && best.equal < best.tokens; ++round) {
    Candidate next = best;
    for (const FactChange& change : single_changes(best.numerics, e.evaluator.model().config())) {
      Candidate c{.name = best.name + (best.changes.empty() ? " with " : ", ") + change.name(),
                  .preset = best.preset,
                  .changes = best.changes,
                  .numerics = change.numerics};
      c.changes.push_back(change.name());
      c = judge(e, std::move(c));
      counted();
      if (better(c, next)) next = std::move(c);
    }
    if (next.log_likelihood < best.log_likelihood + kClearMargin) break;
    best = std::move(next);
  }
  return best;
}

/// Candidates of equal bits become one.
std::vector<Candidate> distinct(Evaluator& evaluator, std::vector<Candidate> all) {
  std::vector<Candidate> out;
  for (Candidate& c : all) {
    const std::uint64_t bits = evaluator.of(c.numerics).bits;
    const auto same = std::find_if(out.begin(), out.end(), [&](const Candidate& o) { return evaluator.of(o.numerics).bits == bits; });
    if (same == out.end()) {
      out.push_back(std::move(c));
    } else {
      if (c.changes.empty()) same->same_bits.push_back(c.name);
    }
  }
  return out;
}

/// Share of tokens that an error of the candidate's size would put within the tolerance by chance.
double chance_of(const Candidate& c, std::span<const float> tolerance) {
  const double scale = std::max(c.mean_abs / std::max(1e-9, 1 - c.equal_share()), 1e-12);
  double share = 0;
  for (float t : tolerance) share += (1 - std::exp(-double(t) / scale)) / double(tolerance.size());
  return share;
}

/// The best candidate of another preset than the winner's.
const Candidate* next_of(const Forensics& f) {
  for (const Candidate& c : f.ranking) {
    if (c.preset != f.ranking.front().preset) return &c;
  }
  return nullptr;
}

/// The winner's preset without changes.
const Candidate* as_it_is(const Forensics& f) {
  for (const Candidate& c : f.ranking) {
    if (c.preset == f.ranking.front().preset && c.changes.empty()) return &c;
  }
  return nullptr;
}

/// What the record says of each fact of a candidate, on the first tokens: of its other values the one that fits best.
std::vector<FactEvidence> evidence_of(const Evidence& all, const Candidate& best, const std::function<bool()>& stop,
                                      const std::function<void()>& counted) {
  Evaluator few(all.evaluator.model(), first_of(all.evaluator.sequences(), kFactTokens), all.evaluator.temperature(), stop);
  const Evidence evidence{few, all.recorded, all.tolerance};
  const Candidate as_is = judge(evidence, best);
  const std::uint64_t bits = few.of(best.numerics).bits;
  std::vector<FactEvidence> out;
  for (const FactChange& change : single_changes(best.numerics, few.model().config())) {
    if (change.to.empty()) continue;  // several facts at once
    Candidate c{.numerics = change.numerics};
    c = judge(evidence, std::move(c));
    counted();
    const FactEvidence e{.fact = change.fact,
                         .value = change.from,
                         .instead = change.to,
                         .same_bits = few.of(change.numerics).bits == bits,
                         .tokens = as_is.tokens,
                         .equal = as_is.equal,
                         .equal_instead = c.equal,
                         .nats = as_is.log_likelihood - c.log_likelihood};
    if (out.empty() || out.back().fact != e.fact) {
      out.push_back(e);
    } else if (e.nats < out.back().nats) {
      out.back() = e;
    }
  }
  return out;
}

std::string count_of(const Candidate& c) { return fmt::format("{} of {}", c.equal, c.tokens); }

std::string sentence_of(const Forensics& f) {
  const Candidate& best = f.ranking.front();
  const Candidate* const rival = next_of(f);
  const Candidate* const plain = as_it_is(f);
  std::string name = best.name;
  for (std::size_t i = 0; i < best.same_bits.size(); ++i) name += (i == 0 ? " (equal bits on this model: " : ", ") + best.same_bits[i];
  if (!best.same_bits.empty()) name += ")";
  const std::string next = rival != nullptr ? fmt::format("; next is {} with {}", rival->name, count_of(*rival)) : "";
  constexpr const char* kEqual = "log-probs equal to the recorded precision";
  if (f.verdict == Verdict::none && fits(best) && rival != nullptr)
    return fmt::format("none of these for sure: {} has {} {}, but {} is as likely", name, count_of(best), kEqual, rival->name);
  if (f.verdict == Verdict::none)
    return fmt::format("none of these: the closest, {}, has {} {}, mean |dlogp| {:.4g}{}", name, count_of(best), kEqual, best.mean_abs,
                       next);
  const std::string ends =
      best.equal_share() < kReproduced ? fmt::format(", {} of {} sequences from end to end", best.equal_sequences, best.sequences) : "";
  if (best.changes.empty()) return fmt::format("{}: {} {}{}{}", name, count_of(best), kEqual, ends, next);
  if (plain != nullptr && f.named == plain->name)
    return fmt::format("{}: {} {}, {} as {}{}", f.named, count_of(*plain), kEqual, count_of(best), name, next);
  return fmt::format("no preset as it is, but {}: {} {}{}", name, count_of(best), kEqual, next);
}

/// One record against all presets, step by step.
class Investigation {
 public:
  using Progress = std::function<void(std::int64_t, std::int64_t)>;
  Investigation(Evaluator& all, std::span<const float> recorded, std::span<const float> tolerance, const ForensicsOptions& options,
                const Progress& progress)
      : all_(all),
        few_(all.model(), first_of(all.sequences(), std::min(options.first_tokens, all.tokens())), all.temperature(), stop()),
        whole_(all.tokens() <= options.first_tokens),
        first_{whole_ ? all : few_, recorded, tolerance},
        full_{all, recorded, tolerance},
        options_(options),
        progress_(progress) {}

  Forensics run() {
    rank_presets();
    if (options_.refine && candidates_.front().equal_share() < kReproduced) change_leaders();
    if (!whole_) judge_leaders_on_all();
    out_.ranking = std::move(candidates_);
    decide();
    if (out_.verdict != Verdict::none && options_.facts) out_.facts = evidence_of(full_, out_.ranking.front(), stop(), counted());
    out_.sentence = sentence_of(out_);
    return std::move(out_);
  }

 private:
  void rank_presets() {
    for (const Preset& p : presets()) {
      const std::string why = unsupported(p.numerics);
      if (!why.empty()) out_.not_tried.push_back(fmt::format("{}: {}", p.name, why));
    }
    const std::vector<std::string_view> usable = usable_presets();
    expected_ = std::int64_t(usable.size());
    for (std::string_view name : usable) {
      candidates_.push_back(judge(first_, {.name = std::string(name), .preset = std::string(name), .numerics = preset(name)}));
      count();
    }
    sort_distinct();
  }
  /// Of a leader that fits already only itself is changed, else of several.
  void change_leaders() {
    Evaluator small(all_.model(), first_of(all_.sequences(), std::min(kRefineTokens, all_.tokens())), all_.temperature(), stop());
    const Evidence evidence{small, full_.recorded, full_.tolerance};
    std::vector<Candidate> changed;
    const std::size_t starts = fits(candidates_.front()) ? 1 : std::min<std::size_t>(kStarts, candidates_.size());
    for (std::size_t i = 0; i < starts; ++i) {
      const Candidate start = judge(evidence, candidates_[i]);
      expected_ = done_ + std::int64_t(single_changes(start.numerics, all_.model().config()).size());
      Candidate c = refined(evidence, start, counted());
      if (c.name != start.name) changed.push_back(judge(first_, std::move(c)));
    }
    candidates_.insert(candidates_.end(), changed.begin(), changed.end());
    sort_distinct();
  }
  void judge_leaders_on_all() {
    const std::size_t leaders = std::min<std::size_t>(3, candidates_.size());
    for (std::size_t i = 0; i < leaders; ++i) {
      candidates_[i] = judge(full_, std::move(candidates_[i]));
      count();
    }
    std::sort(candidates_.begin(), candidates_.begin() + std::ptrdiff_t(leaders), better);
  }
  void decide() {
    const Candidate& best = out_.ranking.front();
    const Candidate* const rival = next_of(out_);
    if (rival != nullptr) out_.margin = best.log_likelihood * double(rival->tokens) / double(best.tokens) - rival->log_likelihood;
    out_.chance_share = chance_of(best, full_.tolerance.first(std::size_t(best.tokens)));
    if (!fits(best) || (rival != nullptr && out_.margin <= kClearMargin)) return;
    out_.verdict = best.equal_share() >= kReproduced ? Verdict::reproduced : Verdict::named;
    const Candidate* const plain = as_it_is(out_);
    out_.named = plain != nullptr && fits(*plain) ? plain->name : best.name;
  }

  void sort_distinct() {
    candidates_ = distinct(first_.evaluator, std::move(candidates_));
    std::sort(candidates_.begin(), candidates_.end(), better);
  }
  void count() {
    expected_ = std::max(expected_, ++done_);
    if (progress_) progress_(done_, expected_);
  }
  std::function<void()> counted() {
    return [this] { count(); };
  }
  /// For evaluators of parts, which are to stop when the whole is asked to.
  std::function<bool()> stop() {
    return [this] {
      all_.stop_if_asked();
      return true;
    };
  }

  Evaluator& all_;
  Evaluator few_;  // the first tokens
  bool whole_;     // which are all
  Evidence first_;
  Evidence full_;
  const ForensicsOptions& options_;
  const Progress& progress_;
  std::vector<Candidate> candidates_;
  std::int64_t done_ = 0;
  std::int64_t expected_ = 0;
  Forensics out_;
};

}  // namespace

std::vector<float> recording_tolerance(std::span<const float> recorded, double quantum, std::int64_t vocab_size) {
  std::vector<float> out;
  const double spread = 2 * std::log(double(vocab_size));
  for (float r : recorded) out.push_back(float(0.501 * quantum + std::ldexp(std::abs(double(r)) + spread, -22)));
  return out;
}

Forensics explain_recorded(Evaluator& all, std::span<const float> recorded, std::span<const float> tolerance,
                           const ForensicsOptions& options, const std::function<void(std::int64_t, std::int64_t)>& progress) {
  return Investigation(all, recorded, tolerance, options, progress).run();
}

}  // namespace plumb
