#include "tests/bench/sharing_load.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/bench/sharing_abuse.h"

namespace blockd::bench {
namespace {

constexpr int kPatienceMs = 60'000;

std::vector<LoadKind> KindsOf(const std::vector<Abuse>& abuses) {
  std::vector<LoadKind> kinds;
  for (const Abuse& abuse : abuses) kinds.push_back(abuse.kind);
  return kinds;
}

}  // namespace

std::vector<LoadKind> QuotaAttacks() { return KindsOf(CallAbuses()); }
std::vector<LoadKind> Http2Attacks() { return KindsOf(FrameAbuses()); }

bool RunLoad(const std::string& name, int port, const LoadSize& size) {
  for (const auto* abuses : {&HonestWork(), &CallAbuses(), &FrameAbuses()}) {
    for (const Abuse& abuse : *abuses) {
      if (abuse.kind.name != name) continue;
      auto& progress = *new Progress;  // the threads go on until the process ends
      for (int i = 0; i < abuse.threads; ++i) {
        std::thread([&, port, size] { abuse.run({port, size}, progress); }).detach();
      }
      while (progress.threads_ready < abuse.threads) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      std::puts("ready");
      std::fflush(stdout);
      for (char byte = 0; read(STDIN_FILENO, &byte, 1) > 0;) continue;
      std::printf("%ld answered, %ld refused\n", static_cast<long>(progress.answered),
                  static_cast<long>(progress.refused));
      std::fflush(stdout);
      _exit(0);
    }
  }
  return false;
}

Load::Load(const std::string& name, int port, const LoadSize& size) {
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) std::abort();
  std::vector<std::string> command = {"/proc/self/exe",
                                      "--load=" + name,
                                      absl::StrCat("--port=", port),
                                      absl::StrCat("--load_blocks=", size.num_blocks),
                                      absl::StrCat("--load_block_size=", size.block_size),
                                      absl::StrCat("--load_rhs=", size.num_rhs)};
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + 19);
    dup2(in[0], 0);
    dup2(out[1], 1);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  to_ = in[1];
  from_ = out[0];
  if (ReadLine() != "ready") {
    std::fprintf(stderr, "the load %s did not begin\n", name.c_str());
    std::exit(1);
  }
}

Load::~Load() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (to_ >= 0) close(to_);
  if (from_ >= 0) close(from_);
}

std::string Load::Stop() {
  close(to_);
  to_ = -1;
  std::string said = ReadLine();
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
  return said;
}

std::string Load::ReadLine() {
  std::string line;
  for (char byte = 0;;) {
    pollfd ready = {from_, POLLIN, 0};
    if (poll(&ready, 1, kPatienceMs) <= 0 || read(from_, &byte, 1) != 1) return "";
    if (byte == '\n') return line;
    line += byte;
  }
}

}  // namespace blockd::bench
