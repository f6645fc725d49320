// A client whose server goes and comes back. reconnect_test.cc runs it.
//
//   client_reconnect call | session | upload TARGET FOLDER
//
// It calls until that fails, which the file `failed` of the folder says, and then until it
// succeeds. The file `called` says that the first call did.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "blockd/client/solver_client.h"

namespace blockd::client {
namespace {

constexpr int kFailed = 3;
constexpr int kCalls = 600;

struct Caller {
  Caller(const std::string& way_of_calling, const std::string& target)
      : way(way_of_calling),
        client(*SolverClient::Connect(
            target, {.retry = {.max_attempts = 1},
                     .stream_threshold_bytes = way == "upload" ? 0 : int64_t{1} << 20})),
        session(client.OpenSession()) {}

  // Factors each time: the server that came back holds nothing.
  bool Call() {
    if (way == "call") return client.ServerInfo().ok();
    const std::vector<double> diagonal = {4, 4}, coupling = {1};
    const auto held = client.Factor(MakeSystemView(2, 1, diagonal.data(), coupling.data()));
    if (way == "upload" || !held.ok()) return held.ok();
    const std::vector<double> b = {1, 1};
    std::vector<double> x(2);
    const auto id = session.Send(held->handle, b, std::span(x));
    const bool solved = id.ok() && session.Await(*id).ok();
    if (!solved) session = client.OpenSession();
    return solved;
  }

  const std::string way;
  SolverClient client;
  SolveSession session;
};

int Run(const std::string& way, const std::string& target, const std::string& folder) {
  Caller caller(way, target);
  const auto until = [&](bool succeeds) {
    for (int i = 0; i < kCalls; ++i) {
      if (caller.Call() == succeeds) return true;
      absl::SleepFor(absl::Milliseconds(50));
    }
    return false;
  };
  if (!until(true)) return kFailed;
  std::ofstream(folder + "/called") << way;
  if (!until(false)) return kFailed;
  std::ofstream(folder + "/failed") << way;
  return until(true) ? 0 : kFailed;
}

}  // namespace
}  // namespace blockd::client

int main(int count, char** arguments) {
  if (count != 4) return 2;
  // gRPC does not look by itself, so that what is seen is the client's own work.
  setenv("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "0", 1);
  return blockd::client::Run(arguments[1], arguments[2], arguments[3]);
}
