#include "rl/loop/policy_update.h"

#include "rl/algorithm/aggregation.h"

namespace plumb {

namespace {

std::vector<double> weights_of(std::span<const UpdateSequence> sequences, const UpdateSettings& settings) {
  std::vector<std::int64_t> valid;
  for (const UpdateSequence& s : sequences) {
    std::int64_t n = 0;
    for (const std::uint8_t m : s.mask) n += m != 0;
    valid.push_back(n);
  }
  return aggregation_weights(settings.aggregation, valid, settings.constant_length);
}

template <class T>
void append(std::vector<T>& to, std::span<const T> from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

ObjectiveSums policy_gradients(Context& ctx, Trainer& trainer, std::span<const UpdateSequence> sequences, const UpdateSettings& settings,
                               TokenScores* scores) {
  const std::vector<double> weights = weights_of(sequences, settings);
  std::vector<TrainSequence> tokens;
  for (const UpdateSequence& s : sequences) tokens.push_back(s.tokens);

  ObjectiveSums sums;
  const TokenObjective objective = [&](std::size_t first, std::size_t count, std::span<const float> logprob, std::span<const float> entropy,
                                       std::span<const std::int32_t> argmax, std::span<float> d_logprob, std::span<float> d_entropy) {
    std::size_t at = 0;
    for (std::size_t i = first; i < first + count; ++i) {
      const UpdateSequence& s = sequences[i];
      const std::size_t n = s.mask.size();
      const auto current = logprob.subspan(at, n);
      sums += policy_objective(settings.objective,
                               {.logprob = current,
                                .entropy = entropy.subspan(at, n),
                                .old_logprob = s.old_logprob.empty() ? current : s.old_logprob,
                                .ref_logprob = s.ref_logprob,
                                .advantage = s.advantage,
                                .mask = s.mask,
                                .weight = weights[i]},
                               d_logprob.subspan(at, n), d_entropy.subspan(at, n));
      at += n;
    }
    if (!scores) return;
    append(scores->logprob, logprob);
    append(scores->entropy, entropy);
    append(scores->argmax, argmax);
  };
  trainer.accumulate(ctx, tokens, settings.temperature, objective);
  return sums;
}

UpdateResult policy_update(Context& ctx, Trainer& trainer, std::span<const UpdateSequence> sequences, const UpdateSettings& settings,
                           TokenScores* scores) {
  UpdateResult result{.sums = policy_gradients(ctx, trainer, sequences, settings, scores)};
  if (result.sums.tokens == 0) {
    result.nothing_to_learn = true;
    trainer.clear_gradients();
    return result;
  }
  result.step = trainer.step(ctx);
  return result;
}

}  // namespace plumb
