#include "engine/sampler/sampler.h"

#include <fmt/format.h>

#include "engine/sampler/sampler_state.h"
#include "kernels/core/error.h"

namespace plumb {

using sampler_detail::Group;
using sampler_detail::own_rows;
using sampler_detail::Slot;

namespace {

SamplerOptions checked(SamplerOptions o) {
  const auto at_least_one = [](const char* what, std::int64_t value) {
    if (value < 1) throw UsageError(fmt::format("sampler: {} is {}; it must be at least 1", what, value));
  };
  at_least_one("max_sequences", o.max_sequences);
  at_least_one("prefill_tokens", o.prefill_tokens);
  at_least_one("max_positions", o.max_positions);
  if (o.kv_positions == 0) o.kv_positions = o.max_sequences * o.max_positions;
  at_least_one("kv_positions", o.kv_positions);
  return o;
}

std::int64_t max_rows(const SamplerOptions& o) { return o.max_sequences + o.prefill_tokens; }

/// How the logits are stored: as they are rounded.
DType logits_dtype(const ModelConfig& config, const Numerics& numerics) {
  const Sites sites = numerics.sites(config.layers - 1, config.layers, Place::final_norm);
  return sites.rounded(Site::lm_head_logits) ? sites.to : DType::f32;
}

/// A sampler knows no sequence's end.
Numerics endless(Numerics n) {
  n.reductions = without_sequence_end(n.reductions);
  return n;
}

std::size_t hidden_bytes(const ModelConfig& config, const Numerics& numerics, const SamplerOptions& o) {
  return std::size_t(o.max_sequences) * std::size_t(config.hidden_size) * bytes_of(numerics.compute);
}

std::size_t logits_bytes(const ModelConfig& config, const Numerics& numerics, const SamplerOptions& o) {
  return std::size_t(o.max_sequences + 1) * std::size_t(config.vocab_size) * bytes_of(logits_dtype(config, numerics));
}

std::size_t bookkeeping_bytes(const SamplerOptions& o) {
  const auto n = std::size_t(o.max_sequences);
  return n * (sizeof(Slot) + sizeof(Group) + 4 * sizeof(std::int32_t)) + sizeof(Group) +
         std::size_t(max_rows(o)) * (2 * sizeof(std::int32_t) + sizeof(SequenceRows));
}

}  // namespace

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::eos: return "eos";
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
  }
  return "?";
}

Sampler::State::State(const ModelConfig& config, const Numerics& numerics, const ModelExecution& execution, const SamplerOptions& given)
    : options(checked(given)),
      model(config, endless(numerics), execution, max_rows(options), options.max_positions, false),
      cache(config, numerics.compute, options.kv_positions),
      logits_type(logits_dtype(config, numerics)),
      hidden(hidden_bytes(config, numerics, options)),
      logits(logits_bytes(config, numerics, options)) {
  const auto n = std::size_t(options.max_sequences);
  slots.resize(n);
  groups.resize(n + 1);
  free_slots.reserve(n);
  free_groups.reserve(n + 1);
  wanted.reserve(n);
  ready.reserve(n);
  tokens.reserve(std::size_t(max_rows(options)));
  positions.reserve(std::size_t(max_rows(options)));
  sequences.reserve(std::size_t(max_rows(options)));
  for (std::int32_t s = options.max_sequences; s-- > 0;) free_slots.push_back(s);
  for (std::int32_t g = options.max_sequences + 1; g-- > 0;) free_groups.push_back(g);
}

void Sampler::State::check(const Weights& weights, std::span<const GenerationRequest> all) const {
  const ModelConfig& config = model.config();
  require(weights.dtype() == model.numerics().compute && weights.config() == config,
          "internal: weights of another shape or dtype than the sampler's");
  for (std::size_t i = 0; i < all.size(); ++i) {
    const GenerationRequest& r = all[i];
    const auto prompt = std::int64_t(r.prompt.size());
    if (prompt < 1) throw Error(fmt::format("prompt {} is empty; it needs at least one token", i));
    if (r.max_new_tokens < 1) throw UsageError(fmt::format("prompt {}: max_new_tokens is {}; it must be at least 1", i, r.max_new_tokens));
    if (r.samples < 0) throw UsageError(fmt::format("prompt {}: {} samples", i, r.samples));
    if (!(r.params.temperature >= 0)) throw UsageError(fmt::format("prompt {}: temperature {}", i, r.params.temperature));
    for (const std::int32_t token : r.prompt)
      if (token < 0 || token >= config.vocab_size)
        throw Error(fmt::format("prompt {}: token id {} is not in the vocabulary of {}", i, token, config.vocab_size));
    if (prompt + r.max_new_tokens > options.max_positions)
      throw Error(fmt::format("prompt {} has {} tokens; with max_new_tokens {} that is more than the {} positions there are", i, prompt,
                              r.max_new_tokens, options.max_positions));
    if (prompt + own_rows(r) > options.kv_positions)
      throw Error(fmt::format("prompt {} has {} tokens; with max_new_tokens {} it needs {} positions of the KV cache, which has {}", i,
                              prompt, r.max_new_tokens, prompt + own_rows(r), options.kv_positions));
  }
}

void Sampler::State::begin(std::span<const GenerationRequest> all, std::vector<std::vector<GeneratedSample>>& out) {
  requests = all;
  results = &out;
  next_request = 0;
  done = sampled = 0;
  interrupted = false;
  out.resize(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) out[i].resize(std::size_t(all[i].samples));
}

/// After an interruption or an exception too, everything is free again.
void Sampler::State::release_everything() {
  for (Slot& slot : slots) {
    if (slot.group == kNone) continue;
    release(slot.own);
    slot.group = kNone;
    slot.stops = nullptr;
    free_slots.push_back(std::int32_t(&slot - slots.data()));
  }
  for (Group& group : groups) {
    if (group.prompt.rows == 0) continue;
    release(group.prompt);
    group.prompt = {};
    free_groups.push_back(std::int32_t(&group - groups.data()));
  }
  current = kNone;
  requests = {};
  results = nullptr;
}

Sampler::Sampler(const ModelConfig& config, const Numerics& numerics, const ModelExecution& execution, const SamplerOptions& options)
    : state_(std::make_unique<State>(config, numerics, execution, options)) {}
Sampler::~Sampler() = default;

std::vector<std::vector<GeneratedSample>> Sampler::generate(Context& ctx, const Weights& weights,
                                                            std::span<const GenerationRequest> requests,
                                                            const std::function<bool(std::int64_t, std::int64_t, std::int64_t)>& progress) {
  State& s = *state_;
  s.check(weights, requests);
  std::vector<std::vector<GeneratedSample>> out;
  s.begin(requests, out);
  struct Release {
    State& state;
    ~Release() { state.release_everything(); }
  } release{s};
  std::int64_t total = 0;
  for (const GenerationRequest& r : requests) total += r.samples;
  while (s.done < total) {
    s.step(ctx, weights);
    if (!progress || progress(s.done, total, s.sampled)) continue;
    s.interrupted = s.done < total;
    break;
  }
  return out;
}

bool Sampler::interrupted() const { return state_->interrupted; }

std::size_t Sampler::memory_bytes() const {
  const State& s = *state_;
  return s.model.memory_bytes() + s.cache.memory_bytes() + s.hidden.size() + s.logits.size() + bookkeeping_bytes(s.options);
}

std::size_t Sampler::memory_bytes(const ModelConfig& config, const Numerics& numerics, const ModelExecution& execution,
                                  const SamplerOptions& options) {
  const SamplerOptions o = checked(options);
  return Qwen::memory_bytes(config, numerics, execution, max_rows(o), o.max_positions, false) +
         KvCache::bytes_per_position(config, numerics.compute) * std::size_t(o.kv_positions) + hidden_bytes(config, numerics, o) +
         logits_bytes(config, numerics, o) + bookkeeping_bytes(o);
}

}  // namespace plumb
