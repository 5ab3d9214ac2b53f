// Which preset made these log-probs? Every preset that can run is scored against what a foreign engine recorded for weights that we
// hold, by two kinds of evidence: log-probs that are equal to the recorded precision, and the size of what is not.
//
// The likelihood of a candidate is that of a mixture: a token is reproduced (error uniform within its tolerance) with probability s,
// or not (Laplace of scale b), s and b fitted; so an exact match is worth about log(b / tolerance) nats, and candidates without exact
// matches are ranked by the size of their residual.
//
// Naming one is another question than ranking. A preset with one wrong site changes 0.75 % (resid.sum_to_var) to 32 % of the outputs
// of an op (docs/numerics.md), hence nearly every log-prob of a model with a few layers: over the goldens of conformance/ the best
// wrong preset keeps 0 to 2 of 46 tokens, one that differs in little but the exp of attention up to 11, here and there. A right preset
// loses only tokens behind a flipped tie of a sum, and in a deep model with one flip loses all that follow, but keeps whole sequences. So a
// candidate is named when more than half of the tokens are equal to the recorded precision, or three sequences of 8 tokens or more from end
// to end, with a tenth of all tokens (a wrong one that keeps a quarter of the tokens keeps 8 in a row with odds of 1 to 65,000); and when
// no other preset's bits come near it. Else "none of these".
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "rl/drift/evaluator.h"

namespace plumb {

struct Candidate {
  std::string name;                  // "hf_eager", "hf_eager with reductions.row_sum lanes16"
  std::string preset;                // "hf_eager"
  std::vector<std::string> changes;  // "reductions.row_sum lanes16"
  Numerics numerics;
  std::vector<std::string> same_bits;  // other presets whose log-probs are these, bit for bit, on this model
  std::int64_t tokens = 0;
  std::int64_t equal = 0;  // within the tolerance
  std::int64_t sequences = 0;
  std::int64_t equal_sequences = 0;       // every token equal
  std::int64_t long_equal = 0;            // of these the ones of 8 tokens or more,
  std::int64_t tokens_in_long_equal = 0;  // and their tokens
  double mean_abs = 0;
  double max_abs = 0;
  double log_likelihood = 0;  // nats, all tokens
  double equal_share() const { return tokens > 0 ? double(equal) / double(tokens) : 0; }
};

enum class Verdict : std::uint8_t {
  reproduced,  // at least 99 % of the tokens equal
  named,       // this stack; a tie in some sum flips now and then
  none,        // nothing fits
};
constexpr auto enum_names(Verdict) {
  using enum Verdict;
  return std::array{std::pair{reproduced, "reproduced"}, std::pair{named, "named"}, std::pair{none, "none of these"}};
}

/// What the record says of one site, formula or order of summation: how well the record fits when this fact alone is otherwise.
struct FactEvidence {
  std::string fact;
  std::string value;
  std::string instead;     // the other value that fits best
  bool same_bits = false;  // it changes no bit here: the record cannot tell
  std::int64_t tokens = 0;
  std::int64_t equal = 0;
  std::int64_t equal_instead = 0;
  double nats = 0;  // by which the value is likelier than the other
};

struct Forensics {
  Verdict verdict = Verdict::none;
  std::string named;                   // the preset; with its changes where only so it fits; empty when nothing does
  std::vector<Candidate> ranking;      // best first
  std::vector<std::string> not_tried;  // presets that cannot run, with the reason
  double margin = 0;                   // nats before the next set of bits that comes from another preset
  double chance_share = 0;             // tokens that a wrong candidate of the winner's residual size would match by chance
  std::string sentence;                // the verdict in words
  std::vector<FactEvidence> facts;     // of the best candidate; empty when nothing is named
};

struct ForensicsOptions {
  std::int64_t first_tokens = 512;  // ranked on so many, the leaders on all
  bool refine = true;               // when nothing reproduces: change single sites and reductions of the leader
  bool facts = true;                // when one is named: what the record says of each of its facts
};

/// recorded, tolerance: of each response token of the evaluator's sequences. progress(done, total): evaluations.
Forensics explain_recorded(Evaluator& all, std::span<const float> recorded, std::span<const float> tolerance, const ForensicsOptions&,
                           const std::function<void(std::int64_t, std::int64_t)>& progress = {});

/// Half a step of the recorded numbers, and what another FP32 log-softmax of the same logits may differ by: 2 ulp of each of the
/// two numbers that are subtracted.
std::vector<float> recording_tolerance(std::span<const float> recorded, double quantum, std::int64_t vocab_size);

}  // namespace plumb
