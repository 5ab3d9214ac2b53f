#include "rl/tasks/addition.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/core/error.h"

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
  read_files(config);
}

std::string Addition::written(std::uint64_t number) const {
  std::string text = zero_pad_ ? fmt::format("{:0{}}", number, digits_) : fmt::format("{}", number);
  if (reversed_) std::reverse(text.begin(), text.end());
  return text;
}

GeneratedTask::Draw Addition::draw(const RandomKey& key, std::uint64_t first) const {
  const std::uint64_t a = random_below(key, first, limit_);
  const std::uint64_t b = random_below(key, first + 1, limit_);
  return {.prompt = fmt::format("{}+{}=", written(a), written(b)), .identity = identity_of(a, b)};
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
  const auto plus = prompt.find('+');
  if (plus == std::string_view::npos || !prompt.ends_with('=')) return std::nullopt;
  std::string a(prompt.substr(0, plus));
  std::string b(prompt.substr(plus + 1, prompt.size() - plus - 2));
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
