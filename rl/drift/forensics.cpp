#include "rl/drift/forensics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/core/error.h"
#include "kernels/numerics/fields.h"
#include "kernels/numerics/presets.h"
#include "rl/drift/mix.h"

namespace plumb {
namespace {

constexpr double kReproduced = 0.99;
constexpr double kNamed = 0.5;
constexpr double kClearMargin = 10;  // nats: odds of 22,000 to 1; also what a change must gain to be believed, there are about 50
constexpr int kRounds = 3;           // changes of one candidate
constexpr int kStarts = 3;           // candidates that are changed
constexpr std::int64_t kRefineTokens = 128;

struct Evidence {
  Evaluator& evaluator;
  std::span<const float> recorded;
  std::span<const float> tolerance;
};

/// Scores a candidate of which the name, the preset, the changes and the numerics are given.
Candidate judge(const Evidence& e, Candidate c) {
  const SideScores& scores = e.evaluator.of(c.numerics);
  c.tokens = e.evaluator.tokens();
  c.equal = 0;
  c.mean_abs = c.max_abs = 0;
  double missed = 0, log_widths = 0;
  for (std::size_t i = 0; i < std::size_t(c.tokens); ++i) {
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

bool better(const Candidate& a, const Candidate& b) { return a.log_likelihood > b.log_likelihood; }

/// One change of a numerics, with its name.
struct Change {
  std::string name;
  Numerics numerics;
};

template <class E>
void add_values(std::vector<Change>& out, const Numerics& from, const char* name, E Reductions::*member) {
  for (const auto& [value, text] : enum_names(E{})) {
    if (from.reductions.*member == value) continue;
    Numerics n = from;
    n.reductions.*member = value;
    out.push_back({fmt::format("reductions.{} {}", name, text), n});
  }
}

std::vector<Change> single_changes(const Numerics& from, const ModelConfig& config) {
  std::vector<Change> out;
  for (int s = 0; s < kSites; ++s) {
    const Site site = Site(s);
    const bool absent = !config.qk_norm && (site == Site::qk_norm_xhat || site == Site::qk_norm_out);
    if (absent || site == Site::logits_temperature || region_of(site) == Region::storage) continue;
    for (const bool rounded : {false, true}) {
      Numerics n = from;
      n.base.set(site, rounded);
      const auto removed = std::erase_if(n.overrides, [&](const SiteOverride& o) { return o.site == site; });
      if (removed == 0 && from.base.rounded(site) == rounded) continue;
      out.push_back({fmt::format("{} {}", name_of(site), rounded ? "b" : "f"), n});
    }
  }
  for_each_reduction([&](const char* name, auto member) {
    if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(from.reductions.*member)>>) add_values(out, from, name, member);
  });
  for (const Preset& p : presets()) {
    if (p.numerics.compute != from.compute || p.numerics.reductions == from.reductions) continue;
    Numerics n = from;
    n.reductions = p.numerics.reductions;
    out.push_back({fmt::format("the reductions of {}", p.name), n});
  }
  std::erase_if(out, [](const Change& c) { return !unsupported(c.numerics).empty(); });
  return out;
}

/// The candidate with the changes that explain clearly more, one after another.
Candidate refined(const Evidence& e, Candidate best, const std::function<void()>& counted) {
  for (int round = 0; round < kRounds && best.equal < best.tokens; ++round) {
    Candidate next = best;
    for (const Change& change : single_changes(best.numerics, e.evaluator.model().config())) {
      Candidate c{.name = best.name + (best.changes.empty() ? " with " : ", ") + change.name,
                  .preset = best.preset,
                  .changes = best.changes,
                  .numerics = change.numerics};
      c.changes.push_back(change.name);
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
  if (f.verdict == Verdict::none && best.equal_share() > kNamed && rival != nullptr)
    return fmt::format("none of these for sure: {} has {} {}, but {} is as likely", name, count_of(best), kEqual, rival->name);
  if (f.verdict == Verdict::none)
    return fmt::format("none of these: the closest, {}, has {} {}, mean |dlogp| {:.4g}{}", name, count_of(best), kEqual, best.mean_abs,
                       next);
  if (best.changes.empty()) return fmt::format("{}: {} {}{}", name, count_of(best), kEqual, next);
  if (plain != nullptr && f.named == plain->name)
    return fmt::format("{}: {} {}, {} as {}{}", f.named, count_of(*plain), kEqual, count_of(best), name, next);
  return fmt::format("no preset as it is, but {}: {} {}{}", name, count_of(best), kEqual, next);
}

}  // namespace

std::vector<float> recording_tolerance(std::span<const float> recorded, double quantum, std::int64_t vocab_size) {
  std::vector<float> out;
  const double spread = 2 * std::log(double(vocab_size));
  for (float r : recorded) out.push_back(float(0.501 * quantum + std::ldexp(std::abs(double(r)) + spread, -22)));
  return out;
}

Forensics explain_recorded(Evaluator& all, std::span<const float> recorded, std::span<const float> tolerance,
                           const ForensicsOptions& options, const std::function<void(std::int64_t, std::int64_t)>& progress) {
  Forensics out;
  std::vector<const Preset*> usable;
  for (const Preset& p : presets()) {
    const std::string why = unsupported(p.numerics);
    if (why.empty()) {
      usable.push_back(&p);
    } else {
      out.not_tried.push_back(fmt::format("{}: {}", p.name, why));
    }
  }
  std::int64_t done = 0;
  std::int64_t expected = std::int64_t(usable.size());
  const auto counted = [&] {
    expected = std::max(expected, ++done);
    if (progress) progress(done, expected);
  };
  const auto stop = [&] {
    all.stop_if_asked();
    return true;
  };

  const bool whole = all.tokens() <= options.first_tokens;
  Evaluator part(all.model(), whole ? std::vector<TrainSequence>(all.sequences()) : first_of(all.sequences(), options.first_tokens),
                 all.temperature(), stop);
  Evaluator& first = whole ? all : part;
  const Evidence quick{first, recorded, tolerance};
  std::vector<Candidate> candidates;
  for (const Preset* p : usable) {
    candidates.push_back(judge(quick, {.name = std::string(p->name), .preset = std::string(p->name), .numerics = p->numerics}));
    counted();
  }
  candidates = distinct(first, std::move(candidates));
  std::sort(candidates.begin(), candidates.end(), better);

  if (options.refine && candidates.front().equal_share() < kReproduced) {
    Evaluator small(all.model(), first_of(all.sequences(), std::min(kRefineTokens, all.tokens())), all.temperature(), stop);
    const Evidence evidence{small, recorded, tolerance};
    std::vector<Candidate> changed;
    const std::size_t starts = candidates.front().equal_share() > kNamed ? 1 : std::min<std::size_t>(kStarts, candidates.size());
    for (std::size_t i = 0; i < starts; ++i) {
      const Candidate start = judge(evidence, candidates[i]);
      expected = done + std::int64_t(single_changes(start.numerics, all.model().config()).size());
      Candidate c = refined(evidence, start, counted);
      if (c.name != start.name) changed.push_back(judge(quick, std::move(c)));
    }
    candidates.insert(candidates.end(), changed.begin(), changed.end());
    candidates = distinct(first, std::move(candidates));
    std::sort(candidates.begin(), candidates.end(), better);
  }

  std::size_t leaders = std::min<std::size_t>(3, candidates.size());
  const Evidence full{all, recorded, tolerance};
  for (std::size_t i = 0; i < leaders && !whole; ++i) {
    candidates[i] = judge(full, std::move(candidates[i]));
    counted();
  }
  std::sort(candidates.begin(), candidates.begin() + std::ptrdiff_t(leaders), better);
  out.ranking = std::move(candidates);
  const Candidate& best = out.ranking.front();
  const Candidate* const rival = next_of(out);
  if (rival != nullptr) out.margin = best.log_likelihood * double(rival->tokens) / double(best.tokens) - rival->log_likelihood;
  out.chance_share = chance_of(best, tolerance.first(std::size_t(best.tokens)));
  if (best.equal_share() > kNamed && (rival == nullptr || out.margin > kClearMargin)) {
    out.verdict = best.equal_share() >= kReproduced ? Verdict::reproduced : Verdict::named;
    const Candidate* const plain = as_it_is(out);
    out.named = plain != nullptr && plain->equal_share() > kNamed ? plain->name : best.name;
  }
  out.sentence = sentence_of(out);
  return out;
}

}  // namespace plumb
