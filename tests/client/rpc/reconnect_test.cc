// Clients of a server that was away find it once it is back.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "server/server.h"
#include "tests/client/program.h"
#include "tests/support/temp_folder.h"

namespace blockd::client {
namespace {

class ReconnectTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<server::Server> StartServer() {
    server::ServerOptions options;
    options.port = -1;
    options.metrics_port = -1;
    options.backend = "cpu";
    options.device.memory_bytes = int64_t{64} << 20;
    options.access.unix_socket = folder_ / "socket";
    options.drain_grace = absl::ZeroDuration();
    auto server = server::Server::Start(options);
    EXPECT_TRUE(server.ok()) << server.status();
    return *std::move(server);
  }
  bool IsThere(const std::string& file) const { return std::filesystem::exists(folder_ / file); }

  const test::TempFolder folder_;
};

TEST_P(ReconnectTest, AServerThatCameBackIsFound) {
  std::unique_ptr<server::Server> server = StartServer();
  blockctl::RunningProgram client(RECONNECT_PROGRAM,
                                  {GetParam(), "unix:" + (folder_ / "socket"), folder_ / "."});
  ASSERT_TRUE(blockctl::Eventually([&] { return IsThere("called"); }));
  server.reset();
  ASSERT_TRUE(blockctl::Eventually([&] { return IsThere("failed"); }));
  server = StartServer();
  EXPECT_EQ(client.Await().exit_status, 0);
}

INSTANTIATE_TEST_SUITE_P(Ways, ReconnectTest, ::testing::Values("call", "session", "upload"),
                         [](const auto& way) { return std::string(way.param); });

}  // namespace
}  // namespace blockd::client
