#include "rl/drift/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "engine/config/config.h"

namespace plumb {
namespace {

using Json = nlohmann::ordered_json;
using Kind = FirstDifference::Kind;

Json numerics_json(const Numerics& n) { return {{"preset", n.preset}, {"hash", hash_text(n.hash())}}; }

Json distribution_json(const Distribution& d) {
  Json quantiles = Json::object(), histogram = Json::array(), by = Json::array();
  for (const auto& [q, x] : d.quantiles) quantiles[fmt::format("p{:g}", 100 * q)] = x;
  for (int i = 0; i < Distribution::kBins; ++i) {
    histogram.push_back({{"from", Distribution::bin_start(i)}, {"tokens", d.histogram[std::size_t(i)]}});
  }
  histogram[0]["from"] = "equal";
  for (const auto& b : d.by_probability) {
    by.push_back({{"from", b.from}, {"to", b.to}, {"tokens", b.tokens}, {"mean_abs", b.mean_abs}, {"mean", b.mean}});
  }
  return {{"tokens", d.tokens},       {"equal_share", d.equal_share}, {"mean_abs", d.mean_abs},     {"mean", d.mean},
          {"deviation", d.deviation}, {"max_abs", d.max_abs},         {"quantiles_abs", quantiles}, {"histogram_abs", histogram},
          {"by_probability", by}};
}

Json place_json(const FirstDifference& d) {
  switch (d.kind) {
    case Kind::none: return {{"layer", nullptr}, {"stage", "none"}};
    case Kind::head: return {{"layer", nullptr}, {"stage", "head"}};
    case Kind::context: return {{"layer", d.layer}, {"stage", "attention, from earlier tokens"}};
    case Kind::stage: break;
  }
  return {{"layer", d.layer}, {"stage", enum_name(d.stage)}};
}

Json attribution_json(const DriftAttribution& a) {
  Json players = Json::array();
  for (std::size_t i = 0; i < a.players.size(); ++i) {
    const PlayerShare& s = a.shares.players[i];
    players.push_back({{"name", a.players[i].name},
                       {"region", enum_name(a.players[i].region)},
                       {"differs", a.players[i].differs},
                       {"alone", s.alone},
                       {"left_out", s.left_out},
                       {"shapley", s.shapley},
                       {"interval_95", {s.low, s.high}},
                       {"share", a.part(i)},
                       {"share_interval_95", a.part_intervals.empty() ? Json() : Json{a.part_intervals[i].low, a.part_intervals[i].high}},
                       {"inert", s.inert}});
  }
  Json absent = Json::array();
  for (const Player& p : a.absent) absent.push_back({{"name", p.name}, {"differs", p.differs}});
  return {{"by", enum_name(a.by)},
          {"total", a.shares.total},
          {"method", a.shares.exact ? "exact" : "sampled orders with their reverses"},
          {"orders", a.shares.orders},
          {"coalitions", a.shares.coalitions},
          {"players", players},
          {"cannot_matter", absent}};
}

/// Players by what they contribute, largest first.
std::vector<std::size_t> by_size(const DriftAttribution& a) {
  std::vector<std::size_t> order(a.players.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) {
    const PlayerShare &sx = a.shares.players[x], &sy = a.shares.players[y];
    if (sx.inert != sy.inert) return sy.inert;
    return sx.shapley > sy.shapley;
  });
  return order;
}

std::string attribution_table(const DriftAttribution& a, const DriftReport& r) {
  std::string out = fmt::format("\nAttribution of {} over {} ({})\n", r.metric, enum_name(a.by),
                                a.shares.exact ? fmt::format("exact, {} coalitions", a.shares.coalitions)
                                               : fmt::format("{} sampled orders, {} coalitions", a.shares.orders, a.shares.coalitions));
  out += fmt::format("  {:<28} {:>11} {:>11} {:>11} {:>7} {:>13}  {}\n", a.by == PlayersBy::layers ? "layer" : enum_name(a.by), "alone",
                     "left out", "Shapley", "share", a.part_intervals.empty() ? "" : "95 %",
                     a.shares.exact ? "what moves" : "95 % of the orders");
  for (std::size_t i : by_size(a)) {
    const PlayerShare& s = a.shares.players[i];
    std::string over;
    if (!a.part_intervals.empty() && !s.inert)
      over = fmt::format("{:.1f} .. {:.1f}", 100 * a.part_intervals[i].low, 100 * a.part_intervals[i].high);
    std::string what = a.shares.exact ? a.players[i].differs : fmt::format("{:.3g} .. {:.3g}", s.low, s.high);
    if (s.inert) what = "inert: changes no bit (" + a.players[i].differs + ")";
    if (what.size() > 90) what = what.substr(0, 87) + "...";
    out += fmt::format("  {:<28} {:>11.4g} {:>11.4g} {:>11.4g} {:>6.1f}% {:>13}  {}\n", a.players[i].name, s.alone, s.left_out, s.shapley,
                       100 * a.part(i), over, what);
  }
  for (const Player& p : a.absent) out += fmt::format("  {:<28} inert: {}\n", p.name, p.differs);
  out += fmt::format("  {:<28} {:>11} {:>11} {:>11.4g}\n", "sum", "", "", a.shares.total);
  if (r.recorded) out += fmt::format("  {:<28} {:>11} {:>11} {:>11.4g}\n", "unexplained", "", "", r.unexplained);
  return out;
}

}  // namespace

std::string place_text(const FirstDifference& d) {
  switch (d.kind) {
    case Kind::none: return "no difference";
    case Kind::head: return "head";
    case Kind::context: return fmt::format("layer {}, attention, from earlier tokens", d.layer);
    case Kind::stage: break;
  }
  if (d.stage == Stage::embedding || d.stage == Stage::final_norm) return enum_name(d.stage);
  return fmt::format("layer {}, {}", d.layer, enum_name(d.stage));
}

std::vector<PlaceCount> place_counts(const StageComparison& c) {
  std::map<std::tuple<int, int, int, int>, PlaceCount> counts;
  for (const FirstDifference& d : c.tokens) {
    const int order = d.kind == Kind::none ? 2 : d.kind == Kind::head ? 1 : 0;
    PlaceCount& count = counts[{order, d.layer, int(d.stage), int(d.kind)}];
    count.place = d;
    ++count.tokens;
  }
  std::vector<PlaceCount> out;
  for (const auto& [key, count] : counts) out.push_back(count);
  return out;
}

Json forensics_json(const Forensics& f) {
  Json ranking = Json::array(), facts = Json::array();
  for (const FactEvidence& e : f.facts) {
    facts.push_back({{"fact", e.fact},
                     {"value", e.value},
                     {"instead", e.instead},
                     {"same_bits", e.same_bits},
                     {"tokens", e.tokens},
                     {"equal", e.equal},
                     {"equal_instead", e.equal_instead},
                     {"nats", e.nats}});
  }
  for (const Candidate& c : f.ranking) {
    ranking.push_back({{"name", c.name},
                       {"preset", c.preset},
                       {"changes", c.changes},
                       {"same_bits", c.same_bits},
                       {"tokens", c.tokens},
                       {"equal", c.equal},
                       {"equal_share", c.equal_share()},
                       {"sequences", c.sequences},
                       {"equal_sequences", c.equal_sequences},
                       {"mean_abs_logp_diff", c.mean_abs},
                       {"max_abs_logp_diff", c.max_abs},
                       {"log_likelihood", c.log_likelihood},
                       {"log_likelihood_per_token", c.log_likelihood / double(c.tokens)}});
  }
  return {{"verdict", enum_name(f.verdict)}, {"named", f.named.empty() ? Json() : Json(f.named)},
          {"sentence", f.sentence},          {"margin_nats", f.margin},
          {"chance_share", f.chance_share},  {"ranking", ranking},
          {"not_tried", f.not_tried},        {"facts", facts}};
}

namespace {

/// The facts that the record tells apart, and by how much; then those of which it says nothing.
std::string facts_table(const Forensics& f) {
  if (f.facts.empty()) return "";
  const FactEvidence& first = f.facts.front();
  std::string out =
      fmt::format("\nwhat the record says of each fact: {} of {} tokens are equal; were this one otherwise\n", first.equal, first.tokens);
  std::string silent;
  for (const FactEvidence& e : f.facts) {
    if (e.same_bits) {
      silent += (silent.empty() ? "" : ", ") + e.fact;
      continue;
    }
    out += fmt::format("  {:<34} {:<14} {:>6} equal  {:>8.1f} nats\n", e.fact + " " + e.value, e.instead + ":", e.equal_instead, -e.nats);
  }
  if (!silent.empty()) out += fmt::format("  changes no bit here, so the record cannot tell: {}\n", silent);
  return out;
}

}  // namespace

std::string forensics_table(const Forensics& f) {
  std::string out =
      fmt::format("  {:<44} {:>13} {:>9} {:>11} {:>11} {:>10}\n", "candidate", "equal", "share", "mean|dlogp|", "max|dlogp|", "nats/token");
  for (const Candidate& c : f.ranking) {
    out += fmt::format("  {:<44} {:>6}/{:<6} {:>8.2f}% {:>11.4g} {:>11.4g} {:>10.3f}\n", c.name, c.equal, c.tokens, 100 * c.equal_share(),
                       c.mean_abs, c.max_abs, c.log_likelihood / double(c.tokens));
    for (const std::string& name : c.same_bits) out += fmt::format("    the same bits: {}\n", name);
  }
  for (const std::string& name : f.not_tried) out += fmt::format("  not tried: {}\n", name);
  out += fmt::format("verdict: {} ({:.1f} nats before the next; by chance {:.2g} % of the tokens would be equal)\n{}\n",
                     enum_name(f.verdict), f.margin, 100 * f.chance_share, f.sentence);
  return out + facts_table(f);
}

Json drift_json(const DriftReport& r, const ModelConfig& config) {
  Json metrics = Json::object(), places = Json::array(), attributions = Json::array();
  for (const auto& [key, value] : r.mismatch_metrics) metrics[key] = value;
  for (const PlaceCount& c : place_counts(r.stages)) {
    Json place = place_json(c.place);
    place["tokens"] = c.tokens;
    place["suspects"] = suspects(r.a, r.b, config, c.place);
    places.push_back(place);
  }
  for (const DriftAttribution& a : r.attributions) attributions.push_back(attribution_json(a));
  Json out = {{"format", "plumb.drift.1"},
              {"model", r.model},
              {"a", numerics_json(r.a)},
              {"b", numerics_json(r.b)},
              {"recorded", r.recorded},
              {"temperature", r.temperature},
              {"sequences", r.sequences},
              {"tokens", r.tokens},
              {"metric", r.metric},
              {"mismatch", r.mismatch},
              {"unexplained", r.unexplained},
              {"differences", r.differences},
              {"distribution", distribution_json(r.distribution)},
              {"metrics", metrics},
              {"first_difference", places},
              {"stream_difference", r.stages.growth},
              {"attribution", attributions}};
  if (r.forensics) out["forensics"] = forensics_json(*r.forensics);
  return out;
}

std::string drift_tokens_jsonl(const DriftReport& r, const std::vector<TrainSequence>& sequences) {
  std::string out;
  std::size_t token = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    for (std::int64_t i = sequences[s].prompt_len; i < std::int64_t(sequences[s].tokens.size()); ++i, ++token) {
      Json line = {{"sequence", s},
                   {"position", i},
                   {"id", sequences[s].tokens[std::size_t(i)]},
                   {"logprob_a", r.logprob_a[token]},
                   {r.recorded ? "logprob_recorded" : "logprob_b", r.logprob_other[token]}};
      line.update(place_json(r.stages.tokens[token]));
      out += line.dump() + "\n";
    }
  }
  return out;
}

std::string drift_table(const DriftReport& r, const ModelConfig& config) {
  std::string out = fmt::format("A: {}\nB: {}{}\n{} tokens of {} sequences, temperature {:g}\n", r.a.preset, r.b.preset,
                                r.recorded ? ", against the record" : "", r.tokens, r.sequences, r.temperature);
  for (const std::string& d : r.differences) out += fmt::format("  {}\n", d);
  if (r.differences.empty()) out += "  no difference that a forward shows\n";
  const Distribution& d = r.distribution;
  out += fmt::format("\n|dlogp|  mean {:.4g}  ", d.mean_abs);
  for (const auto& [q, x] : d.quantiles) out += fmt::format("p{:g} {:.4g}  ", 100 * q, x);
  out +=
      fmt::format("max {:.4g}  equal {:.2f} %   dlogp  mean {:+.4g}  s.d. {:.4g}\n", d.max_abs, 100 * d.equal_share, d.mean, d.deviation);
  for (const auto& [key, value] : r.mismatch_metrics) out += fmt::format("  {:<34} {:.6g}\n", key, value);
  out += fmt::format("\n{}\n", r.recorded ? "Where the bits of A and B part first (tokens)" : "Where the bits part first (tokens)");
  std::vector<PlaceCount> places = place_counts(r.stages);
  std::stable_sort(places.begin(), places.end(), [](const PlaceCount& x, const PlaceCount& y) { return x.tokens > y.tokens; });
  constexpr std::size_t kShown = 12;
  for (std::size_t i = 0; i < std::min(places.size(), kShown); ++i) {
    const std::string why = suspects(r.a, r.b, config, places[i].place);
    out += fmt::format("  {:>7}  {:<42} {}\n", places[i].tokens, place_text(places[i].place), why);
  }
  if (places.size() > kShown) out += fmt::format("  and {} places more\n", places.size() - kShown);
  for (const DriftAttribution& a : r.attributions) out += attribution_table(a, r);
  return out;
}

}  // namespace plumb
