// Deadlines that differ cost a connection no more than one that is always the same.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/client/server_fixture.h"
#include "tests/integration/hostile/wire_between.h"

namespace blockd::client {
namespace {

// The blocks of the HEADERS frames in what a client has sent.
std::vector<std::string_view> HeaderBlocks(std::string_view sent) {
  constexpr size_t kPreface = 24, kHead = 9;
  constexpr char kHeaders = 1;
  std::vector<std::string_view> blocks;
  for (size_t at = kPreface; at + kHead <= sent.size();) {
    size_t length = 0;
    for (size_t i = 0; i < 3; ++i) length = length << 8 | static_cast<uint8_t>(sent[at + i]);
    if (sent[at + 3] == kHeaders) blocks.push_back(sent.substr(at + kHead, length));
    at += kHead + length;
  }
  return blocks;
}

// gRPC's sender would look at each call through all that its table of headers has held.
TEST_F(ServerTest, ADeadlineIsSentInWordsAndForgotten) {
  StartServer();
  test::WireBetween wire(server_->grpc_port(), /*keep=*/true);
  const auto connected = SolverClient::Connect(absl::StrCat("127.0.0.1:", wire.port()));
  ASSERT_TRUE(connected.ok()) << connected.status();
  const problems::Problem problem = problems::RandomSpd(2, 2, 1, 10);
  const auto factored = connected->Factor(View(problem));
  ASSERT_TRUE(factored.ok()) << factored.status();
  constexpr size_t kCalls = 200;
  std::vector<double> x(problem.rows());
  for (size_t i = 0; i < kCalls; ++i) {
    const absl::Duration timeout = absl::Seconds(60 + 3 * i);
    const auto solved = connected->Solve(factored->handle, problem.rhs, x, {.timeout = timeout});
    ASSERT_TRUE(solved.ok()) << solved.status();
  }
  const std::string sent = wire.sent();
  const std::vector<std::string_view> blocks = HeaderBlocks(sent);
  ASSERT_EQ(blocks.size(), kCalls + 1);
  constexpr char kTableOfNothing = 0x20;  // RFC 7541, 6.3
  EXPECT_EQ(blocks[0][0], kTableOfNothing);
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_NE(blocks[i].find("grpc-timeout"), std::string_view::npos) << i;
  }
}

}  // namespace
}  // namespace blockd::client
