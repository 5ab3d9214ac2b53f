#include "rl/tasks/addition.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/core/error.h"
#include "model/files/files.h"

namespace plumb {
namespace {

constexpr int kMostDigits = 18;  // both numbers fit 64 bits

bool all_digits(std::string_view text) { return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos; }

/// The sum of two numbers, least significant digit first, with one digit more than the longer.
std::string sum_reversed(std::string_view a, std::string_view b) {
  std::string out;
  int carry = 0;
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const int s = carry + (i < a.size() ? a[i] - '0' : 0) + (i < b.size() ? b[i] - '0' : 0);
    out += char('0' + s % 10);
    carry = s / 10;
  }
  return out + char('0' + carry);
}

}  // namespace

Addition::Addition(const TaskConfig& config, std::uint64_t seed)
    : GeneratedTask(seed), digits_(config.digits), reversed_(config.digit_order == DigitOrder::reversed), zero_pad_(config.zero_pad) {
  if (digits_ < 1 || digits_ > kMostDigits) throw UsageError(fmt::format("task.digits is {}: expected 1 to {}", digits_, kMostDigits));
  if (config.per_token_reward) throw UsageError("task.per_token_reward is for digit_completion, not for addition");
  for (int i = 0; i < digits_; ++i) limit_ *= 10;
  read_question(config.question);
  read_files(config);
}

void Addition::read_question(const std::string& question) {
  const std::string a = "{a}", b = "{b}";
  const auto at_a = question.find(a), at_b = question.find(b);
  const bool both = at_a != std::string::npos && at_b != std::string::npos && at_a < at_b;
  if (!both || question.find(a, at_a + 1) != std::string::npos || question.find(b, at_b + 1) != std::string::npos) {
    throw UsageError(fmt::format("task.question is {}: {{a}} and then {{b}}, each once, is right", in_quotes(question)));
  }
  before_ = question.substr(0, at_a);
  between_ = question.substr(at_a + a.size(), at_b - at_a - a.size());
  after_ = question.substr(at_b + b.size());
  const auto digit_at = [](const std::string& text, std::size_t i) { return i < text.size() && all_digits(text.substr(i, 1)); };
  const bool touches = digit_at(before_, before_.size() - 1) || digit_at(between_, 0) || digit_at(between_, between_.size() - 1) ||
                       digit_at(after_, 0) || between_.empty();
  if (touches) throw UsageError(fmt::format("task.question is {}: a digit touches a number", in_quotes(question)));
}

std::string Addition::alphabet() const {
  std::string out = "0123456789";
  for (const char c : before_ + between_ + after_) {
    if (out.find(c) == std::string::npos) out += c;
  }
  return out;
}

std::string Addition::written(std::uint64_t number) const {
  std::string text = zero_pad_ ? fmt::format("{:0{}}", number, digits_) : fmt::format("{}", number);
  if (reversed_) std::reverse(text.begin(), text.end());
  return text;
}

GeneratedTask::Draw Addition::draw(const RandomKey& key, std::uint64_t first) const {
  const std::uint64_t a = random_below(key, first, limit_);
  const std::uint64_t b = random_below(key, first + 1, limit_);
  return {.prompt = before_ + written(a) + between_ + written(b) + after_, .identity = identity_of(a, b)};
}

GeneratedTask::Identity Addition::identity_of(std::uint64_t a, std::uint64_t b) { return {std::min(a, b), std::max(a, b)}; }

void Addition::each_problem(const std::function<bool(const Identity&)>& visit) const {
  for (std::uint64_t a = 0; a < limit_; ++a) {
    for (std::uint64_t b = 0; b < limit_; ++b) {
      if (!visit(identity_of(a, b))) return;
    }
  }
}

std::optional<std::string> Addition::solve(std::string_view prompt) const {
  if (prompt.size() < before_.size() + after_.size() || !prompt.starts_with(before_) || !prompt.ends_with(after_)) return std::nullopt;
  const std::string_view numbers = prompt.substr(before_.size(), prompt.size() - before_.size() - after_.size());
  const auto between = numbers.find(between_);
  if (between == std::string_view::npos) return std::nullopt;
  std::string a(numbers.substr(0, between));
  std::string b(numbers.substr(between + between_.size()));
  if (!all_digits(a) || !all_digits(b)) return std::nullopt;
  if (!reversed_) {
    std::reverse(a.begin(), a.end());
    std::reverse(b.begin(), b.end());
  }
  std::string sum = sum_reversed(a, b);
  while (!zero_pad_ && sum.size() > 1 && sum.back() == '0') sum.pop_back();
  if (!reversed_) std::reverse(sum.begin(), sum.end());
  return sum;
}

Reward Addition::reward(const Problem& problem, const std::vector<std::string>& pieces, bool finished) const {
  const bool right = leading_right(problem.answer, pieces, finished).total == int(problem.answer.size()) + 1;
  return {.total = right ? 1.0 : 0.0};
}

}  // namespace plumb
