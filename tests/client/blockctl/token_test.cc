// Bearer tokens of the client and of blockctl, in plain text and over TLS.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "blockd/client/admin_client.h"
#include "blockd/client/solver_client.h"
#include "client/blockctl/formats/files.h"
#include "tests/client/blockctl/blockctl_program.h"
#include "tests/client/fake_solver.h"
#include "tests/support/temp_folder.h"

namespace blockd::blockctl {
namespace {

using client::FakeSolver;
using client::Shared;
using client::SolverClient;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TokenTest : public ::testing::Test {
 protected:
  void Listen(FakeSolver& fake) {
    fake.on_call = [this](const std::string&, const grpc::ServerContext& context) {
      const auto found = context.client_metadata().find("authorization");
      heard_ = found == context.client_metadata().end()
                   ? "(none)"
                   : std::string(found->second.data(), found->second.size());
    };
    fake.on_server_info = [](v1::ServerInfo*) { return grpc::Status::OK; };
    fake.on_solve_stream = [](FakeSolver::SolvePipe* pipe) {
      v1::SolveStreamRequest request;
      while (pipe->Read(&request)) {
        v1::SolveStreamReply reply;
        reply.set_id(request.id());
        reply.mutable_reply()->set_solution(request.request().rhs());
        pipe->Write(reply);
      }
      return grpc::Status::OK;
    };
  }
  // Every kind of connection says it.
  void ExpectSaid(const SolverClient& client, const std::string& expected) {
    EXPECT_TRUE(client.ServerInfo().ok());
    EXPECT_EQ(heard_.Get(), expected);
    heard_ = std::string();
    const std::vector<double> b = {1};
    std::vector<double> x = {0};
    const client::Factorization handle{"h", 1, 1, client::Scalar::kFloat64};
    EXPECT_TRUE(client.Solve(handle, b, x).ok());  // over the bulk connection: no threshold
    EXPECT_EQ(heard_.Get(), expected);
    heard_ = std::string();
    client::SolveSession session = client.OpenSession();
    const auto id = session.Send(handle, b, x);
    ASSERT_TRUE(id.ok() && session.Await(*id).ok());
    EXPECT_EQ(heard_.Get(), expected);
  }
  std::string Path(const std::string& name) const { return folder_ / name; }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name)) << text;
    return Path(name);
  }

  const test::TempFolder folder_;
  Shared<std::string> heard_;
};

TEST_F(TokenTest, InPlainTextOnThisHost) {
  FakeSolver fake;
  Listen(fake);
  ExpectSaid(
      *SolverClient::Connect(fake.target(), {.token = "secret", .stream_threshold_bytes = 0}),
      "Bearer secret");
  ExpectSaid(*SolverClient::Connect(fake.target(), {.stream_threshold_bytes = 0}), "(none)");
  fake.on_call = nullptr;
}

TEST_F(TokenTest, OverTls) {
  const std::string command =
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj "
      "/CN=localhost -addext subjectAltName=DNS:localhost -keyout " +
      Path("key.pem") + " -out " + Path("cert.pem") + " >/dev/null 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const std::string certificate = *ReadFile(Path("cert.pem"));
  grpc::SslServerCredentialsOptions options;
  options.pem_key_cert_pairs.push_back({*ReadFile(Path("key.pem")), certificate});
  FakeSolver fake(grpc::SslServerCredentials(options));
  Listen(fake);
  const client::TlsOptions tls{.root_certificates = certificate, .server_name = "localhost"};
  ExpectSaid(*SolverClient::Connect(fake.target(),
                                    {.tls = tls, .token = "secret", .stream_threshold_bytes = 0}),
             "Bearer secret");
  const Outcome info = Blockctl(
      fake.target(), {"info", "--tls_ca_file=" + Path("cert.pem"), "--tls_server_name=localhost",
                      "--token_file=" + Write("token", "another-secret\n")});
  EXPECT_EQ(info.exit_status, 0) << info.err;
  EXPECT_EQ(heard_.Get(), "Bearer another-secret");
  fake.on_call = nullptr;
}

TEST_F(TokenTest, BlockctlReadsItFromAFile) {
  FakeSolver fake;
  Listen(fake);
  EXPECT_EQ(Blockctl(fake.target(), {"info", "--token_file=" + Write("token", " secret\r\n")})
                .exit_status,
            0);
  EXPECT_EQ(heard_.Get(), "Bearer secret");
  const Outcome missing = Blockctl(fake.target(), {"info", "--token_file=" + Path("nobody")});
  EXPECT_EQ(missing.exit_status, 3);
  EXPECT_THAT(missing.err, HasSubstr("nobody: cannot read"));
  const Outcome empty = Blockctl(fake.target(), {"info", "--token_file=" + Write("empty", "\n")});
  EXPECT_EQ(empty.exit_status, 3);
  EXPECT_THAT(empty.err, HasSubstr("holds no token"));
  // It is not sent to others in plain text, nor shown.
  const Outcome far = Blockctl("solver.invalid:7117", {"info", "--token_file=" + Path("token")});
  EXPECT_EQ(far.exit_status, 3);
  EXPECT_THAT(far.err, AllOf(HasSubstr("without TLS"), Not(HasSubstr("secret"))));
  fake.on_call = nullptr;
}

}  // namespace
}  // namespace blockd::blockctl
