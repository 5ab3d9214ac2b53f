#include "rl/tasks/generated_task.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/data/json_lines.h"
#include "kernels/core/error.h"
#include "model/files/files.h"

namespace plumb {
namespace {

constexpr std::uint64_t kMostAttempts = 1 << 10;
constexpr std::uint64_t kNumbersPerAttempt = 8;
constexpr std::uint32_t kHeldOutShare = 10;  // one problem in so many is held out

/// Which split a problem belongs to, whatever the seed: what one run trains on no other run is tested on.
Split split_of(const std::array<std::uint64_t, 2>& identity) {
  const auto words = random_words({.seed = identity[0], .purpose = Purpose::task}, identity[1]);
  return words[0] % kHeldOutShare == 0 ? Split::held_out : Split::train;
}

int longest(const std::vector<Problem>& a, const std::vector<Problem>& b, std::string Problem::*text) {
  std::size_t most = 0;
  for (const auto* list : {&a, &b}) {
    for (const Problem& problem : *list) most = std::max(most, (problem.*text).size());
  }
  return int(most);
}

/// The prompt of a line, as text or as a chat with one message.
const std::string& prompt_of(const JsonLine& line) {
  if (!line.has("prompt")) line.fail("no prompt");
  const nlohmann::json& prompt = line.at("prompt");
  if (prompt.is_string()) return prompt.get_ref<const std::string&>();
  const bool chat = prompt.is_array() && prompt.size() == 1 && prompt[0].is_object() && prompt[0].contains("content");
  if (!chat || !prompt[0]["content"].is_string()) line.fail("prompt is neither text nor a chat of one message");
  return prompt[0]["content"].get_ref<const std::string&>();
}

Problem problem_of(const JsonLine& line, const GeneratedTask& task) {
  Problem problem{.prompt = prompt_of(line)};
  if (blank(problem.prompt)) line.fail("the prompt is empty");
  if (line.has("answer")) {
    problem.answer = line.text("answer");
    return problem;
  }
  const auto answer = task.solve(problem.prompt);
  if (!answer) line.fail(fmt::format("no answer, and prompt {} is not one of this task", in_quotes(problem.prompt)));
  problem.answer = *answer;
  return problem;
}

}  // namespace

void GeneratedTask::read_files(const TaskConfig& config) {
  if (config.train_file.empty() != config.held_out_file.empty()) {
    throw UsageError("task.train_file and task.held_out_file go together: set both or none");
  }
  if (config.train_file.empty()) return;
  train_ = read_problems(config.train_file, *this);
  held_out_ = read_problems(config.held_out_file, *this);
}

Problem GeneratedTask::problem(Split split, std::uint64_t index) const {
  if (!listed(split).empty()) return listed(split).at(index);
  // Each split has random numbers of its own; a draw that belongs to the other split is drawn again.
  const RandomKey key{.seed = seed_, .purpose = Purpose::task, .step = std::uint32_t(split)};
  for (std::uint64_t attempt = 0; attempt < kMostAttempts; ++attempt) {
    const Draw drawn = draw(key, (index * kMostAttempts + attempt) * kNumbersPerAttempt);
    if (split_of(drawn.identity) == split) return {.prompt = drawn.prompt, .answer = solve(drawn.prompt).value()};
  }
  throw UsageError("task: so few different problems that none is left for one of the splits; allow larger numbers");
}

std::uint64_t GeneratedTask::different(Split split, std::uint64_t enough) const {
  if (!listed(split).empty()) return std::min(enough, size(split));
  std::uint64_t count = 0;
  each_problem([&](const Identity& identity) {
    count += split_of(identity) == split;
    return count < enough;
  });
  return count;
}

int GeneratedTask::max_prompt_chars() const { return train_.empty() ? longest_prompt() : longest(train_, held_out_, &Problem::prompt); }
int GeneratedTask::max_answer_chars() const { return train_.empty() ? longest_answer() : longest(train_, held_out_, &Problem::answer); }

std::vector<Problem> read_problems(const std::string& file, const GeneratedTask& task) {
  std::vector<Problem> problems;
  for_each_json_line(file, [&](const JsonLine& line) { problems.push_back(problem_of(line, task)); });
  if (problems.empty()) throw Error(fmt::format("{}: holds no problem", file));
  return problems;
}

LeadingRight leading_right(std::string_view answer, const std::vector<std::string>& pieces, bool finished) {
  LeadingRight out{.per_piece = std::vector<int>(pieces.size(), 0)};
  std::size_t at = 0;  // characters of the answer that are there
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::string& piece = pieces[i];
    const bool eos = finished && i + 1 == pieces.size();
    int right = 0;
    if (eos) {
      right = at == answer.size() ? 1 : 0;
    } else {
      while (std::size_t(right) < piece.size() && at < answer.size() && piece[std::size_t(right)] == answer[at]) {
        ++right;
        ++at;
      }
    }
    out.per_piece[i] = right;
    out.total += right;
    // A token without text in the middle is not what was asked for either.
    if (!eos && (piece.empty() || std::size_t(right) < piece.size())) break;
  }
  return out;
}

}  // namespace plumb
