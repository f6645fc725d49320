// TLS over time: new files, wrong files, old versions; the port for probes beside it; reflection.
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/rpc_method.h>
#include <openssl/ssl.h>
#include <unistd.h>

#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/base/descriptors.h"
#include "server/health_server.h"
#include "server/log/logging.h"
#include "server/net/listener.h"
#include "server/net/transport_security.h"
#include "tests/integration/fixture.h"
#include "tests/integration/hostile/wire_between.h"
#include "tests/support/certificates.h"

namespace blockd::test {
namespace {

using grpc::internal::RpcMethod;

class TlsTest : public IntegrationTest {
 protected:
  TlsTest() {
    files_.MakeAuthority("ca");
    files_.MakeAuthority("other");
    files_.Make("client", "", {Dns("client")});
    files_.Make("first", "", {Dns("localhost")});
    files_.Make("second", "", {Dns("localhost")}, "other");
    Serve("first", "ca");
    options_.tls_cert_file = files_.Path("server.pem");
    options_.tls_key_file = files_.Path("server.key");
    options_.tls_client_ca_file = files_.Path("clients.pem");
    options_.access.tls_watch_interval = absl::Hours(1);  // but where a test says otherwise
  }
  // Replaces the contents of the server's files.
  void Serve(const std::string& certificate, const std::string& clients) {
    files_.Replace("server.pem", certificate + ".pem");
    files_.Replace("server.key", certificate + ".key");
    files_.Replace("clients.pem", clients + ".pem");
  }
  std::shared_ptr<grpc::Channel> Connect(const std::string& trusted) const {
    grpc::SslCredentialsOptions tls{files_.Text(trusted + ".pem"), files_.Text("client.key"),
                                    files_.Text("client.pem")};
    grpc::ChannelArguments arguments;
    arguments.SetSslTargetNameOverride("localhost");
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
    return grpc::CreateCustomChannel(server_->grpc_target(), grpc::SslCredentials(tls), arguments);
  }
  static grpc::Status Ask(const std::shared_ptr<grpc::Channel>& channel) {
    v1::ServerInfo info;
    return v1::Solver::NewStub(channel)->GetServerInfo(NewContext().get(), {}, &info);
  }
  // The status of a call to a method without a generated stub.
  static grpc::Status AskRaw(const std::shared_ptr<grpc::Channel>& channel, const char* path) {
    const grpc::Slice empty;
    grpc::ByteBuffer request(&empty, 1), reply;
    return grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
        channel.get(), RpcMethod(path, RpcMethod::NORMAL_RPC), NewContext().get(), request, &reply);
  }
  // The log of what `work` does.
  static std::string LogOf(const std::function<void()>& work) {
    server::SetUpLogging({.level = "info"});
    testing::internal::CaptureStderr();
    work();
    server::SetUpLogging({.level = "off"});
    EXPECT_TRUE(server::FlushLog(absl::Minutes(1)));
    return testing::internal::GetCapturedStderr();
  }

  Certificates files_;
  server::ServerOptions options_ = Options();
};

TEST_F(TlsTest, NewFilesHoldForNewConnections) {
  Start(options_);
  const auto stands = Connect("ca");
  EXPECT_TRUE(IsOk(Ask(stands)));
  EXPECT_FALSE(Ask(Connect("other")).ok());
  Serve("second", "ca");
  const std::string log = LogOf([this] { EXPECT_TRUE(server().Reload().ok()); });
  EXPECT_TRUE(absl::StrContains(log, " event=reload tenants_file=none tls_files=read\n")) << log;
  EXPECT_TRUE(IsOk(Ask(Connect("other"))));
  EXPECT_FALSE(Ask(Connect("ca")).ok());
  EXPECT_TRUE(IsOk(Ask(stands)));
  // Whom the new authority did not sign may not come in any more.
  Serve("second", "other");
  EXPECT_TRUE(server().Reload().ok());
  EXPECT_FALSE(Ask(Connect("other")).ok());
}

TEST_F(TlsTest, FilesAreWatched) {
  options_.access.tls_watch_interval = absl::Milliseconds(1);
  Start(options_);
  EXPECT_FALSE(Ask(Connect("other")).ok());
  Serve("second", "ca");
  EXPECT_TRUE(Eventually([this] { return Ask(Connect("other")).ok(); }));
}

TEST_F(TlsTest, WrongFilesLeaveTheOldOnesInForce) {
  options_.log_level = "info";
  Start(options_);
  files_.Replace("server.key", "second.key");  // of another certificate
  const std::string log = LogOf([this] {
    const absl::Status status = server().Reload();
    EXPECT_TRUE(absl::StrContains(status.message(), "the key of the certificate")) << status;
    EXPECT_FALSE(server().Reload().ok());
  });
  EXPECT_TRUE(absl::StrContains(
      log, " level=error event=reload tenants_file=none tls_files=\"refused, the old ones are"))
      << log;
  const size_t said = log.find("event=tls_files_refused");
  EXPECT_NE(said, std::string::npos) << log;
  EXPECT_EQ(log.find("event=tls_files_refused", said + 1), std::string::npos) << "twice: " << log;
  EXPECT_TRUE(IsOk(Ask(Connect("ca"))));
  Serve("second", "ca");
  EXPECT_TRUE(server().Reload().ok());
  EXPECT_TRUE(IsOk(Ask(Connect("other"))));
}

TEST_F(TlsTest, AWrongFileAtTheStartIsSaidInItsOwnWords) {
  files_.Replace("server.key", "second.key");
  const absl::Status status = server::Server::Start(options_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_TRUE(absl::StartsWith(status.message(),
                               absl::StrCat("--tls_key_file=", files_.Path("server.key"), ":")))
      << status;
  EXPECT_FALSE(absl::StrContains(status.message(), "port"));
}

TEST_F(TlsTest, ACertificateThatEndsIsAWarning) {
  const auto warned = [this](const std::string& file, int days) {
    files_.Make(file, "", {Dns("localhost")}, "ca", days);
    absl::Duration left;
    const std::string log = LogOf([&] {
      const auto security = server::TransportSecurity::Start(
          {.paths = {files_.Path(file + ".pem"), files_.Path(file + ".key"), ""}});
      ASSERT_TRUE(security.ok()) << security.status();
      left = (*security)->TimeToExpiry();
    });
    EXPECT_LE(left, absl::Hours(24 * days));
    EXPECT_GT(left, absl::Hours(24 * days) - absl::Minutes(5));
    if (!absl::StrContains(log, "level=warn")) return std::string();
    const size_t begin = log.find("message=\"") + 9;
    return log.substr(begin, log.find('"', begin) - begin);
  };
  EXPECT_EQ(warned("long", 31), "");
  EXPECT_EQ(warned("soon", 29), "the certificate expires soon");
  EXPECT_EQ(warned("old", -1), "the certificate has expired");
}

TEST_F(TlsTest, TheMetricsSayWhenTheCertificateEnds) {
  options_.metrics_port = 0;
  Start(options_);
  const auto left = [this] {
    const std::string page = HttpGet(server_->metrics_port(), "/metrics");
    const std::string name = "\nblockd_tls_certificate_expiry_seconds ";
    const size_t at = page.find(name);
    EXPECT_NE(at, std::string::npos) << page;
    return std::stod(page.substr(at + name.size()));
  };
  EXPECT_GT(left(), 23 * 3600);
  EXPECT_LE(left(), 24 * 3600);
  files_.Make("second", "", {Dns("localhost")}, "ca", 10);
  Serve("second", "ca");
  EXPECT_TRUE(server().Reload().ok());
  EXPECT_GT(left(), 9 * 24 * 3600);
}

TEST_F(TlsTest, OneConnectionTooManyIsClosed) {
  options_.max_connections = 1;
  Start(options_);
  auto stands = Connect("ca");
  EXPECT_TRUE(IsOk(Ask(stands)));
  EXPECT_EQ(Ask(Connect("ca")).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(IsOk(Ask(stands)));
  stands.reset();
  EXPECT_TRUE(Eventually([this] { return Ask(Connect("ca")).ok(); }));
}

// As OpenSSL itself speaks it, with no version above this.
bool HandshakeSucceeds(int port, int version) {
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  SSL_CTX_set_max_proto_version(context, version);
  const unsigned char alpn[] = "\x02h2";
  SSL_CTX_set_alpn_protos(context, alpn, 3);
  BIO* bio = BIO_new_ssl_connect(context);
  BIO_set_conn_hostname(bio, absl::StrCat("127.0.0.1:", port).c_str());
  const bool succeeds = BIO_do_handshake(bio) == 1;
  BIO_free_all(bio);
  SSL_CTX_free(context);
  return succeeds;
}

TEST_F(TlsTest, OldVersionsAreRefused) {
  Start(options_);
  EXPECT_FALSE(HandshakeSucceeds(server_->grpc_port(), TLS1_2_VERSION));
  EXPECT_TRUE(HandshakeSucceeds(server_->grpc_port(), TLS1_3_VERSION));
  // One process has one oldest version.
  options_.access.tls_min_version = "1.2";
  const absl::Status status = server::Server::Start(options_).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "--tls_min_version=1.2: expected 1.3")) << status;
}

TEST_F(TlsTest, ProbesAskAPortWithoutTls) {
  options_.access.health_port = 0;
  Start(options_);
  ASSERT_GT(server_->health_port(), 0);
  channel_ = grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->health_port()),
                                 grpc::InsecureChannelCredentials());
  EXPECT_EQ(Health(), 1);
  EXPECT_EQ(Health("blockd.v1.Solver"), 1);
  EXPECT_EQ(Ask(channel_).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(AskRaw(channel_, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
                .error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  server_->StartDrain();
  EXPECT_EQ(Health(), 2);
  EXPECT_EQ(Health("blockd.v1.Solver"), 2);
}

TEST_F(TlsTest, ProbesAreAnsweredOnceThereIsRoomForThem) {
  absl::StatusOr<server::Listener> listener =
      server::Listen("127.0.0.1", 0, absl::InfiniteDuration());
  ASSERT_TRUE(listener.ok()) << listener.status();
  auto health = server::HealthServer::Start(
      *std::move(listener), {.name = "probes", .connections = 2, .descriptors = 1 << 20});
  ASSERT_TRUE(health.ok()) << health.status();
  const auto probe = [&] {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return AskRaw(grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", (*health)->port()),
                                            grpc::InsecureChannelCredentials(), arguments),
                  "/grpc.health.v1.Health/Check");
  };
  {
    const server::FileDescriptor first(ConnectTo((*health)->port())),
        second(ConnectTo((*health)->port()));
    const server::FileDescriptor third(ConnectTo((*health)->port()));
    char byte = 0;
    EXPECT_LE(read(third.get(), &byte, 1), 0);  // closed
    EXPECT_EQ(probe().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  EXPECT_TRUE(Eventually([&] { return probe().ok(); }));
}

TEST_F(TlsTest, AHealthPortThatIsTakenIsSaidToBe) {
  options_.access.health_port = 0;
  Start(options_);
  auto taken = server_->health_port();
  options_.access.health_port = taken;
  const absl::Status status = server::Server::Start(options_).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "--health_port")) << status;
}

TEST_F(TlsTest, ReflectionIsThereOnlyWhereItIsWanted) {
  for (const bool wanted : {true, false}) {
    options_.access.reflection = wanted ? "true" : "false";
    Start(options_);
    const grpc::Status status =
        AskRaw(Connect("ca"), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo");
    EXPECT_EQ(status.error_code() != grpc::StatusCode::UNIMPLEMENTED, wanted)
        << status.error_message();
    server_.reset();
  }
}

}  // namespace
}  // namespace blockd::test
