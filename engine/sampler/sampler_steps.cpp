#include <algorithm>

#include "engine/sampler/sampler_state.h"
#include "kernels/core/error.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/matmul/matmul.h"

namespace plumb {

using sampler_detail::own_rows;
using sampler_detail::Segment;

namespace {
constexpr std::int32_t kFirstRow = 0;
}  // namespace

void Sampler::State::step(Context& ctx, const Weights& weights) {
  tokens.clear();
  positions.clear();
  sequences.clear();
  wanted.clear();
  to_keep = kNone;
  reserve_samples();
  add_decode_rows();
  add_prompt_rows();
  if (!tokens.empty()) compute_logits(ctx, weights);
  draw_tokens(ctx);
  // Only now: samples of the request before may just have drawn from the kept row.
  if (to_keep != kNone) gather_rows(ctx, logits_rows(to_keep, 1), &kFirstRow, logits_rows(kept_row(), 1));
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
    group.prompt = {};
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
  if (group.reserved < request_of(current).samples) to_keep = std::int32_t(wanted.size());
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
  ++done;
  if (++group.finished < requests[group.request].samples) return;
  release(group.prompt);
  group.prompt = {};
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

}  // namespace plumb
