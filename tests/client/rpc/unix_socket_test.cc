// The client through the server's Unix socket, beside its port.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "blockd/client/solver_client.h"
#include "engine/problems/problems.h"
#include "server/server.h"
#include "tests/client/server_fixture.h"
#include "tests/support/temp_folder.h"

namespace blockd::client {
namespace {

class UnixSocketTest : public ServerTest {
 protected:
  void SetUp() override {
    server::ServerOptions options;
    options.port = 0;
    options.metrics_port = -1;
    options.backend = "cpu";
    options.device.memory_bytes = int64_t{64} << 20;
    options.access.unix_socket = folder_ / "socket";
    auto server = server::Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::string unix_target() const { return "unix:" + (folder_ / "socket"); }

  const test::TempFolder folder_;
};

std::vector<double> Solved(const SolverClient& client, const Factorization& held,
                           const std::vector<double>& rhs) {
  std::vector<double> x(rhs.size());
  const auto result = client.Solve(held, rhs, std::span(x));
  EXPECT_TRUE(result.ok()) << result.status();
  return x;
}

bool SameBits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
}

TEST_F(UnixSocketTest, SmallAndLargeCallsHaveTheBitsOfThePort) {
  const SolverClient port = Connect();
  // All that has more than a kilobyte is streamed, through a connection of its own.
  const auto file = SolverClient::Connect(unix_target(), {.stream_threshold_bytes = 1024});
  ASSERT_TRUE(file.ok()) << file.status();
  for (const int64_t columns : {1, 40}) {
    const problems::Problem problem = problems::RandomSpd(9, 6, 5, 100);
    const auto held = file->Factor(View(problem));
    ASSERT_TRUE(held.ok()) << held.status();
    const std::vector<double> rhs = problems::RandomColumns(54, columns, 7);
    EXPECT_TRUE(SameBits(Solved(*file, held->handle, rhs), Solved(port, held->handle, rhs)));
    SolveSession session = file->OpenSession();
    std::vector<double> x(rhs.size());
    const auto id = session.Send(held->handle, rhs, std::span(x));
    ASSERT_TRUE(id.ok()) << id.status();
    EXPECT_TRUE(session.Await(*id).ok());
    EXPECT_TRUE(SameBits(x, Solved(port, held->handle, rhs)));
  }
}

}  // namespace
}  // namespace blockd::client
