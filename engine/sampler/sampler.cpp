#include "engine/sampler/sampler.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/core/error.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/matmul/matmul.h"

namespace plumb {
namespace {

constexpr std::int32_t kNone = -1;

/// Rows of the cache.
struct Segment {
  std::int64_t first = 0;
  std::int64_t rows = 0;
};

/// A request with samples in flight or to come; owns the keys and values of the prompt.
struct Group {
  std::size_t request = 0;
  Segment prompt;
  std::int64_t computed = 0;  // positions of the prompt that are in the cache
  int reserved = 0;           // samples that have been given a slot
  int finished = 0;
};

/// A sample in flight; owns the keys and values of its answer.
struct Slot {
  std::int32_t group = kNone;  // kNone: free
  int sample = 0;              // within the request
  Segment own;
  std::int64_t generated = 0;
  std::int32_t token = 0;           // the last one
  std::int32_t logits_row = kNone;  // where the next token comes from; kNone: not computed yet
  SampledToken drawn;
  std::function<bool(std::int32_t)> stops;
};

std::int64_t own_rows(const GenerationRequest& r) { return r.max_new_tokens - 1; }  // the last token is never fed back

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
  const Sites sites = numerics.sites(config.layers - 1, config.layers, Place::block);
  return sites.rounded(Site::lm_head_logits) ? DType::bf16 : DType::f32;
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

// Requests are taken in order. `current` is the last one opened: the only one whose prompt can be half computed and the
// only one with samples that have no slot yet; the next is opened when it has neither. Each step() is one forward over one
// row of every running sample and up to prefill_tokens rows of prompts, then one token for every sample that can have one.
//
// No deadlock: a request is opened with room for its prompt and at least one of its samples, all samples of a request take
// equal segments, and nothing else is opened before they all have started: room for one comes back when one ends.
struct Sampler::State {
  State(const ModelConfig& config, const Numerics& numerics, const ModelExecution& execution, const SamplerOptions& given);

  void check(const Weights&, std::span<const GenerationRequest>) const;
  void begin(std::span<const GenerationRequest>, std::vector<std::vector<GeneratedSample>>&);
  bool work_left() const { return running > 0 || current != kNone || next_request < requests.size(); }
  void step(Context&, const Weights&);
  void release_everything();

  // Phases of a step.
  void reserve_samples();
  void add_decode_rows();
  void add_prompt_rows();
  bool open_next_request();
  void add_prompt_chunk(std::int64_t rows);
  void compute_logits(Context&, const Weights&);
  void keep_logits_of_current(Context&);
  void draw_tokens(Context&);
  void accept(Slot&);

  std::optional<Segment> allocate(std::int64_t rows);
  void release(const Segment&);
  bool reserve_one(Group&);
  void finish(Slot&, FinishReason);
  void close_if_done(std::int32_t group);
  std::int32_t add_rows(const SequenceRows&, const std::int32_t* ids);
  const GenerationRequest& request_of(std::int32_t group) const { return requests[groups[std::size_t(group)].request]; }
  Mat logits_rows(std::int64_t first, std::int64_t count) const {
    return make_mat(logits.data(), options.max_sequences + 1, model.config().vocab_size, logits_type).slice_rows(first, count);
  }
  std::int32_t kept_row() const { return options.max_sequences; }

  SamplerOptions options;
  Qwen model;
  KvCache cache;
  DType logits_type;
  Buffer hidden;  // (max_sequences, D) compute dtype: the rows whose logits are wanted
  Buffer logits;  // (max_sequences + 1, V); the last row is kept for samples of `current` that have no slot yet

  std::vector<Slot> slots;
  std::vector<Group> groups;
  std::vector<std::int32_t> free_slots;
  std::vector<std::int32_t> free_groups;

  // The batch of one step.
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> positions;
  std::vector<SequenceRows> sequences;
  std::vector<std::int32_t> wanted;  // batch rows whose logits are wanted
  std::vector<std::int32_t> ready;   // slots that get a token

  // One call of generate().
  std::span<const GenerationRequest> requests;
  std::vector<std::vector<GeneratedSample>>* results = nullptr;
  std::size_t next_request = 0;
  std::int32_t current = kNone;
  std::int64_t running = 0;  // slots in use
  std::int64_t done = 0;
  std::int64_t sampled = 0;
  bool interrupted = false;
};

Sampler::State::State(const ModelConfig& config, const Numerics& numerics, const ModelExecution& execution, const SamplerOptions& given)
    : options(checked(given)),
      model(config, numerics, execution, max_rows(options), options.max_positions, false),
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
      throw Error(fmt::format("prompt {} has {} tokens; with max_new_tokens {} it needs {} positions of the KV cache, which has {}", i, prompt,
                              r.max_new_tokens, prompt + own_rows(r), options.kv_positions));
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

void Sampler::State::step(Context& ctx, const Weights& weights) {
  tokens.clear();
  positions.clear();
  sequences.clear();
  wanted.clear();
  reserve_samples();
  add_decode_rows();
  add_prompt_rows();
  if (!tokens.empty()) compute_logits(ctx, weights);
  draw_tokens(ctx);
}

void Sampler::State::reserve_samples() {
  if (current == kNone) return;
  while (reserve_one(groups[std::size_t(current)])) {
  }
}

/// Gives the next sample of the group a slot and room in the cache; false when there is none or no sample is left.
bool Sampler::State::reserve_one(Group& group) {
  const GenerationRequest& r = requests[group.request];
  if (group.reserved == r.samples || free_slots.empty()) return false;
  const std::optional<Segment> own = allocate(own_rows(r));
  if (!own) return false;
  Slot& slot = slots[std::size_t(free_slots.back())];
  free_slots.pop_back();
  slot.group = std::int32_t(&group - groups.data());
  slot.sample = group.reserved++;
  slot.own = *own;
  slot.generated = 0;
  slot.logits_row = group.computed == group.prompt.rows ? kept_row() : kNone;
  slot.stops = options.make_stop_matcher ? options.make_stop_matcher() : nullptr;
  GeneratedSample& result = (*results)[group.request][std::size_t(slot.sample)];
  const auto n = std::size_t(r.max_new_tokens);
  result.tokens.reserve(n);
  result.logprobs.reserve(n);
  result.logprobs_kept.reserve(n);
  result.argmax.reserve(n);
  ++running;
  return true;
}

void Sampler::State::add_decode_rows() {
  for (Slot& slot : slots) {
    if (slot.group == kNone || slot.generated == 0) continue;
    const Group& group = groups[std::size_t(slot.group)];
    const std::int32_t row = add_rows({.rows = 1,
                                       .first_pos = group.prompt.rows + slot.generated - 1,
                                       .kv_prefix = group.prompt.first,
                                       .prefix_len = group.prompt.rows,
                                       .kv_own = slot.own.first},
                                      &slot.token);
    slot.logits_row = std::int32_t(wanted.size());
    wanted.push_back(row);
  }
}

void Sampler::State::add_prompt_rows() {
  for (std::int64_t budget = options.prefill_tokens; budget > 0;) {
    if (current == kNone && !open_next_request()) return;
    Group& group = groups[std::size_t(current)];
    const std::int64_t rows = std::min(budget, group.prompt.rows - group.computed);
    if (rows > 0) add_prompt_chunk(rows);
    budget -= rows;
    const bool computed = group.computed == group.prompt.rows;
    if (!computed || group.reserved < request_of(current).samples) return;
    current = kNone;  // all of it is under way
  }
}

bool Sampler::State::open_next_request() {
  while (next_request < requests.size() && requests[next_request].samples == 0) ++next_request;
  if (next_request == requests.size() || free_slots.empty()) return false;
  const std::optional<Segment> prompt = allocate(std::int64_t(requests[next_request].prompt.size()));
  if (!prompt) return false;
  Group& group = groups[std::size_t(free_groups.back())];
  group = {.request = next_request, .prompt = *prompt};
  if (!reserve_one(group)) {
    release(*prompt);
    return false;
  }
  current = free_groups.back();
  free_groups.pop_back();
  ++next_request;
  reserve_samples();
  return true;
}

void Sampler::State::add_prompt_chunk(std::int64_t rows) {
  Group& group = groups[std::size_t(current)];
  const std::int32_t first_row = add_rows({.rows = rows, .first_pos = group.computed, .kv_own = group.prompt.first},
                                          request_of(current).prompt.data() + group.computed);
  group.computed += rows;
  if (group.computed < group.prompt.rows) return;
  for (Slot& slot : slots)
    if (slot.group == current) slot.logits_row = std::int32_t(wanted.size());
  wanted.push_back(first_row + std::int32_t(rows) - 1);
}

std::int32_t Sampler::State::add_rows(const SequenceRows& rows, const std::int32_t* ids) {
  const auto first_row = std::int32_t(tokens.size());
  sequences.push_back(rows);
  sequences.back().first_row = first_row;
  tokens.insert(tokens.end(), ids, ids + rows.rows);
  for (std::int64_t i = 0; i < rows.rows; ++i) positions.push_back(std::int32_t(rows.first_pos + i));
  return first_row;
}

void Sampler::State::compute_logits(Context& ctx, const Weights& weights) {
  const Batch batch = {.rows = std::int64_t(tokens.size()),
                       .tokens = tokens.data(),
                       .positions = positions.data(),
                       .sequences = sequences.data(),
                       .n_sequences = std::int64_t(sequences.size())};
  const ConstMat all = model.forward(ctx, weights, batch, &cache, false);
  const auto n = std::int64_t(wanted.size());
  if (n == 0) return;
  const Mat rows = make_mat(hidden.data(), n, all.cols, all.dtype);
  gather_rows(ctx, all, wanted.data(), rows);
  matmul(ctx, {.a = {rows}, .packed = weights.packed(Role::lm_head), .c = logits_rows(0, n)}, model.numerics().reductions.matmul);
  keep_logits_of_current(ctx);
}

/// When the prompt of `current` ended in this forward, its logits were the last ones.
void Sampler::State::keep_logits_of_current(Context& ctx) {
  if (current == kNone) return;
  const Group& group = groups[std::size_t(current)];
  const bool computed_now = group.computed == group.prompt.rows && sequences.back().kv_own == group.prompt.first;
  if (!computed_now || group.reserved == request_of(current).samples) return;
  const auto last = std::int32_t(wanted.size()) - 1;
  gather_rows(ctx, logits_rows(0, last + 1), &last, logits_rows(kept_row(), 1));
}

void Sampler::State::draw_tokens(Context& ctx) {
  ready.clear();
  for (std::size_t s = 0; s < slots.size(); ++s)
    if (slots[s].group != kNone && slots[s].logits_row != kNone) ready.push_back(std::int32_t(s));
  require(!ready.empty() || !tokens.empty(), "internal: the sampler makes no progress");
  const std::int64_t vocab = model.config().vocab_size;
  const Sites sites = model.head_sites();
  constexpr std::int64_t kGrainLogits = 4096;
  ctx.parallel_for(std::int64_t(ready.size()), std::max<std::int64_t>(1, kGrainLogits / vocab),
                   [&](std::int64_t begin, std::int64_t end, int thread) {
                     float* work = ctx.scratch(thread, ScratchSlot::caller0).get<float>(2 * vocab);
                     for (std::int64_t i = begin; i < end; ++i) {
                       Slot& slot = slots[std::size_t(ready[std::size_t(i)])];
                       const GenerationRequest& r = request_of(slot.group);
                       RandomKey key = r.key;
                       key.sample = std::uint32_t(r.first_sample + slot.sample);
                       const float u = random_uniform(key, std::uint64_t(slot.generated));
                       slot.drawn = sample_token(logits_rows(slot.logits_row, 1).data, logits_type, vocab, r.params, u, sites, work);
                     }
                   });
  for (const std::int32_t s : ready) accept(slots[std::size_t(s)]);
}

void Sampler::State::accept(Slot& slot) {
  const GenerationRequest& r = request_of(slot.group);
  GeneratedSample& result = (*results)[groups[std::size_t(slot.group)].request][std::size_t(slot.sample)];
  const std::int32_t token = slot.drawn.token;
  result.tokens.push_back(token);
  result.logprobs.push_back(slot.drawn.logprob);
  result.logprobs_kept.push_back(slot.drawn.logprob_kept);
  result.argmax.push_back(slot.drawn.argmax);
  slot.token = token;
  slot.logits_row = kNone;
  ++slot.generated;
  ++sampled;
  if (std::find(options.eos_ids.begin(), options.eos_ids.end(), token) != options.eos_ids.end()) return finish(slot, FinishReason::eos);
  if (slot.stops && slot.stops(token)) return finish(slot, FinishReason::stop);
  if (slot.generated == r.max_new_tokens) finish(slot, FinishReason::length);
}

void Sampler::State::finish(Slot& slot, FinishReason reason) {
  const std::int32_t index = slot.group;
  Group& group = groups[std::size_t(index)];
  (*results)[group.request][std::size_t(slot.sample)].finish = reason;
  release(slot.own);
  slot.group = kNone;
  slot.stops = nullptr;
  free_slots.push_back(std::int32_t(&slot - slots.data()));
  --running;
  ++done;
  if (++group.finished < requests[group.request].samples) return;
  release(group.prompt);
  free_groups.push_back(index);
  if (current == index) current = kNone;
}

std::optional<Segment> Sampler::State::allocate(std::int64_t rows) {
  if (rows == 0) return Segment{};
  const std::int64_t first = cache.allocate(rows);
  if (first < 0) return std::nullopt;
  return Segment{.first = first, .rows = rows};
}

void Sampler::State::release(const Segment& segment) {
  if (segment.rows > 0) cache.release(segment.first, segment.rows);
}

/// After an interruption or an exception: the cache is as at construction.
void Sampler::State::release_everything() {
  for (Slot& slot : slots) {
    if (slot.group == kNone) continue;
    release(slot.own);
    slot.group = kNone;
    slot.stops = nullptr;
    free_slots.push_back(std::int32_t(&slot - slots.data()));
  }
}

}  // namespace plumb
