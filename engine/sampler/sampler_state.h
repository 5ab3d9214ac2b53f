// The scheduler behind Sampler.
//
// Requests are taken in order. `current` is the last one opened: the only one whose prompt can be half computed and the
// only one with samples that have no slot yet; the next is opened when it has neither. Each step() is one forward over one
// row of every running sample and up to prefill_tokens rows of prompts, then one token for every sample that can have one.
//
// No deadlock: a request is opened with room for its prompt and at least one of its samples, all samples of a request take
// equal segments, and nothing else is opened before they all have started: room for one comes back when one ends.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/sampler/sampler.h"
#include "kernels/core/buffer.h"

namespace plumb {
namespace sampler_detail {

inline constexpr std::int32_t kNone = -1;

/// Rows of the cache.
struct Segment {
  std::int64_t first = 0;
  std::int64_t rows = 0;
};

/// A request with samples in flight or to come; owns the keys and values of the prompt.
struct Group {
  std::size_t request = 0;
  Segment prompt;             // no rows: unused
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

/// Rows that a sample needs of the cache: its last token is never fed back.
inline std::int64_t own_rows(const GenerationRequest& r) { return r.max_new_tokens - 1; }

}  // namespace sampler_detail

struct Sampler::State {
  using Segment = sampler_detail::Segment;
  using Group = sampler_detail::Group;
  using Slot = sampler_detail::Slot;
  static constexpr std::int32_t kNone = sampler_detail::kNone;

  State(const ModelConfig& config, const Numerics& numerics, const ModelExecution& execution, const SamplerOptions& given);

  void check(const Weights&, std::span<const GenerationRequest>) const;
  void begin(std::span<const GenerationRequest>, std::vector<std::vector<GeneratedSample>>&);
  void step(Context&, const Weights&);
  void release_everything();

  // Phases of a step.
  void reserve_samples();
  void add_decode_rows();
  void add_prompt_rows();
  bool open_next_request();
  void add_prompt_chunk(std::int64_t rows);
  void compute_logits(Context&, const Weights&);
  void draw_tokens(Context&);
  void accept(Slot&);

  std::optional<Segment> allocate(std::int64_t rows);
  void release(const Segment&);
  bool reserve_one(Group&);
  void finish(Slot&, FinishReason);
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
  std::int32_t to_keep = kNone;      // of those, the row to be kept for samples that have no slot yet
  std::vector<std::int32_t> ready;   // slots that get a token

  // One call of generate().
  std::span<const GenerationRequest> requests;
  std::vector<std::vector<GeneratedSample>>* results = nullptr;
  std::size_t next_request = 0;
  std::int32_t current = kNone;
  std::int64_t done = 0;
  std::int64_t sampled = 0;
  bool interrupted = false;
};

}  // namespace plumb
