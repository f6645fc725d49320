// Floods of HTTP/2 frames that the servers' library does not bound: the router in front does.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/integration/hostile/raw_http2.h"
#include "tests/router/router_fixture.h"

namespace blockd::test {
namespace {

constexpr int kMost = 100'000;  // frames

class FloodTest : public RouterTest {
 protected:
  void SetUp() override {
    StartServers(1);
    StartEnvoy();
    connections_ = servers_[0]->Metric("blockd_connections");
  }
  // How many times `send` may be called until the router ends the connection.
  template <typename Send>
  int CountUntilClosed(Send send) {
    RawHttp2 peer(router_port_);
    peer.Greet();
    int count = 0;
    while (count < kMost && send(peer, static_cast<uint32_t>(2 * count + 1))) ++count;
    return count;
  }
  // Another caller is answered, and the server has seen nothing of the flood.
  void ExpectUnharmed() {
    const auto factored = Connect().Factor(View(problem_));
    ASSERT_TRUE(factored.ok()) << factored.status();
    std::vector<double> x(problem_.rows());
    const auto solved = Connect().Solve(factored->handle, problem_.rhs, x);
    EXPECT_TRUE(solved.ok()) << solved.status();
    EXPECT_EQ(servers_[0]->Metric("blockd_requests_total", "method=\"Solve\""), 1);
    EXPECT_EQ(servers_[0]->Metric("blockd_requests_total", "method=\"GetServerInfo\""), 0);
    EXPECT_LE(servers_[0]->Metric("blockd_connections"), connections_ + 2);
  }

  const problems::Problem problem_ = problems::Poisson(9, 9);
  int64_t connections_ = 0;
};

TEST_F(FloodTest, HeadersWithoutEndEndTheirConnection) {
  const std::string more = std::string("\0\x04name\x7f\x81\x06", 9) + std::string(1024, 'x');
  const int sent = CountUntilClosed([&](RawHttp2& peer, uint32_t stream) {
    return stream == 1
               ? peer.SendFrame(RawHttp2::kHeaders, 0, 1, RawHttp2::HeaderBlock("GetServerInfo"))
               : peer.SendFrame(RawHttp2::kContinuation, 0, 1, more);
  });
  EXPECT_LT(sent, kMost);
  ExpectUnharmed();
}

TEST_F(FloodTest, CallsThatAreResetAtOnceEndTheirConnection) {
  const std::string block = RawHttp2::HeaderBlock("GetServerInfo"), cancel("\0\0\0\x08", 4);
  const int sent = CountUntilClosed([&](RawHttp2& peer, uint32_t stream) {
    return peer.SendFrame(RawHttp2::kHeaders, RawHttp2::kEndHeaders, stream, block) &&
           peer.SendFrame(RawHttp2::kReset, 0, stream, cancel);
  });
  EXPECT_LT(sent, kMost);
}

TEST_F(FloodTest, PingsEndAtTheRouter) {
  RawHttp2 peer(router_port_);
  peer.Greet();
  for (int i = 0; i < kMost && peer.SendFrame(RawHttp2::kPing, 0, 0, "12345678"); ++i) continue;
  ExpectUnharmed();
}

}  // namespace
}  // namespace blockd::test
