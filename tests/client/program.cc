#include "tests/client/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/blockctl/files.h"

namespace blockd::blockctl {

Outcome RunProgram(const std::string& program, const std::vector<std::string>& arguments,
                   int signal_after_ms) {
  static std::atomic<int> runs{0};
  const std::string base = absl::StrCat(::testing::TempDir(), "/run", getpid(), "-", ++runs);
  const std::string out = base + ".out", err = base + ".err";
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, out.c_str(), kFlags, 0600);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, err.c_str(), kFlags, 0600);
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, program.c_str(), &files, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  Outcome outcome;
  EXPECT_EQ(error, 0) << program;
  if (error != 0) return outcome;
  if (signal_after_ms > 0) {
    absl::SleepFor(absl::Milliseconds(signal_after_ms));
    kill(pid, SIGINT);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  outcome.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = ReadFile(out).value_or("");
  outcome.err = ReadFile(err).value_or("");
  std::remove(out.c_str());
  std::remove(err.c_str());
  return outcome;
}

Outcome Blockctl(const std::string& server, std::vector<std::string> arguments,
                 int signal_after_ms) {
  arguments.insert(arguments.begin(), "--server=" + server);
  return RunProgram(BLOCKCTL_PROGRAM, arguments, signal_after_ms);
}

}  // namespace blockd::blockctl
