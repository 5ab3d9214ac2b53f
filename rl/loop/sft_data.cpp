#include "rl/loop/sft_data.h"

#include <fmt/format.h>

#include <algorithm>

#include "rl/rollout/rollout.h"

namespace plumb {

SftSource::SftSource(const SftConfig& config, const ModelSetup& setup, const Task& task, ProblemStream& problems, std::uint64_t seed)
    : setup_(setup), problems_(problems) {
  if (config.data.empty()) {
    longest_ = task.max_prompt_chars() + std::int64_t(setup.tokenizer.encode("", true).size()) + task.max_answer_chars() + 1;
    return;
  }
  JsonlOptions options;
  options.encode = [&setup](std::string_view text) { return setup.tokenizer.encode(text, true); };
  if (!setup.model.eos_ids.empty()) options.eos_id = setup.model.eos_ids.front();
  options.vocab_size = setup.model.vocab_size;
  options.max_tokens = setup.model.max_positions;
  options.too_long = config.too_long;
  options.skip_empty = config.skip_empty;
  file_ = read_sft_jsonl(config.data, options);
  order_.emplace(seed, std::uint32_t(file_.examples.size()), config.shuffle);
  for (const SftExample& e : file_.examples) longest_ = std::max(longest_, std::int64_t(e.tokens.size()));
}

std::string SftSource::left_out() const {
  const SftData& f = file_;
  if (f.skipped_empty + f.dropped + f.truncated == 0) return "";
  return fmt::format("supervised examples: {} used, {} of them cut; passed over: {} empty, {} too long", f.examples.size(), f.truncated,
                     f.skipped_empty, f.dropped);
}

SftExample SftSource::example_of(const Problem& problem) const {
  SftExample e{.tokens = prompt_ids(setup_.tokenizer, problem)};
  e.prompt_len = std::int64_t(e.tokens.size());
  const auto answer = setup_.tokenizer.encode(problem.answer);
  e.tokens.insert(e.tokens.end(), answer.begin(), answer.end());
  if (!setup_.model.eos_ids.empty()) e.tokens.push_back(setup_.model.eos_ids.front());
  return e;
}

std::vector<SftExample> SftSource::next(RunState& state, std::int64_t count) {
  std::vector<SftExample> examples;
  if (order_) {
    for (std::int64_t i = 0; i < count; ++i) examples.push_back(file_.examples[order_->at(state.examples++)]);
    return examples;
  }
  for (const Problem& problem : problems_.train(state.problems, count)) examples.push_back(example_of(problem));
  state.problems += std::uint64_t(count);
  return examples;
}

}  // namespace plumb
