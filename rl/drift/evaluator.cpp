#include "rl/drift/evaluator.h"

#include <algorithm>
#include <bit>

#include "kernels/core/error.h"

namespace plumb {

const Weights& DriftModel::weights(DType dtype) {
  std::unique_ptr<Weights>& w = weights_[dtype];
  if (!w) {
    w = std::make_unique<Weights>(config_, dtype);
    set_weights(ctx_, *w, master_);
  }
  return *w;
}

Evaluator::Evaluator(DriftModel& model, std::vector<TrainSequence> sequences, float temperature, std::function<bool()> keep_going)
    : model_(model), sequences_(std::move(sequences)), temperature_(temperature), keep_going_(std::move(keep_going)) {
  std::int64_t rows = 0;
  for (const TrainSequence& s : sequences_) {
    tokens_ += s.response_len();
    longest_ = std::max(longest_, std::int64_t(s.tokens.size()));
    rows += packed_rows(std::int64_t(s.tokens.size()));
  }
  if (tokens_ < 1) throw UsageError("drift: there is no token to score: a sequence needs at least two");
  micro_batch_ = std::max(packed_rows(longest_), std::min<std::int64_t>(rows, 1024));
}

void Evaluator::stop_if_asked() const {
  if (keep_going_ && !keep_going_()) throw DriftInterrupted{};
}

const SideScores& Evaluator::of(const Numerics& asked) {
  Numerics numerics = asked;
  numerics.backward = {};
  numerics.reductions.shards = 1;
  const std::string key = numerics.describe();
  if (const auto it = known_.find(key); it != known_.end()) return it->second;
  const Weights& weights = model_.weights(numerics.compute);
  Scorer scorer(model_.config(), numerics, ExecutionConfig{.micro_batch_tokens = int(micro_batch_)}, longest_);
  SideScores e;
  for (std::size_t first = 0; first < sequences_.size();) {
    stop_if_asked();
    std::int64_t rows = 0;
    std::size_t count = 0;
    while (first + count < sequences_.size()) {
      const std::int64_t more = packed_rows(std::int64_t(sequences_[first + count].tokens.size()));
      if (count > 0 && rows + more > micro_batch_) break;
      rows += more;
      ++count;
    }
    const TokenScores s = scorer.score(model_.ctx(), weights, std::span(sequences_).subspan(first, count), temperature_);
    e.logprob.insert(e.logprob.end(), s.logprob.begin(), s.logprob.end());
    e.argmax.insert(e.argmax.end(), s.argmax.begin(), s.argmax.end());
    first += count;
  }
  e.bits = 0xCBF29CE484222325u;
  for (float x : e.logprob) e.bits = (e.bits ^ std::bit_cast<std::uint32_t>(x)) * 0x100000001B3u;
  return known_.emplace(key, std::move(e)).first->second;
}

}  // namespace plumb
