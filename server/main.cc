// blockd: reads the flags, serves until SIGTERM or SIGINT, drains, and exits with 0.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "server/base/allocator.h"
#include "server/base/descriptors.h"
#include "server/base/thread_name.h"
#include "server/core/common/blas_kernel.h"
#include "server/identity/token.h"
#include "server/log/logging.h"
#include "server/options/flags.h"
#include "server/options/options.h"
#include "server/server.h"

namespace {

using blockd::server::LogLevel;
using blockd::server::LogLine;

constexpr absl::Duration kFlushTime = absl::Seconds(1);
// How long the program waits beyond --drain_timeout for cancelled work.
constexpr absl::Duration kCancelTime = absl::Seconds(5);

// Libraries open files and start threads before main is called. This runs before they are
// initialized, and so calls the kernel itself.
//
// Blocks the signals that main waits for: a thread that does not block one gets it whenever main
// does not wait, and the process ends. Opens /dev/null for those of 0, 1 and 2 that are closed, so
// that no socket takes their number and is written log lines to.
__attribute__((no_sanitize("address", "thread", "undefined"))) void BeforeLibraries(
    int /*argc*/, char** /*argv*/, char** /*environment*/) {
  constexpr auto kBit = [](int signal) { return uint64_t{1} << (signal - 1); };
  constexpr uint64_t kSignals = kBit(SIGHUP) | kBit(SIGTERM) | kBit(SIGINT) | kBit(SIGUSR1);
  syscall(SYS_rt_sigprocmask, SIG_BLOCK, &kSignals, nullptr, sizeof(kSignals));
  for (int fd = 0; fd <= 2; ++fd) {
    // An open takes the lowest free number, which is this one.
    if (syscall(SYS_fcntl, fd, F_GETFD) < 0) syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);
  }
}
[[gnu::section(".preinit_array"),
  gnu::used]] void (*const kBeforeLibraries)(int, char**, char**) = BeforeLibraries;

int Refuse(const absl::Status& status) {
  blockd::server::FlushLog(kFlushTime);
  std::fprintf(stderr, "blockd: %s\n", std::string(status.message()).c_str());
  return status.code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}

// A process that cannot go on ends with one line. Most often the system has no memory for it: our
// code throws std::bad_alloc or std::system_error then, gRPC aborts.
void EndWithALine() {
  std::set_terminate([] {
    try {
      if (const std::exception_ptr thrown = std::current_exception())
        std::rethrow_exception(thrown);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "blockd: cannot go on: %s\n", e.what());
    } catch (...) {
      std::fprintf(stderr, "blockd: cannot go on\n");
    }
    std::_Exit(1);
  });
  std::signal(SIGABRT, [](int) {
    constexpr char kLine[] =
        "blockd: cannot go on: a library aborted, as gRPC does where the system has no memory\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kLine, sizeof(kLine) - 1);
    std::signal(SIGABRT, SIG_DFL);
  });
}

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// Blocked in every thread, so that only sigwait sees them. Before main starts any.
sigset_t BlockSignals() {
  sigset_t signals = StopSignals();
  sigaddset(&signals, SIGHUP);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return signals;
}

// The program may be interrupted while it does not serve: SIGTERM and SIGINT find their default
// action in main's thread.
void UnblockStopSignals() {
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

void WarnOfSlowBlas() {
  const char* const kernel = blockd::server::BlasKernel();
  const char* const better =
      blockd::server::BetterBlasKernel(kernel, blockd::server::UnitsOfProcessor());
  if (better == nullptr) return;
  LogLine(LogLevel::kWarn, "blas")
      .Add("kernel", kernel)
      .Add("remedy", absl::StrCat("OPENBLAS_CORETYPE=", better))
      .Write();
}

bool FlushedAll() {
  std::cout.flush();
  return std::cout.good() && std::fflush(nullptr) == 0;
}

// --hash_token
int HashToken() {
  std::string token(blockd::server::kMaxTokenBytes + 3, '\0');
  std::cin.read(token.data(), static_cast<std::streamsize>(token.size()));
  token.resize(static_cast<size_t>(std::cin.gcount()));
  const absl::StatusOr<std::string> digits = blockd::server::TokenHashDigits(token);
  if (!digits.ok()) return Refuse(digits.status());
  std::cout << *digits << '\n';
  return FlushedAll() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  UnblockStopSignals();
  EndWithALine();
  // Distributions build Abseil with its detector of deadlocks on: a global lock around every lock.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  setenv("GRPC_VERBOSITY", "NONE", 0);  // what fails is said in this program's own words
  for (int i = 1; i < argc; ++i) {
    static char help[] = "--help";
    if (std::string_view(argv[i]) == "-h") argv[i] = help;
    // The flags library would end it with 1, as if to ask were a mistake.
    if (std::string_view(argv[i]) == help) std::atexit([] { std::_Exit(FlushedAll() ? 0 : 1); });
  }
  blockd::server::SetUpFlags();
  if (absl::Status former =
          blockd::server::RefuseFormerFlags({argv + 1, static_cast<size_t>(argc - 1)});
      !former.ok()) {
    return Refuse(former);
  }
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    return Refuse(absl::InvalidArgumentError(
        absl::StrCat(rest[1], ": expected flags only, as --port=7117; see --help")));
  }
  if (blockd::server::HashTokenAsked()) return HashToken();
  blockd::server::RaiseDescriptorLimit();
  absl::StatusOr<blockd::server::ServerOptions> options = blockd::server::OptionsFromFlags();
  if (!options.ok()) return Refuse(options.status());

  blockd::server::KeepLargePieces();
  const sigset_t signals = BlockSignals();
  blockd::server::SetUpLogging({.level = options->log_level,
                                .format = options->log_format,
                                .buffer_bytes = options->log_buffer_bytes,
                                .requests_per_second = options->log_requests_per_second});
  WarnOfSlowBlas();
  auto started = blockd::server::Server::Start(*options);
  // Libraries may wait for threads that they could not start.
  if (!started.ok()) std::_Exit(Refuse(started.status()));
  blockd::server::Server& server = **started;

  // Always blocked, unlike SIGTERM: while the process ends already it changes nothing.
  server.OnDrainAsked([] { kill(getpid(), SIGUSR1); });
  int signal = 0;
  while (sigwait(&signals, &signal) != 0 || signal == SIGHUP) {
    server.Reload().IgnoreError();  // the log says what is wrong
  }
  // A second signal finds the default action, and so ends the process at once.
  UnblockStopSignals();
  if (signal != SIGUSR1) {
    LogLine(LogLevel::kInfo, "signal")
        .Add("name", signal == SIGTERM ? "SIGTERM" : "SIGINT")
        .Write();
  }
  auto& over = *new absl::Notification;
  std::thread([&server, &options, &over] {
    blockd::server::NameThread("ending");
    server.StartDrain();
    absl::SleepFor(options->drain_grace);
    server.Drain();
    over.Notify();
  }).detach();
  const bool ended = over.WaitForNotificationWithTimeout(options->drain_grace +
                                                         options->drain_timeout + kCancelTime);
  if (!ended) LogLine(LogLevel::kError, "drain_abandoned").Write();
  blockd::server::FlushLog(kFlushTime);
  // Nothing is taken apart: all work is over, or will not end.
  std::_Exit(ended ? 0 : 1);
}
