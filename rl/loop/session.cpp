#include "rl/loop/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "engine/config/model_yaml.h"
#include "engine/trainer/model_execution.h"
#include "model/tokenizer/stream.h"

namespace plumb {

namespace {

std::filesystem::path model_folder(const RunConfig& config, const std::filesystem::path& folder) {
  return folder.empty() ? std::filesystem::path(config.model.path) : folder;
}

Tokenizer set_up_tokenizer(const RunConfig& config, const Task& task, const std::filesystem::path& folder) {
  if (!config.model.tokenizer.empty()) return Tokenizer::load(config.model.tokenizer);
  if (!folder.empty() && Tokenizer::present(folder)) return Tokenizer::load(folder);
  return Tokenizer::characters(task.alphabet());
}

std::optional<Isa> isa_of(IsaChoice choice) {
  switch (choice) {
    case IsaChoice::automatic: return std::nullopt;
    case IsaChoice::avx2: return Isa::avx2;
    case IsaChoice::avx512: return Isa::avx512;
    case IsaChoice::avx512bf16: return Isa::avx512bf16;
    case IsaChoice::avx512mixed: return Isa::avx512mixed;
  }
  return std::nullopt;
}

/// Makes a matcher for each answer; null without stop strings.
std::function<std::function<bool(std::int32_t)>()> stop_matchers(const std::vector<std::string>& stops, const Tokenizer& tokenizer) {
  if (stops.empty()) return nullptr;
  return [stops, tokenizer] {
    struct Watch {
      StreamDecoder decoder;
      StopMatcher matcher;
    };
    const auto watch = std::make_shared<Watch>(Watch{.decoder = StreamDecoder(tokenizer), .matcher = StopMatcher(stops)});
    return [watch](std::int32_t id) {
      watch->matcher.push(watch->decoder.push(id));
      return watch->matcher.stopped();
    };
  };
}

void copy_buffer(Buffer& to, const Buffer& from) { to.write(from.data(), 0, from.size()); }

}  // namespace

ModelSetup set_up_model(const RunConfig& config, const Task& task, const std::filesystem::path& override_folder) {
  const std::filesystem::path folder = model_folder(config, override_folder);
  ModelSetup setup{.tokenizer = set_up_tokenizer(config, task, folder)};
  const bool from_folder = !folder.empty();
  setup.model = from_folder ? read_hf_config(folder) : read_model_yaml(find_model_yaml(config.model.config));
  ModelConfig& m = setup.model;
  if (m.vocab_size == 0) m.vocab_size = setup.tokenizer.vocab_size();
  if (setup.tokenizer.vocab_size() > m.vocab_size) {
    throw UsageError(fmt::format("the tokenizer has {} tokens, but the model's vocab_size is {}: they do not belong together",
                                 setup.tokenizer.vocab_size(), m.vocab_size));
  }
  if (m.eos_ids.empty() && setup.tokenizer.eos_id()) m.eos_ids = {*setup.tokenizer.eos_id()};
  if (!m.bos_id) m.bos_id = setup.tokenizer.bos_id();
  if (!m.pad_id) m.pad_id = setup.tokenizer.pad_id();
  validate(m);
  return setup;
}

void starting_parameters(const RunConfig& config, const ParameterList& list, const ModelConfig& model, Buffer& flat,
                         const std::filesystem::path& override_folder) {
  const std::filesystem::path folder = model_folder(config, override_folder);
  if (folder.empty()) return random_parameters(list, model, config.model.init_seed, flat);
  load_hf_parameters(folder, list, model, flat);
}

NumericsSetup set_up_numerics(const NumericsSection& section, std::int64_t step) {
  NumericsSetup s{.rollout = resolve_numerics(section, NumericsSide::rollout, step),
                  .update = resolve_numerics(section, NumericsSide::update, step),
                  .reference = resolve_numerics(section, NumericsSide::reference, step)};
  // A sampler knows no sequence's end: a trainer that is to have its bits must not know it either.
  const bool one = s.update == s.rollout;
  s.rollout.reductions = without_sequence_end(s.rollout.reductions);
  if (one) s.update.reductions = s.rollout.reductions;
  return s;
}

std::unique_ptr<Context> make_context(const ExecutionConfig& execution) {
  const int threads = execution.threads > 0 ? execution.threads : std::max(1, int(std::thread::hardware_concurrency()));
  const std::optional<Isa> isa = isa_of(execution.isa);
  if (isa && !machine_has(*isa)) {
    throw UsageError(fmt::format("execution.isa: this machine cannot run {}; auto takes {}", name_of(*isa), name_of(best_isa())));
  }
  return std::make_unique<Context>(threads, isa ? *isa : best_isa());
}

SequenceLengths task_lengths(const RunConfig& config, const ModelSetup& setup, const Task& task) {
  // A token is at least one byte of text; what a tokenizer puts in front is counted by encoding nothing.
  const std::int64_t special = std::int64_t(setup.tokenizer.encode("", true).size());
  SequenceLengths lengths{.prompt = task.max_prompt_chars() + special};
  lengths.sequence = lengths.prompt + config.sampling.max_new_tokens;
  if (lengths.sequence > setup.model.max_positions) {
    throw UsageError(fmt::format("a prompt of {} tokens and sampling.max_new_tokens {} do not fit the model's {} positions", lengths.prompt,
                                 config.sampling.max_new_tokens, setup.model.max_positions));
  }
  return lengths;
}

void check_held_out(const RunConfig& config, const Task& task) {
  const auto wanted = std::uint64_t(config.eval.problems);
  if (task.size(Split::held_out) > 0) return;
  const std::uint64_t there_are = task.different(Split::held_out, wanted);
  if (there_are >= wanted) return;
  throw UsageError(
      fmt::format("configuration: eval.problems is {}, but task {} has only {} different held-out problems with these settings", wanted,
                  config.task.name, there_are));
}

void check_alphabet(const Tokenizer& tokenizer, const Task& task, const std::string& task_name) {
  for (const char c : task.alphabet()) {
    const std::string character(1, c);
    std::string written;
    try {
      for (const std::int32_t id : tokenizer.encode(character)) written += tokenizer.token_bytes(id);
    } catch (const Error&) {
      written.clear();
    }
    if (written == character) continue;
    throw UsageError(
        fmt::format("the tokenizer has no '{}', which task {} is written with: model and task do not belong together", c, task_name));
  }
}

SamplerOptions sampler_sizes(const RunConfig& config, SequenceLengths lengths, std::int64_t sequences) {
  SamplerOptions options;
  options.max_sequences = int(std::min<std::int64_t>(config.execution.sampler_sequences, sequences));
  options.prefill_tokens = config.execution.prefill_tokens;
  options.max_positions = lengths.sequence;
  options.kv_positions = options.max_sequences * lengths.sequence;
  return options;
}

std::unique_ptr<Sampler> make_sampler(const RunConfig& config, const ModelSetup& setup, const Numerics& rollout, SequenceLengths lengths,
                                      std::int64_t sequences) {
  SamplerOptions options = sampler_sizes(config, lengths, sequences);
  options.eos_ids = setup.model.eos_ids;
  options.make_stop_matcher = stop_matchers(config.sampling.stop, setup.tokenizer);
  return std::make_unique<Sampler>(setup.model, rollout, model_execution(config.execution), options);
}

RolloutWeights::RolloutWeights(Trainer& trainer, const Numerics& rollout) : trainer_(trainer) {
  if (rollout.compute != trainer.numerics().compute) own_ = std::make_unique<Weights>(trainer.model_config(), rollout.compute);
}

void RolloutWeights::refresh(Context& ctx) {
  if (own_) set_weights(ctx, *own_, trainer_.state().master);
}

Reference::Reference(const RunConfig& config, const ModelConfig& model, const Numerics& numerics, std::int64_t max_sequence)
    : execution_(config.execution), max_sequence_(max_sequence), weights_(model, numerics.compute) {
  scorer_.emplace(model, numerics, execution_, max_sequence);
  state_.master = Buffer(std::size_t(weights_.parameters().flat_size()) * sizeof(float));
}

void Reference::set_numerics(const Numerics& numerics) {
  const ModelConfig model = scorer_->model_config();
  scorer_.emplace(model, numerics, execution_, max_sequence_);
}

void Reference::freeze(Context& ctx, Trainer& trainer) {
  copy_buffer(state_.master, trainer.state().master);
  refresh(ctx);
}

void Reference::refresh(Context& ctx) { set_weights(ctx, weights_, state_.master); }

TokenScores Reference::score(Context& ctx, std::span<const TrainSequence> sequences, float temperature) {
  return scorer_->score(ctx, weights_, sequences, temperature);
}

}  // namespace plumb
