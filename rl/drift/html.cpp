// The HTML page: tables and plots as inline SVG, no scripts, nothing loaded from elsewhere.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "rl/drift/report.h"

namespace plumb {
namespace {

constexpr const char* kStyle = R"(
:root{--ink:#1c2430;--soft:#5d6b7e;--line:#d9dfe7;--paper:#fff;--a:#2f6fb7;--b:#d9822b;--c:#3a9a6b;--warn:#b3433f}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa7b8;--line:#374252;--paper:#161b22;--a:#6ea8e5;--b:#eea55c;--c:#66c295;--warn:#e88a86}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:980px;margin:2em auto;padding:0 1em}
h1{font-size:1.5em;margin:0 0 .2em}h2{font-size:1.15em;margin:2em 0 .3em;border-bottom:1px solid var(--line)}
p{margin:.4em 0;max-width:75ch}.soft{color:var(--soft)}.big{font-size:1.1em}
table{border-collapse:collapse;font-size:.9em;margin:.6em 0}td,th{padding:.2em .8em .2em 0;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
svg{display:block;width:100%;height:auto;margin:.5em 0}svg text{fill:var(--ink);font:12px system-ui,sans-serif}svg .t{fill:var(--soft);font-size:11px}
code{font-size:.92em}.cards{display:flex;flex-wrap:wrap;gap:.6em}.card{border:1px solid var(--line);border-radius:6px;padding:.4em .9em}.card b{display:block;font-size:1.2em}
)";

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else if (c == '\'')
      out += "&#39;";
    else
      out += c;
  }
  return out;
}

/// An SVG drawing of a given size in units of the text's pixels.
class Drawing {
 public:
  Drawing(double width, double height) : width_(width), height_(height) {}
  void rect(double x, double y, double w, double h, const std::string& fill, const std::string& title = "", double opacity = 1) {
    body_ += fmt::format("<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}' fill='{}' fill-opacity='{:.3f}'>", x, y,
                         std::max(w, 0.0), std::max(h, 0.0), fill, opacity);
    if (!title.empty()) body_ += "<title>" + escaped(title) + "</title>";
    body_ += "</rect>";
  }
  void line(double x1, double y1, double x2, double y2, const std::string& stroke = "var(--line)", double width = 1) {
    body_ +=
        fmt::format("<line x1='{:.1f}' y1='{:.1f}' x2='{:.1f}' y2='{:.1f}' stroke='{}' stroke-width='{}'/>", x1, y1, x2, y2, stroke, width);
  }
  void circle(double x, double y, double r, const std::string& fill, const std::string& title) {
    body_ += fmt::format("<circle cx='{:.1f}' cy='{:.1f}' r='{}' fill='{}'><title>{}</title></circle>", x, y, r, fill, escaped(title));
  }
  void text(double x, double y, const std::string& what, const char* anchor = "start", bool soft = false) {
    body_ += fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='{}'{}>{}</text>", x, y, anchor, soft ? " class='t'" : "", escaped(what));
  }
  std::string str(const std::string& label) const {
    return fmt::format("<svg viewBox='0 0 {} {}' role='img' aria-label='{}'>{}</svg>\n", width_, height_, escaped(label), body_);
  }

 private:
  double width_;
  double height_;
  std::string body_;
};

std::string histogram_svg(const Distribution& d) {
  const double width = 940, height = 230, left = 50, bottom = 40, top = 14;
  Drawing svg(width, height);
  const auto most = double(std::max<std::int64_t>(1, *std::max_element(d.histogram.begin(), d.histogram.end())));
  const double step = (width - left) / Distribution::kBins, floor = height - bottom;
  for (int i = 0; i <= 4; ++i) {
    const double y = floor - (floor - top) * i / 4;
    svg.line(left, y, width, y);
    svg.text(left - 6, y + 4, fmt::format("{:.0f}", most * i / 4), "end", true);
  }
  for (int i = 0; i < Distribution::kBins; ++i) {
    const auto n = double(d.histogram[std::size_t(i)]);
    const double h = (floor - top) * n / most, x = left + i * step;
    const std::string from = i == 0 ? "equal" : i == 1 ? "below 1e-06" : fmt::format("from {:.2g}", Distribution::bin_start(i));
    svg.rect(x + 1, floor - h, step - 2, h, i == 0 ? "var(--c)" : "var(--a)", fmt::format("{}: {} tokens", from, n));
    const bool decade = i >= 2 && (i - 2) % Distribution::kBinsPerDecade == 0;
    if (decade) svg.text(x, floor + 15, fmt::format("{:.0e}", Distribution::bin_start(i)), "middle", true);
  }
  svg.text(left + step / 2, floor + 15, "equal", "middle", true);
  svg.text(left + (width - left) / 2, height - 6, "|difference of the log-probs|, tokens per bin", "middle", true);
  return svg.str("distribution of the absolute log-prob difference");
}

std::string probability_svg(const Distribution& d) {
  const double width = 940, left = 120, row = 24, top = 22;
  Drawing svg(width, top + row * double(d.by_probability.size()) + 6);
  double most = 1e-30;
  for (const auto& b : d.by_probability) most = std::max(most, b.mean_abs);
  const double zero = left + 230, scale = 230 / most;
  svg.text(zero, 12, "mean difference (signed; the bar behind it: mean |difference|)", "middle", true);
  for (std::size_t i = 0; i < d.by_probability.size(); ++i) {
    const auto& b = d.by_probability[i];
    const double y = top + row * double(i);
    svg.text(left - 8, y + 16, fmt::format("p {:g} - {:g}", b.from, b.to), "end");
    svg.rect(zero - b.mean_abs * scale, y + 3, 2 * b.mean_abs * scale, row - 6, "var(--a)", fmt::format("mean |d| {:.4g}", b.mean_abs),
             0.3);
    const double x = zero + std::min(0.0, b.mean) * scale;
    svg.rect(x, y + 7, std::abs(b.mean) * scale, row - 14, "var(--b)", fmt::format("mean d {:+.4g}", b.mean));
    svg.text(left + 480, y + 16, fmt::format("{} tokens, mean |d| {:.4g}, mean {:+.4g}", b.tokens, b.mean_abs, b.mean), "start", true);
  }
  svg.line(zero, top, zero, top + row * double(d.by_probability.size()), "var(--soft)");
  return svg.str("difference by the probability of the token");
}

/// Layers down, stages across; the darker, the more tokens part there first.
std::string places_svg(const DriftReport& r, const ModelConfig& config) {
  std::vector<Stage> stages;
  const std::vector<PlaceCount> counts = place_counts(r.stages);
  for (int s = 0; s < kStages; ++s) {
    const bool used = std::any_of(counts.begin(), counts.end(), [&](const PlaceCount& c) {
      return c.place.stage == Stage(s) && (c.place.kind == FirstDifference::Kind::stage || c.place.kind == FirstDifference::Kind::context);
    });
    if (used) stages.push_back(Stage(s));
  }
  if (stages.empty()) return "<p>No hidden state differs.</p>\n";
  const double width = 940, left = 70, top = 26, row = std::clamp(400.0 / config.layers, 9.0, 26.0);
  const double column = std::min(130.0, (width - left) / double(stages.size()));
  Drawing svg(width, top + row * config.layers + 8);
  for (std::size_t s = 0; s < stages.size(); ++s) svg.text(left + column * (double(s) + .5), 14, enum_name(stages[s]), "middle", true);
  for (int l = 0; l < config.layers; ++l) {
    const double y = top + row * l;
    if (row > 11 || l % 5 == 0) svg.text(left - 8, y + row / 2 + 4, fmt::format("layer {}", l), "end", true);
    for (std::size_t s = 0; s < stages.size(); ++s) {
      std::int64_t n = 0, context = 0;
      for (const PlaceCount& c : counts) {
        if (c.place.layer != l || c.place.stage != stages[s]) continue;
        if (c.place.kind == FirstDifference::Kind::stage) n += c.tokens;
        if (c.place.kind == FirstDifference::Kind::context) context += c.tokens;
      }
      const double x = left + column * double(s);
      svg.rect(x, y, column - 2, row - 2, "var(--line)", "", 0.35);
      if (n + context == 0) continue;
      const double depth = 0.25 + 0.75 * std::sqrt(double(n + context) / double(r.tokens));
      const std::string title = fmt::format("layer {}, {}: {} tokens first differ here{}", l, enum_name(stages[s]), n + context,
                                            context > 0 ? fmt::format(", {} of them only through earlier tokens", context) : "");
      svg.rect(x, y, column - 2, row - 2, "var(--b)", title, depth);
      if (row > 11) svg.text(x + column / 2 - 1, y + row / 2 + 3, fmt::format("{}", n + context), "middle");
    }
  }
  return svg.str("tokens by the layer and op where the bits part first");
}

std::string growth_svg(const std::vector<double>& growth) {
  double low = 1e300, high = 0;
  for (double g : growth) {
    if (g > 0) low = std::min(low, g);
    high = std::max(high, g);
  }
  if (high <= 0) return "<p>The residual stream is equal everywhere.</p>\n";
  const double width = 940, height = 200, left = 60, bottom = 30, top = 10;
  low = std::floor(std::log10(low));
  high = std::max(std::ceil(std::log10(high)), low + 1);
  Drawing svg(width, height);
  const double floor = height - bottom, step = (width - left - 20) / std::max<double>(1, double(growth.size()) - 1);
  const auto y_of = [&](double g) { return g > 0 ? floor - (floor - top) * (std::log10(g) - low) / (high - low) : floor; };
  for (int e = int(low); e <= int(high); ++e) {
    svg.line(left, y_of(std::pow(10, e)), width, y_of(std::pow(10, e)));
    svg.text(left - 6, y_of(std::pow(10, e)) + 4, fmt::format("1e{}", e), "end", true);
  }
  const std::size_t every = std::max<std::size_t>(1, growth.size() / 16);
  for (std::size_t i = 0; i < growth.size(); ++i) {
    const double x = left + 10 + step * double(i);
    if (i > 0) svg.line(x - step, y_of(growth[i - 1]), x, y_of(growth[i]), "var(--a)", 2);
    svg.circle(x, y_of(growth[i]), 3.5, "var(--a)",
               i == 0 ? fmt::format("embedding: {:.3g}", growth[i]) : fmt::format("after layer {}: {:.3g}", i - 1, growth[i]));
    if (i % every == 0) svg.text(x, floor + 16, i == 0 ? "emb." : fmt::format("{}", i - 1), "middle", true);
  }
  return svg.str("relative difference of the residual stream by layer");
}

std::string attribution_svg(const DriftAttribution& a) {
  const std::size_t n = a.players.size();
  double low = 0, high = 1e-30;
  for (const PlayerShare& s : a.shares.players) {
    low = std::min({low, s.alone, s.left_out, s.low, s.shapley});
    high = std::max({high, s.alone, s.left_out, s.high, s.shapley});
  }
  const double width = 940, left = 210, row = 40, top = 22, scale = (width - left - 70) / (high - low);
  const double zero = left - low * scale;
  Drawing svg(width, top + row * double(n) + 4);
  const auto legend = [&](double x, const char* colour, const char* what) {
    svg.rect(x, 3, 10, 10, colour);
    svg.text(x + 14, 12, what, "start", true);
  };
  legend(left, "var(--a)", "Shapley value");
  legend(left + 120, "var(--c)", "alone: moved by itself");
  legend(left + 280, "var(--b)", "left out: what is missing without it");
  std::vector<std::size_t> order(n);
  for (std::size_t i = 0; i < n; ++i) order[i] = i;
  if (a.by != PlayersBy::layers)
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t x, std::size_t y) { return a.shares.players[x].shapley > a.shares.players[y].shapley; });
  for (std::size_t i = 0; i < n; ++i) {
    const Player& p = a.players[order[i]];
    const PlayerShare& s = a.shares.players[order[i]];
    const double y = top + row * double(i);
    const auto bar = [&](double value, double offset, double height, const char* colour, const char* what) {
      svg.rect(zero + std::min(0.0, value) * scale, y + offset, std::max(std::abs(value) * scale, 0.5), height, colour,
               fmt::format("{}: {:.5g}", what, value));
    };
    svg.text(left - 10, y + 16, p.name, "end");
    if (s.inert) svg.text(left - 10, y + 30, "inert: changes no bit", "end", true);
    bar(s.shapley, 3, 14, "var(--a)", "Shapley value");
    bar(s.alone, 19, 6, "var(--c)", "alone");
    bar(s.left_out, 27, 6, "var(--b)", "left out");
    if (!a.shares.exact) svg.line(zero + s.low * scale, y + 10, zero + s.high * scale, y + 10, "var(--ink)", 1.5);
    const double end = zero + std::max(s.shapley, a.shares.exact ? 0.0 : s.high) * scale;
    svg.text(end + 6, y + 14, fmt::format("{:.1f} %", 100 * a.part(order[i])), "start", true);
  }
  svg.line(zero, top, zero, top + row * double(n), "var(--soft)");
  return svg.str(fmt::format("attribution over {}", enum_name(a.by)));
}

std::string attribution_section(const DriftAttribution& a, const DriftReport& r) {
  static constexpr const char* kTitles[] = {"By region", "By site and reduction", "By layer"};
  std::string out = fmt::format("<h2>{}</h2>\n", kTitles[int(a.by)]);
  out += fmt::format(
      "<p class=soft>{} of {} = {:.5g}{}. The values sum to it.</p>\n",
      a.shares.exact
          ? fmt::format("Exact Shapley values over {} coalitions", a.shares.coalitions)
          : fmt::format("Shapley values from {} sampled orders ({} coalitions), with 95 % intervals", a.shares.orders, a.shares.coalitions),
      escaped(r.metric), a.shares.total, r.recorded ? fmt::format(" explained, {:.5g} left unexplained", r.unexplained) : "");
  if (a.players.empty()) return out + "<p>Nothing differs.</p>\n";
  out += attribution_svg(a);
  out +=
      "<table><tr><th>what</th><th class=n>alone</th><th class=n>left out</th><th class=n>Shapley</th><th class=n>share, 95 % over the "
      "sequences</th><th>moves</th></tr>\n";
  for (std::size_t i = 0; i < a.players.size(); ++i) {
    const PlayerShare& s = a.shares.players[i];
    const std::string over =
        a.part_intervals.empty() ? "" : fmt::format(", {:.1f} to {:.1f}", 100 * a.part_intervals[i].low, 100 * a.part_intervals[i].high);
    out += fmt::format(
        "<tr><td>{}</td><td class=n>{:.4g}</td><td class=n>{:.4g}</td><td class=n>{:.4g}</td><td class=n>{:.1f} "
        "%{}</td><td>{}{}</td></tr>\n",
        escaped(a.players[i].name), s.alone, s.left_out, s.shapley, 100 * a.part(i), over, s.inert ? "<b>inert:</b> " : "",
        escaped(a.players[i].differs));
  }
  for (const Player& p : a.absent)
    out += fmt::format("<tr><td>{}</td><td></td><td></td><td></td><td></td><td>inert: {}</td></tr>\n", escaped(p.name), escaped(p.differs));
  return out + "</table>\n";
}

std::string facts_section(const Forensics& f) {
  if (f.facts.empty()) return "";
  std::string out =
      fmt::format("<h3>What the record says of each fact</h3>\n<p class=soft>{} of {} tokens are equal. Were a fact alone otherwise:</p>\n",
                  f.facts.front().equal, f.facts.front().tokens);
  out += "<table><tr><th>fact</th><th>value</th><th>otherwise</th><th class=n>equal then</th><th class=n>nats</th></tr>\n";
  for (const FactEvidence& e : f.facts) {
    const std::string found = e.same_bits ? "<td class=n></td><td class=n>changes no bit</td>"
                                          : fmt::format("<td class=n>{}</td><td class=n>{:.1f}</td>", e.equal_instead, -e.nats);
    out += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td>{}</tr>\n", escaped(e.fact), escaped(e.value), escaped(e.instead), found);
  }
  return out + "</table>\n";
}

std::string forensics_section(const Forensics& f) {
  std::string out = fmt::format("<h2>Who made the record</h2>\n<p class=big>{}</p>\n", escaped(f.sentence));
  out +=
      "<table><tr><th>candidate</th><th class=n>equal</th><th class=n>of</th><th class=n>mean |dlogp|</th><th "
      "class=n>nats/token</th></tr>\n";
  for (const Candidate& c : f.ranking) {
    out += fmt::format("<tr><td>{}</td><td class=n>{}</td><td class=n>{}</td><td class=n>{:.4g}</td><td class=n>{:.3f}</td></tr>\n",
                       escaped(c.name), c.equal, c.tokens, c.mean_abs, c.log_likelihood / double(c.tokens));
  }
  return out + "</table>\n" + facts_section(f);
}

std::string card(const std::string& label, const std::string& value) {
  return fmt::format("<div class=card><span class=soft>{}</span><b>{}</b></div>", label, value);
}

}  // namespace

std::string drift_html(const DriftReport& r, const ModelConfig& config) {
  std::string out = "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>";
  out += fmt::format("<title>{} against {}</title><style>{}</style>\n", escaped(r.a.preset), escaped(r.b.preset), kStyle);
  out +=
      fmt::format("<h1>{} <span class=soft>against</span> {}</h1>\n", escaped(r.a.preset), r.recorded ? "a record" : escaped(r.b.preset));
  if (r.recorded)
    out += fmt::format("<p>The record is explained by moving {} towards <b>{}</b>.</p>\n", escaped(r.a.preset), escaped(r.b.preset));
  out += fmt::format("<p class=soft>{}: {} layers, {} tokens of {} sequences, temperature {:g}</p>\n", escaped(r.model), config.layers,
                     r.tokens, r.sequences, r.temperature);
  const Distribution& d = r.distribution;
  out += "<div class=cards>" + card("mean |dlogp|", fmt::format("{:.4g}", d.mean_abs)) + card("largest", fmt::format("{:.4g}", d.max_abs)) +
         card("mean dlogp", fmt::format("{:+.3g}", d.mean)) + card("equal", fmt::format("{:.2f} %", 100 * d.equal_share)) + "</div>\n";
  if (!r.differences.empty()) {
    out += "<p>What differs: ";
    for (std::size_t i = 0; i < r.differences.size(); ++i) out += (i > 0 ? "; " : "") + ("<code>" + escaped(r.differences[i]) + "</code>");
    out += "</p>\n";
  }
  if (r.forensics) out += forensics_section(*r.forensics);
  out += "<h2>How far the log-probs are apart</h2>\n" + histogram_svg(d) + probability_svg(d);
  for (const DriftAttribution& a : r.attributions) out += attribution_section(a, r);
  out += fmt::format(
      "<h2>Where the bits part first</h2>\n<p class=soft>Of each token, the first op whose output differs between {} and {}.</p>\n",
      escaped(r.a.preset), escaped(r.b.preset));
  out += places_svg(r, config);
  out += "<table><tr><th class=n>tokens</th><th>place</th><th>what could have done it</th></tr>\n";
  for (const PlaceCount& c : place_counts(r.stages)) {
    out += fmt::format("<tr><td class=n>{}</td><td>{}</td><td>{}</td></tr>\n", c.tokens, escaped(place_text(c.place)),
                       escaped(suspects(r.a, r.b, config, c.place)));
  }
  out +=
      "</table>\n<h2>How the difference grows with depth</h2>\n<p class=soft>Relative difference of the residual stream (root mean square) "
      "after each layer.</p>\n";
  out += growth_svg(r.stages.growth);
  out += "<h2>Mismatch metrics</h2>\n<table>\n";
  for (const auto& [key, value] : r.mismatch_metrics)
    out += fmt::format("<tr><td><code>{}</code></td><td class=n>{:.6g}</td></tr>\n", key, value);
  return out + "</table>\n</html>\n";
}

}  // namespace plumb
