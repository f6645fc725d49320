// A process that ends while the client is at work. exit_test.cc runs it.
//
//   client_exit late | late_stream          gRPC's thread has the last of a connection in its hands
//                                           when the statics of this process are already destroyed
//   client_exit solve | async | session TARGET   main returns as soon as a solution is there
//   client_exit heal TARGET                 main returns while a lost factorization is made anew
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "blockd/client/solver_client.h"

namespace blockd::client {
namespace {

constexpr int kFailed = 3;  // beside what a sanitizer exits with

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  _exit(kFailed);
}

// A server that speaks just enough HTTP/2 to be connected to, and sees when it is left.
class SilentServer {
 public:
  SilentServer() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (bind(listener_, generic, length) != 0 || listen(listener_, 1) != 0 ||
        getsockname(listener_, generic, &length) != 0) {
      Fail("no port to listen to");
    }
    target_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }
  const std::string& target() const { return target_; }

  void Accept() {
    connection_ = accept(listener_, nullptr, nullptr);
    const timeval limit{60, 0};
    setsockopt(connection_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    constexpr std::string_view kEmptySettings("\0\0\0\4\0\0\0\0\0", 9);
    if (send(connection_, kEmptySettings.data(), kEmptySettings.size(), MSG_NOSIGNAL) != 9) {
      Fail("nobody connected");
    }
  }
  // Until the client has closed its connection, which only the end of its channel does.
  void AwaitLeft() {
    char buffer[4096];
    ssize_t got;
    while ((got = recv(connection_, buffer, sizeof(buffer), 0)) > 0) {
    }
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      Fail("the connection is never closed");
    close(connection_);
  }

 private:
  int listener_;
  int connection_ = -1;
  std::string target_;
};

// One asynchronous Solve, which nobody answers: its callback comes with the timeout, and is the
// last to hold the client's connection.
class LastHolder {
 public:
  explicit LastHolder(bool stream) : options_{.stream_threshold_bytes = stream ? 0 : 1 << 20} {}

  // Returns inside of the callback, on another thread.
  void Begin() {
    SolverClient client = *SolverClient::Connect(server_.target(), options_);
    const Factorization handle{"handle", 1, 1, Scalar::kFloat64};
    client.SolveAsync(handle, b_, x_, {.timeout = absl::Seconds(1)},
                      [this](const absl::StatusOr<SolveResult>& result) {
                        if (result.ok()) Fail("an answer from nowhere");
                        began_.Notify();
                        may_end_.WaitForNotification();
                      });
    server_.Accept();
    began_.WaitForNotification();
  }
  void End() {
    may_end_.Notify();
    server_.AwaitLeft();
  }

 private:
  const ClientOptions options_;
  SilentServer server_;
  std::vector<double> b_ = {1}, x_ = {0};
  absl::Notification began_, may_end_;
};

// Made before main, so destroyed after every static that the client makes when it is first used.
struct AfterStatics {
  ~AfterStatics() {
    if (holder != nullptr) holder->End();
  }
  LastHolder* holder = nullptr;  // never destroyed
};
AfterStatics after_statics;

int EndLate(bool stream) {
  LastHolder before(stream);
  before.Begin();
  before.End();
  after_statics.holder = new LastHolder(stream);
  after_statics.holder->Begin();
  return 0;
}

int EndWhileHealing(const std::string& target) {
  const double diagonal[] = {4, 4}, coupling[] = {1};
  const SolverClient client = *SolverClient::Connect(target);
  auto factored = client.Factor(MakeSystemView(2, 1, diagonal, coupling),
                                {.restore = {.keep_copy = true, .max_restores = 1 << 30}});
  if (!factored.ok()) Fail(factored.status().ToString().c_str());
  static FactorHandle& kept = *new FactorHandle(std::move(factored->handle));
  static std::vector<double>& x = *new std::vector<double>(2);
  client.SolveAsync(kept, x, x, {}, [](const absl::StatusOr<SolveResult>&) {});
  while (kept.restore_counters().restores == 0) usleep(1000);
  return 0;  // and it goes on: each is lost again
}

int SolveAndEnd(std::string_view how, const std::string& target) {
  const double diagonal[] = {4, 4}, coupling[] = {1};
  const std::vector<double> b = {5, 5};
  static std::vector<double>& x = *new std::vector<double>(2);
  ClientOptions options;
  if (how == "solve") options.stream_threshold_bytes = 0;
  auto client = std::make_unique<SolverClient>(*SolverClient::Connect(target, options));
  auto factored = client->Factor(MakeSystemView(2, 1, diagonal, coupling));
  if (!factored.ok()) Fail(factored.status().ToString().c_str());
  if (how == "session") {
    SolveSession session = client->OpenSession();
    const auto id = session.Send(factored->handle, b, x);
    if (!id.ok() || !session.Await(*id).ok()) Fail("no answer in the session");
  } else if (how == "async") {
    static absl::Notification& solved = *new absl::Notification;  // the callback may outlive us
    client->SolveAsync(factored->handle, b, x, {}, [](absl::StatusOr<SolveResult> result) {
      if (!result.ok()) Fail(result.status().ToString().c_str());
      solved.Notify();
    });
    factored->handle.Detach();
    client.reset();
    solved.WaitForNotification();
  } else if (!client->Solve(factored->handle, b, x).ok()) {
    Fail("no solution");
  }
  for (const double value : x) {
    if (std::abs(value - 1) > 1e-14) Fail("a wrong solution");
  }
  return 0;
}

}  // namespace
}  // namespace blockd::client

int main(int argc, char** argv) {
  const std::string_view how = argc > 1 ? argv[1] : "";
  if (how == "late" || how == "late_stream") return blockd::client::EndLate(how == "late_stream");
  if (argc != 3) return 1;
  if (how == "heal") return blockd::client::EndWhileHealing(argv[2]);
  return blockd::client::SolveAndEnd(how, argv[2]);
}
