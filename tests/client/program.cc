#include "tests/client/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/blockctl/formats/files.h"

namespace blockd::blockctl {

RunningProgram::RunningProgram(const std::string& program,
                               const std::vector<std::string>& arguments) {
  static std::atomic<int> runs{0};
  const std::string base = absl::StrCat(::testing::TempDir(), "/run", getpid(), "-", ++runs);
  out_ = base + ".out";
  err_ = base + ".err";
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, out_.c_str(), kFlags, 0600);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, err_.c_str(), kFlags, 0600);
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &files, nullptr, argv.data(), environ), 0)
      << program;
  posix_spawn_file_actions_destroy(&files);
}

RunningProgram::~RunningProgram() {
  if (pid_ > 0) {
    Signal(SIGKILL);
    Await();
  }
}

void RunningProgram::Signal(int signal) const { kill(pid_, signal); }

bool RunningProgram::Ended() const {
  siginfo_t info{};
  return waitid(P_PID, pid_, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
}

bool RunningProgram::Catches(int signal) const {
  const std::string status = ReadFile(absl::StrCat("/proc/", pid_, "/status")).value_or("");
  const size_t at = status.find("SigCgt:");
  if (at == std::string::npos) return false;
  const uint64_t caught = std::strtoull(status.c_str() + at + 7, nullptr, 16);
  return (caught >> (signal - 1) & 1) != 0;
}

Outcome RunningProgram::Await() {
  Outcome outcome;
  int status = 0;
  if (pid_ > 0 && waitpid(pid_, &status, 0) == pid_) {
    outcome.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  pid_ = -1;
  outcome.out = ReadFile(out_).value_or("");
  outcome.err = ReadFile(err_).value_or("");
  std::remove(out_.c_str());
  std::remove(err_.c_str());
  return outcome;
}

Outcome RunProgram(const std::string& program, const std::vector<std::string>& arguments) {
  return RunningProgram(program, arguments).Await();
}

bool Eventually(const std::function<bool()>& condition) {
  const absl::Time limit = absl::Now() + absl::Minutes(2);
  while (!condition()) {
    if (absl::Now() > limit) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

}  // namespace blockd::blockctl
