// The client and blockctl with TLS, against a server that asks for certificates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "client/blockctl/formats/files.h"
#include "tests/client/blockctl/blockctl_program.h"
#include "tests/client/server_fixture.h"
#include "tests/support/temp_folder.h"

namespace blockd::blockctl {
namespace {

using test::TempFolder;

using ::testing::HasSubstr;

class TlsTest : public client::ServerTest {
 protected:
  void SetUp() override {
    for (const std::string name : {"localhost", "alice"}) {
      const std::string command =
          "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj "
          "/CN=" +
          name + " -addext subjectAltName=DNS:" + name + " -keyout " + Path(name + ".key") +
          " -out " + Path(name + ".pem") + " >/dev/null 2>&1";
      ASSERT_EQ(std::system(command.c_str()), 0) << command;
    }
    server::ServerOptions options;
    options.port = 0;
    options.metrics_port = -1;
    options.device.memory_bytes = 64 << 20;
    options.device.cpu_threads = 1;
    options.log_level = "off";
    options.tls_cert_file = Path("localhost.pem");
    options.tls_key_file = Path("localhost.key");
    options.tls_client_ca_file = Path("alice.pem");
    absl::StatusOr<std::unique_ptr<server::Server>> server = server::Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::string Path(const std::string& name) const { return folder_ / name; }
  std::string Pem(const std::string& name) const { return ReadFile(Path(name)).value_or(""); }
  // All that it takes.
  client::TlsOptions Right() const {
    return {.root_certificates = Pem("localhost.pem"),
            .certificate = Pem("alice.pem"),
            .private_key = Pem("alice.key"),
            .server_name = "localhost"};  // the target is an address
  }
  absl::Status Ask(const client::TlsOptions& tls) const {
    return Connect({.tls = tls, .timeout = absl::Seconds(60), .retry = {.max_attempts = 1}})
        .ServerInfo()
        .status();
  }

  const TempFolder folder_;
};

TEST_F(TlsTest, EveryOptionIsNeeded) {
  EXPECT_TRUE(Ask(Right()).ok()) << Ask(Right());
  client::TlsOptions other_server = Right();
  other_server.server_name = "elsewhere";
  EXPECT_TRUE(absl::IsUnavailable(Ask(other_server)));
  client::TlsOptions unnamed = Right();
  unnamed.server_name = "";  // the address, which the certificate does not name
  EXPECT_TRUE(absl::IsUnavailable(Ask(unnamed)));
  client::TlsOptions untrusted = Right();
  untrusted.root_certificates = Pem("alice.pem");
  EXPECT_TRUE(absl::IsUnavailable(Ask(untrusted)));
  client::TlsOptions nobody = Right();
  nobody.certificate = nobody.private_key = "";
  EXPECT_TRUE(absl::IsUnavailable(Ask(nobody)));
  EXPECT_TRUE(absl::IsUnavailable(
      Connect({.retry = {.max_attempts = 1}}).ServerInfo().status()));  // plain text
}

TEST_F(TlsTest, BlockctlHasAFlagForEach) {
  const std::vector<std::string> right = {
      "info", "--tls_ca_file=" + Path("localhost.pem"), "--tls_cert_file=" + Path("alice.pem"),
      "--tls_key_file=" + Path("alice.key"), "--tls_server_name=localhost"};
  const Outcome info = Blockctl(target(), right);
  EXPECT_EQ(info.exit_status, 0) << info.err;
  for (const std::vector<size_t>& without :
       std::vector<std::vector<size_t>>{{1}, {2, 3}, {4}, {1, 2, 3, 4}}) {
    std::vector<std::string> arguments = right;
    for (const size_t k : without) arguments[k] = "--timeout=30s";
    EXPECT_EQ(Blockctl(target(), arguments).exit_status, 2) << without[0];
  }
  std::vector<std::string> missing = right;
  missing[2] = "--tls_cert_file=" + Path("nobody.pem");
  const Outcome outcome = Blockctl(target(), missing);
  EXPECT_EQ(outcome.exit_status, 3);
  EXPECT_THAT(outcome.err, HasSubstr("nobody.pem: cannot read"));
}

}  // namespace
}  // namespace blockd::blockctl
