#include "tests/bench/sharing/sharing_load.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
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
#include "tests/bench/sharing/sharing_abuse.h"

namespace blockd::bench {
namespace {

constexpr int kPatienceMs = 60'000;
constexpr int kLeastProcessors = 4;

cpu_set_t of_loads;  // of whose processors there are none if they share those of the server

void AddKinds(const std::vector<Abuse>& abuses, std::vector<LoadKind>* kinds) {
  for (const Abuse& abuse : abuses) kinds->push_back(abuse.kind);
}

}  // namespace

std::vector<LoadKind> QuotaAttacks() {
  std::vector<LoadKind> kinds;
  AddKinds(CallAbuses(), &kinds);
  return kinds;
}
std::vector<LoadKind> WireAttacks() {
  std::vector<LoadKind> kinds;
  AddKinds(FrameAbuses(), &kinds);
  AddKinds(MessageAbuses(), &kinds);
  return kinds;
}

int LeaveProcessorsToLoads() {
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof(mine), &mine) != 0 || CPU_COUNT(&mine) < kLeastProcessors) {
    return 0;
  }
  const int most = CPU_COUNT(&mine) / 4;
  for (int cpu = CPU_SETSIZE - 1; cpu >= 0 && CPU_COUNT(&of_loads) < most; --cpu) {
    if (!CPU_ISSET(cpu, &mine)) continue;
    CPU_CLR(cpu, &mine);
    CPU_SET(cpu, &of_loads);
  }
  if (sched_setaffinity(0, sizeof(mine), &mine) != 0) std::abort();
  return most;
}

bool RunLoad(const std::string& name, int port, const LoadSize& size) {
  for (const auto* abuses : {&HonestWork(), &CallAbuses(), &FrameAbuses(), &MessageAbuses()}) {
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
    if (CPU_COUNT(&of_loads) > 0) {
      sched_setaffinity(0, sizeof(of_loads), &of_loads);
    } else {
      setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + 19);
    }
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
