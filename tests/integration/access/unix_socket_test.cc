// A Unix socket beside the port: the same server, and rules of its own for who asks.
#include <fstream>
#include <thread>

#include "tests/integration/fixture.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"

namespace blockd::test {
namespace {

class UnixSocketTest : public IntegrationTest {
 protected:
  UnixSocketTest() { options_.access.unix_socket = path_; }

  std::shared_ptr<grpc::Channel> UnixChannel(int number = 0) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt("number", number);  // each a connection of its own
    return grpc::CreateCustomChannel("unix:" + path_, grpc::InsecureChannelCredentials(),
                                     arguments);
  }
  static grpc::Status Ask(const std::shared_ptr<grpc::Channel>& channel,
                          const std::string& caller = "") {
    v1::FactorReply reply;
    return v1::Solver::NewStub(channel)->Factor(NewContext(caller).get(), FactorRequestOf(Matrix()),
                                                &reply);
  }
  static HostMatrix Matrix() { return HostMatrix(problems::Poisson(4, 4), Scalar::kFloat64); }

  const TempFolder folder_;
  const std::string path_ = folder_ / "socket";
  server::ServerOptions options_ = Options();
};

TEST_F(UnixSocketTest, AnswersAreTheSameAsThroughThePort) {
  Start(options_);
  const HostMatrix matrix(problems::RandomSpd(5, 7, 3, 10), Scalar::kFloat64);
  const std::string handle = Factor(matrix);
  v1::SolveRequest request;
  request.set_handle(handle);
  request.set_num_rhs(1);
  request.set_rhs(BytesOf(std::vector<double>(35, 1.5)));
  v1::SolveReply port, file;
  ASSERT_TRUE(IsOk(SolveStatus(request, &port)));
  const auto stub = v1::Solver::NewStub(UnixChannel());
  ASSERT_TRUE(IsOk(stub->Solve(NewContext().get(), request, &file)));
  EXPECT_EQ(port.solution(), file.solution());
}

TEST_F(UnixSocketTest, WhereThePortAsksForCertificatesTheSocketAsksForNone) {
  Certificates files;
  files.MakeAuthority("ca");
  files.Make("server", "server", {Dns("localhost")});
  options_.tls_cert_file = files.Path("server.pem");
  options_.tls_key_file = files.Path("server.key");
  options_.tls_client_ca_file = files.Path("ca.pem");
  Start(options_);
  EXPECT_TRUE(IsOk(Ask(UnixChannel(), "ada")));
  EXPECT_EQ(server().core().List("metadata:ada", std::nullopt, 10).size(), 1u);
  EXPECT_EQ(Ask(NewChannel()).error_code(), grpc::StatusCode::UNAVAILABLE);  // no TLS
}

TEST_F(UnixSocketTest, NobodyNamesHimselfWhereTheFlagSaysSo) {
  options_.access.trust_caller_metadata = "false";
  options_.access.tenants_file = folder_ / "tenants";
  std::ofstream(folder_ / "tenants") << "tenant { name: \"t\" identity { metadata: \"ada\" } }";
  Start(options_);
  EXPECT_EQ(Ask(UnixChannel(), "ada").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Ask(UnixChannel()).error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(UnixSocketTest, ConnectionsOfBothKindsCountTogether) {
  options_.max_connections = 3;
  Start(options_);
  ASSERT_TRUE(IsOk(Ask(channel_)));
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < 2; ++i) {
    channels.push_back(UnixChannel(i));
    ASSERT_TRUE(IsOk(Ask(channels.back())));
  }
  EXPECT_EQ(Ask(UnixChannel(2)).error_code(), grpc::StatusCode::UNAVAILABLE);
  channels.pop_back();
  EXPECT_TRUE(Eventually([&] { return Ask(UnixChannel(3)).ok(); }));
}

TEST_F(UnixSocketTest, ManyProcessesAtOnceAreServed) {
  Start(options_);
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([this, i] {
      for (int k = 0; k < 5; ++k) EXPECT_TRUE(IsOk(Ask(UnixChannel(8 * i + k))));
    });
  }
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace blockd::test
