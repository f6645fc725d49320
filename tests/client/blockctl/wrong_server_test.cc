// The ways in which blockctl handles servers that are none, proxies before them, and endless times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/client/blockctl/blockctl_program.h"
#include "tests/client/fake_solver.h"

namespace blockd::blockctl {
namespace {

using client::FakeSolver;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(WrongServerTest, IsRefusedAndToldWhatOneIs) {
  const std::pair<std::string, std::string> cases[] = {
      {"127.0.0.1", "--server is \"127.0.0.1\", without a port, expected host:port, "},
      {":99999", "without a host"},
      {"http://127.0.0.1:7117", "with the scheme http://"},
      {"unix:/" + std::string(107, 'x'), "with a path of 108 bytes, and 107 at most"}};
  for (const auto& [server, why] : cases) {
    const std::vector<std::vector<std::string>> commands = {
        {"info"}, {"admin", "tenants"}, {"info", "--wait=60s"}};
    for (const std::vector<std::string>& command : commands) {
      const Outcome outcome = Blockctl(server, command);
      EXPECT_EQ(outcome.exit_status, 1) << server;
      EXPECT_THAT(outcome.err, HasSubstr(why));
    }
  }
  const Outcome json = Blockctl("solver", {"info", "--json"});
  EXPECT_THAT(json.out, HasSubstr("\"INVALID_ARGUMENT\""));
}

// Nobody listens where it points. The distribution's c-ares, which gRPC would ask for names, leaks.
Outcome ThroughProxy(const std::string& variable, const std::string& server,
                     std::vector<std::string> arguments) {
  arguments = WithServer(server, std::move(arguments));
  arguments.insert(arguments.begin(), {variable + "=http://mallory:secret@127.0.0.1:1",
                                       "GRPC_DNS_RESOLVER=native", BLOCKCTL_PROGRAM});
  return RunProgram("/usr/bin/env", arguments);
}

TEST(ProxyTest, IsNotBetweenThisHostAndItself) {
  FakeSolver fake;
  fake.on_server_info = [](v1::ServerInfo*) { return grpc::Status::OK; };
  const std::string port = fake.target().substr(fake.target().rfind(':'));
  for (const char* variable : {"http_proxy", "https_proxy", "grpc_proxy"}) {
    for (const std::string host : {"127.0.0.1", "localhost", "LOCALHOST", "ipv4:127.0.0.1"}) {
      const Outcome outcome = ThroughProxy(variable, host + port, {"info", "--quiet"});
      EXPECT_EQ(outcome.exit_status, 0) << host << ": " << outcome.err;
    }
  }
}

TEST(ProxyTest, IsNamedWithoutItsSecretWhereACallFails) {
  for (const std::string variable : {"http_proxy", "https_proxy", "grpc_proxy"}) {
    const std::vector<std::vector<std::string>> commands = {
        {"info"},
        {"admin", "tenants"},
        {"info", "--wait=10ms"},
        {"bench", "--problem=mpc", "--num_blocks=2", "--block_size=1", "--duration=10ms"}};
    for (const std::vector<std::string>& command : commands) {
      const Outcome outcome = ThroughProxy(variable, "far.invalid:7117", command);
      EXPECT_EQ(outcome.exit_status, 2) << outcome.err;
      EXPECT_THAT(outcome.err,
                  AllOf(HasSubstr("(through the proxy 127.0.0.1:1 that $" + variable + " names"),
                        Not(HasSubstr("mallory")), Not(HasSubstr("secret"))));
    }
  }
}

TEST(TimeWithoutEndTest, IsNoLimit) {
  FakeSolver fake;
  fake.on_server_info = [](v1::ServerInfo*) { return grpc::Status::OK; };
  for (const char* time : {"inf", "2000000h", "99999999h"}) {
    const Outcome outcome = Blockctl(
        fake.target(),
        {"info", "--quiet", std::string("--wait=") + time, std::string("--timeout=") + time});
    EXPECT_EQ(outcome.exit_status, 0) << time << ": " << outcome.err;
  }
}

}  // namespace
}  // namespace blockd::blockctl
