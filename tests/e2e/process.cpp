#include "tests/e2e/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "tests/paths.h"

namespace plumb::e2e {
namespace fs = std::filesystem;
namespace {

constexpr const char* kFull = "/dev/full";

pid_t start(const std::vector<std::string>& arguments, const fs::path& folder, const fs::path& out, const fs::path& err) {
  const pid_t child = fork();
  if (child != 0) return child;
  if (!folder.empty()) fs::current_path(folder);
  const int o = out == kFull ? open(kFull, O_WRONLY) : open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int e = open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int in = open("/dev/null", O_RDONLY);
  dup2(in, 0);
  dup2(o, 1);
  dup2(e, 2);
  std::vector<char*> argv = {const_cast<char*>(test::plumb_binary)};
  for (const auto& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  execv(test::plumb_binary, argv.data());
  _exit(127);
}

/// Whether the process has a handler for `signal` yet (SigCgt of proc(5): bit n - 1 is signal n).
bool catches(pid_t process, int signal) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigCgt:")) return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1)) & 1;
  }
  return false;
}

int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

}  // namespace

Finished plumb(const std::vector<std::string>& arguments, const fs::path& folder) {
  TempFolder tmp;
  const pid_t child = start(arguments, folder, tmp / "out", tmp / "err");
  int status = 0;
  waitpid(child, &status, 0);
  return {code_of(status), read_file(tmp / "out"), read_file(tmp / "err")};
}

Finished plumb_into_a_full_disk(const std::vector<std::string>& arguments) {
  TempFolder tmp;
  const pid_t child = start(arguments, {}, kFull, tmp / "err");
  int status = 0;
  waitpid(child, &status, 0);
  return {code_of(status), "", read_file(tmp / "err")};
}

Finished plumb_then_signal(const std::vector<std::string>& arguments, int signal, std::chrono::milliseconds after) {
  TempFolder tmp;
  const pid_t child = start(arguments, {}, tmp / "out", tmp / "err");
  bool ready = signal == SIGKILL;
  auto until = std::chrono::steady_clock::now() + after;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (!ready) {
      ready = catches(child, signal);
      until = std::chrono::steady_clock::now() + after;
    } else if (std::chrono::steady_clock::now() >= until) {
      kill(child, signal);
      waitpid(child, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {code_of(status), read_file(tmp / "out"), read_file(tmp / "err")};
}

void expect_one_line(const Finished& f, int code, const std::string& says) {
  EXPECT_EQ(f.code, code) << f.out << f.err;
  EXPECT_EQ(std::count(f.err.begin(), f.err.end(), '\n'), 1) << f.err;
  EXPECT_NE(f.err.find(says), std::string::npos) << "not said: " << says << "\n" << f.err;
}

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream f(path, std::ios::binary);
  f << text;
  if (!f.flush()) throw std::runtime_error("cannot write " + path.string());
}

std::string read_file(const fs::path& path) {
  std::ifstream f(path, std::ios::binary);
  std::stringstream s;
  s << f.rdbuf();
  return s.str();
}

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& e : fs::recursive_directory_iterator(folder)) {
    if (e.is_regular_file()) files[fs::relative(e.path(), folder).string()] = read_file(e.path());
  }
  return files;
}

std::vector<std::string> metrics_without_times(const fs::path& run) {
  std::vector<std::string> lines;
  std::istringstream text(read_file(run / "metrics.jsonl"));
  for (std::string line; std::getline(text, line);) {
    auto row = nlohmann::ordered_json::parse(line);
    nlohmann::ordered_json kept;
    for (const auto& [key, value] : row.items()) {
      if (!key.starts_with("time/")) kept[key] = value;
    }
    lines.push_back(kept.dump());
  }
  return lines;
}

std::vector<nlohmann::json> json_lines_of(const fs::path& file) {
  std::vector<nlohmann::json> out;
  std::istringstream text(read_file(file));
  for (std::string line; std::getline(text, line);) out.push_back(nlohmann::json::parse(line));
  return out;
}

std::vector<nlohmann::json> mismatch_rows(const fs::path& run) {
  std::vector<nlohmann::json> rows = json_lines_of(run / "metrics.jsonl");
  std::erase_if(rows, [](const auto& row) { return !row.contains("mismatch/bitwise_equal_frac"); });
  return rows;
}

void expect_no_mismatch(const nlohmann::json& row) {
  int metrics = 0;
  for (const auto& [key, value] : row.items()) {
    if (!key.starts_with("mismatch/") || key.find("ppl_train") != std::string::npos || key.find("ppl_rollout") != std::string::npos)
      continue;
    const bool one = key.find("ratio") != std::string::npos || key.find("ess") != std::string::npos || key.ends_with("equal_frac") ||
                     key.find("token_mult_prob_error") != std::string::npos;
    EXPECT_EQ(value.get<double>(), one ? 1.0 : 0.0) << key << " at step " << row["step"];
    ++metrics;
  }
  EXPECT_GE(metrics, 12);
  EXPECT_EQ(row["mismatch/ppl_train"], row["mismatch/ppl_rollout"]);
}

std::string tiny_grpo_config(int steps, int warm_steps) {
  return R"(run: {algorithm: grpo, seed: 5, steps: )" + std::to_string(steps) + R"(}
model: {config: )" +
         std::string(test::source_dir) + R"(/tests/e2e/tiny.yaml, init_seed: 3}
task: {name: addition, digits: 2}
warm_start: {steps: )" +
         std::to_string(warm_steps) + R"(, batch: 16, optimizer: {lr: 0.002}}
rollout: {prompts: 4, samples: 5}
sampling: {temperature: 0.9, max_new_tokens: 6}
grpo: {mini_batches: 2, epochs: 2, kl: k3, kl_coef: 0.01, entropy_coef: 0.001}
optimizer: {lr: 0.003}
eval: {every: 2, problems: 12, k: 2}
checkpoint: {save_every: 1, keep: 2}
logging: {samples_every: 1}
)";
}

}  // namespace plumb::e2e
