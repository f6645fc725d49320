#include "tests/support/server_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/support/eventually.h"

namespace blockd::test {
namespace {

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// A program whose standard input, output and error are these. It dies with the thread that started
// it.
pid_t Start(std::vector<std::string> command, int in, int out, int error) {
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(in, 0);
    dup2(out, 1);
    dup2(error, 2);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  return pid;
}

void End(pid_t pid) {
  if (pid <= 0) return;
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

}  // namespace

ServerProcess::ServerProcess(const std::string& program, std::vector<std::string> flags, Log log,
                             const std::string& tenants) {
  std::vector<std::string> command = {program, "--port=0", "--metrics_port=0",
                                      "--port_file=" + (folder_ / "ports")};
  if (!tenants.empty()) {
    std::ofstream(folder_ / "tenants.textproto") << tenants;
    command.push_back("--tenants_file=" + (folder_ / "tenants.textproto"));
  }
  command.insert(command.end(), flags.begin(), flags.end());
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (log == Log::kNone) {
    pid_ = Start(std::move(command), nothing, nothing, STDERR_FILENO);
  } else {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) Die("no pipe");
    pid_ = Start(std::move(command), nothing, nothing, ends[1]);
    close(ends[1]);
    unread_ = ends[0];
    if (log == Log::kDrained) {
      reader_ = Start({"cat"}, unread_, nothing, STDERR_FILENO);
    }
  }
  close(nothing);
  const bool serves = Eventually([&] {
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) Die(program + " did not start");
    return std::filesystem::exists(folder_ / "ports");
  });
  if (!serves) Die(program + " does not serve");
  for (absl::string_view line : absl::StrSplit(ReadFile(folder_ / "ports"), '\n')) {
    if (absl::ConsumePrefix(&line, "grpc=")) (void)absl::SimpleAtoi(line, &port_);
    if (absl::ConsumePrefix(&line, "metrics=")) (void)absl::SimpleAtoi(line, &metrics_port_);
  }
}

ServerProcess::~ServerProcess() {
  End(pid_);
  End(reader_);
  if (unread_ >= 0) close(unread_);
}

std::string ServerProcess::target() const { return absl::StrCat("127.0.0.1:", port_); }
std::string ServerProcess::metrics_target() const {
  return absl::StrCat("127.0.0.1:", metrics_port_);
}

int64_t ServerProcess::ResidentBytes() const {
  std::istringstream status(ReadFile(absl::StrCat("/proc/", pid_, "/status")));
  int64_t kib = 0;
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") status >> kib;
  }
  return kib << 10;
}

int64_t ServerProcess::OpenDescriptors() const {
  int64_t count = 0;
  std::error_code ignored;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid_, "/fd"), ignored)) {
    ++count;
  }
  return count;
}

int ServerProcess::Stop() {
  kill(pid_, SIGTERM);
  int status = 0;
  if (!Eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; })) return -1000;
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::map<std::string, double> ParseMetrics(const std::string& page) {
  std::map<std::string, double> values;
  for (const absl::string_view line : absl::StrSplit(page, '\n', absl::SkipEmpty())) {
    const size_t space = line.rfind(' ');
    double value = 0;
    if (line[0] == '#' || space == absl::string_view::npos) continue;
    if (absl::SimpleAtod(line.substr(space + 1), &value)) {
      values[std::string(line.substr(0, space))] = value;
    }
  }
  return values;
}

}  // namespace blockd::test
