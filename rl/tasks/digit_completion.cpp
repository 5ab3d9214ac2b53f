#include "rl/tasks/digit_completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "kernels/core/error.h"

namespace plumb {
namespace {

constexpr int kMostModulus = 1'000'000;
constexpr int kMostTerms = 10'000;

int width(int number) { return int(std::to_string(number).size()); }

/// Reads a number and the character behind it (0: the end of the text).
std::optional<std::int64_t> take_number(std::string_view& text, char end) {
  std::int64_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc() || value < 0) return std::nullopt;
  text.remove_prefix(std::size_t(stop - text.data()));
  if (end == 0) return text.empty() ? std::optional(value) : std::nullopt;
  if (!text.starts_with(end)) return std::nullopt;
  text.remove_prefix(1);
  return value;
}

}  // namespace

DigitCompletion::DigitCompletion(const TaskConfig& config, std::uint64_t seed)
    : GeneratedTask(seed),
      min_modulus_(config.min_modulus),
      max_modulus_(config.max_modulus),
      min_terms_(config.min_terms),
      max_terms_(config.max_terms),
      per_token_(config.per_token_reward) {
  if (min_modulus_ < 2 || max_modulus_ < min_modulus_ || max_modulus_ > kMostModulus) {
    throw UsageError(fmt::format("task.min_modulus {} and task.max_modulus {}: expected 2 <= min <= max <= {}", min_modulus_, max_modulus_,
                                 kMostModulus));
  }
  if (min_terms_ < 0 || max_terms_ < min_terms_ || max_terms_ > kMostTerms) {
    throw UsageError(
        fmt::format("task.min_terms {} and task.max_terms {}: expected 0 <= min <= max <= {}", min_terms_, max_terms_, kMostTerms));
  }
  read_files(config);
}

GeneratedTask::Draw DigitCompletion::draw(const RandomKey& key, std::uint64_t first) const {
  const std::uint64_t max = std::uint64_t(min_modulus_) + random_below(key, first, std::uint64_t(max_modulus_ - min_modulus_) + 1);
  const std::uint64_t terms = std::uint64_t(min_terms_) + random_below(key, first + 1, std::uint64_t(max_terms_ - min_terms_) + 1);
  const std::uint64_t a = random_below(key, first + 2, max + 1);  // max itself may come first
  const std::uint64_t b = random_below(key, first + 3, max);
  return {.prompt = fmt::format("{},{}:{},{}", a, b, max, terms), .identity = identity_of(max, terms, a, b)};
}

void DigitCompletion::each_problem(const std::function<bool(const Identity&)>& visit) const {
  for (auto max = std::uint64_t(min_modulus_); max <= std::uint64_t(max_modulus_); ++max) {
    for (auto terms = std::uint64_t(min_terms_); terms <= std::uint64_t(max_terms_); ++terms) {
      for (std::uint64_t a = 0; a <= max; ++a) {
        for (std::uint64_t b = 0; b < max; ++b) {
          if (!visit(identity_of(max, terms, a, b))) return;
        }
      }
    }
  }
}

int DigitCompletion::longest_prompt() const { return 2 * width(max_modulus_) + width(max_modulus_ - 1) + width(max_terms_) + 3; }
int DigitCompletion::longest_answer() const { return max_terms_ == 0 ? 0 : max_terms_ * (width(max_modulus_ - 1) + 1) - 1; }

std::optional<std::string> DigitCompletion::solve(std::string_view prompt) const {
  const auto first = take_number(prompt, ',');
  const auto second = first ? take_number(prompt, ':') : std::nullopt;
  const auto max = second ? take_number(prompt, ',') : std::nullopt;
  const auto terms = max ? take_number(prompt, '\0') : std::nullopt;
  if (!terms || *max < 1 || *max > kMostModulus || *terms > kMostTerms) return std::nullopt;
  const std::int64_t step = (*second % *max - *first % *max + *max) % *max;
  std::int64_t value = *second % *max;
  std::string answer;
  for (std::int64_t i = 0; i < *terms; ++i) {
    value = (value + step) % *max;
    if (i > 0) answer += ',';
    answer += std::to_string(value);
  }
  return answer;
}

Reward DigitCompletion::reward(const Problem& problem, const std::vector<std::string>& pieces, bool finished) const {
  const LeadingRight right = leading_right(problem.answer, pieces, finished);
  const double length = double(problem.answer.size()) + 1;
  Reward reward{.total = right.total / length};
  if (!per_token_) return reward;
  for (const int n : right.per_piece) reward.per_token.push_back(n / length);
  return reward;
}

}  // namespace plumb
