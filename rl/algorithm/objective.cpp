#include "rl/algorithm/objective.h"

namespace plumb {

ObjectiveSettings objective_settings(const GrpoConfig& c) {
  return {.clip = {.low = c.clip_low, .high = c.clip_high, .dual = c.dual_clip},
          .kl = c.kl,
          .kl_coef = c.kl == KlEstimator::none ? 0.0 : c.kl_coef,
          .entropy_coef = c.entropy_coef};
}

ObjectiveSums& ObjectiveSums::operator+=(const ObjectiveSums& other) {
  loss += other.loss;
  policy_loss += other.policy_loss;
  kl += other.kl;
  entropy += other.entropy;
  log_ratio += other.log_ratio;
  tokens += other.tokens;
  clipped_low += other.clipped_low;
  clipped_high += other.clipped_high;
  clipped_dual += other.clipped_dual;
  kl_clamped += other.kl_clamped;
  return *this;
}

ObjectiveSums policy_objective(const ObjectiveSettings& settings, const ObjectiveSequence& s, std::span<float> d_logprob,
                               std::span<float> d_entropy) {
  ObjectiveSums sums;
  for (std::size_t i = 0; i < s.logprob.size(); ++i) {
    d_logprob[i] = 0;
    d_entropy[i] = 0;
    if (!s.mask[i]) continue;
    const PolicyTerm policy = policy_loss(s.logprob[i], s.old_logprob[i], s.advantage[i], settings.clip);
    KlTerm kl;
    if (settings.kl != KlEstimator::none) kl = kl_estimate(settings.kl, s.logprob[i], s.ref_logprob[i]);
    const double entropy = s.entropy[i];

    d_logprob[i] = float(s.weight * (policy.d_logp + settings.kl_coef * kl.d_logp));
    d_entropy[i] = float(-s.weight * settings.entropy_coef);
    sums.policy_loss += s.weight * policy.loss;
    sums.loss += s.weight * (policy.loss + settings.kl_coef * kl.value - settings.entropy_coef * entropy);
    sums.kl += kl.value;
    sums.entropy += entropy;
    sums.log_ratio += double(s.old_logprob[i]) - double(s.logprob[i]);
    ++sums.tokens;
    sums.clipped_low += policy.clip == Clip::low;
    sums.clipped_high += policy.clip == Clip::high;
    sums.clipped_dual += policy.clip == Clip::dual;
    sums.kl_clamped += kl.clamped;
  }
  return sums;
}

void PhantomClip::add(std::span<const float> trainer, std::span<const float> rollout, std::span<const float> advantage,
                      std::span<const std::uint8_t> mask, const ClipRange& range) {
  for (std::size_t i = 0; i < trainer.size(); ++i) {
    if (!mask[i]) continue;
    ++tokens;
    clipped += policy_loss(trainer[i], rollout[i], advantage[i], range).clip != Clip::none;
  }
}

}  // namespace plumb
