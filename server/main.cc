// blockd: reads the flags, serves until SIGTERM or SIGINT, drains, and exits with 0.
#include <malloc.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "server/identity/token.h"
#include "server/logging.h"
#include "server/options.h"
#include "server/server.h"

namespace {

int Refuse(const absl::Status& status) {
  std::fprintf(stderr, "blockd: %s\n", std::string(status.message()).c_str());
  return status.code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}

// Blocked in every thread, so that only sigwait sees them. Before any thread is started.
sigset_t BlockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return signals;
}

// Received bytes lie in pieces of up to some MiB that live for one message. By default each would
// be mapped anew and its pages cleared, which takes longer than receiving it: they are kept
// instead.
void KeepLargePieces() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
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
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    return Refuse(absl::InvalidArgumentError(
        absl::StrCat(rest[1], ": expected flags only, as --port=7117; see --help")));
  }
  if (blockd::server::HashTokenAsked()) return HashToken();
  absl::StatusOr<blockd::server::ServerOptions> options = blockd::server::OptionsFromFlags();
  if (!options.ok()) return Refuse(options.status());
  blockd::server::SetUpLogging(options->log_level, options->log_format);

  KeepLargePieces();
  const sigset_t signals = BlockStopSignals();
  auto server = blockd::server::Server::Start(*options);
  if (!server.ok()) return Refuse(server.status());

  int signal = 0;
  sigwait(&signals, &signal);
  // A second signal finds the default action, and so ends the process at once.
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  blockd::server::LogLine(blockd::server::LogLevel::kInfo, "signal")
      .Add("name", signal == SIGTERM ? "SIGTERM" : "SIGINT")
      .Write();
  (*server)->StartDrain();
  absl::SleepFor(options->drain_grace);
  (*server)->Drain();
  // All work is over. The metrics listener would take seconds to stop; the process's end is enough.
  std::fflush(nullptr);
  std::_Exit(0);
}
