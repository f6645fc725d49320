// Who owns a handle, with real certificates, tokens and names, also such as try to be somebody
// else.
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "blockd/v1/admin.grpc.pb.h"
#include "server/identity/token.h"
#include "server/log/logging.h"
#include "tests/integration/fixture.h"
#include "tests/support/certificates.h"

namespace blockd::test {
namespace {

constexpr char kToken[] = "a-token-that-nobody-would-guess";

class IdentityTest : public IntegrationTest {
 protected:
  // With certificates, unless a test takes them away.
  IdentityTest() {
    files_.MakeAuthority("ca");
    files_.Make("server", "server", {Dns("localhost")});
    options_.tls_cert_file = files_.Path("server.pem");
    options_.tls_key_file = files_.Path("server.key");
    options_.tls_client_ca_file = files_.Path("ca.pem");
  }
  void NoTls() {
    options_.tls_cert_file = options_.tls_key_file = options_.tls_client_ca_file = "";
  }
  void Tenants(const std::string& text) {
    options_.access.tenants_file = files_.Path("tenants");
    std::ofstream(files_.Path("tenants")) << text;
  }
  static std::string HashOf(const std::string& token) {
    return server::TokenHashDigits(token).value();
  }

  // A client with this certificate, or with none.
  std::shared_ptr<grpc::Channel> ChannelOf(const std::string& name) const {
    if (options_.tls_cert_file.empty()) return NewChannel();
    grpc::SslCredentialsOptions tls;
    tls.pem_root_certs = files_.Text("ca.pem");
    if (!name.empty()) {
      tls.pem_cert_chain = files_.Text(name + ".pem");
      tls.pem_private_key = files_.Text(name + ".key");
    }
    grpc::ChannelArguments arguments;
    arguments.SetSslTargetNameOverride("localhost");
    return grpc::CreateCustomChannel(server_->grpc_target(), grpc::SslCredentials(tls), arguments);
  }
  std::unique_ptr<v1::Solver::Stub> As(const std::string& name) const {
    return v1::Solver::NewStub(ChannelOf(name));
  }
  std::unique_ptr<v1::Solver::Stub> As(const std::string& common_name,
                                       const std::vector<SubjectName>& names) {
    const std::string file = absl::StrCat("client", ++clients_);
    files_.Make(file, common_name, names);
    return As(file);
  }

  static grpc::Status Factor(v1::Solver::Stub& stub, grpc::ClientContext* context,
                             std::string* handle) {
    const HostMatrix matrix(problems::Poisson(4, 4), Scalar::kFloat64);
    v1::FactorReply reply;
    const grpc::Status status = stub.Factor(context, FactorRequestOf(matrix), &reply);
    if (status.ok()) *handle = reply.system(0).handle();
    return status;
  }
  static grpc::Status Factor(v1::Solver::Stub& stub) {
    std::string handle;
    return Factor(stub, NewContext().get(), &handle);
  }
  // True if `other` may use a factorization that `one` made.
  static bool SameTenant(v1::Solver::Stub& one, v1::Solver::Stub& other) {
    v1::GetFactorizationRequest request;
    EXPECT_TRUE(IsOk(Factor(one, NewContext().get(), request.mutable_handle())));
    v1::FactorizationInfo info;
    const grpc::Status status = other.GetFactorization(NewContext().get(), request, &info);
    EXPECT_TRUE(status.ok() || IsNotFound(status, v1::HandleNotFound::NEVER_EXISTED));
    return status.ok();
  }
  static std::unique_ptr<grpc::ClientContext> WithToken(const std::string& value) {
    auto context = NewContext();
    context->AddMetadata("authorization", value);
    return context;
  }
  static ::testing::AssertionResult IsRefused(
      const grpc::Status& status, const std::string& words = "",
      grpc::StatusCode code = grpc::StatusCode::UNAUTHENTICATED) {
    if (status.error_code() == code && absl::StrContains(status.error_message(), words)) {
      return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure()
           << "status " << status.error_code() << ": " << status.error_message();
  }

  Certificates files_;
  server::ServerOptions options_ = Options();
  int clients_ = 0;
};

TEST_F(IdentityTest, ANameOfAnotherKindOpensNothing) {
  options_.access.certificate_identity = "dns,uri,email,common_name";
  Start(options_);
  const auto dns = As("x", {Dns("tenant-a")}), again = As("y", {Dns("tenant-a")});
  EXPECT_TRUE(SameTenant(*dns, *again));
  const auto uri = As("", {Uri("tenant-a")}), email = As("", {Email("tenant-a")}),
             common_name = As("tenant-a", {});
  v1::Solver::Stub* const all[] = {dns.get(), uri.get(), email.get(), common_name.get()};
  for (v1::Solver::Stub* one : all) {
    for (v1::Solver::Stub* other : all) EXPECT_EQ(SameTenant(*one, *other), one == other);
  }
}

TEST_F(IdentityTest, TwoNamesAreNotTheOneThatJoinsThem) {
  Tenants("tenant { name: \"t\" identity { dns: \"a\" } }");
  Start(options_);
  const auto joined = As("", {Dns("a,b")}), both = As("", {Dns("a"), Dns("b")}),
             first = As("", {Dns("a")});
  EXPECT_FALSE(SameTenant(*joined, *both));
  EXPECT_FALSE(SameTenant(*joined, *first));
  EXPECT_TRUE(SameTenant(*both, *first));
  EXPECT_TRUE(IsRefused(Factor(*As("", {Dns("b"), Dns("c")})), "none is a tenant's"));
}

TEST_F(IdentityTest, CertificatesWithoutAUsableNameAreNobody) {
  Tenants("tenant { name: \"t\" identity { dns: \"a.example\" } }");
  Start(options_);
  EXPECT_TRUE(IsRefused(Factor(*As("", {})), "no name of a kind that counts"));
  EXPECT_TRUE(IsRefused(Factor(*As("a.example", {})), "no name of a kind that counts"));
  EXPECT_TRUE(IsRefused(Factor(*As("", {Email("a@a.example")})), "no name of a kind that counts"));
  EXPECT_TRUE(IsRefused(Factor(*As("", {Dns("*.example")})), "wildcard"));
  EXPECT_TRUE(IsRefused(Factor(*As("", {Dns(std::string("a.example\0.evil", 15))})), "printable"));
  EXPECT_TRUE(IsRefused(Factor(*As("", {Uri(std::string("a\0", 2))})), "printable"));
  EXPECT_TRUE(IsRefused(Factor(*As("", {Uri("a\nlevel=info event=stopped")})), "printable"));
  EXPECT_TRUE(IsRefused(Factor(*As("", {Uri(std::string(200, 'x'))})), "200 characters"));
  EXPECT_TRUE(IsRefused(Factor(*As("", {Uri(std::string(3000, 'x'))})), "printable"));
  EXPECT_TRUE(IsOk(Factor(*As("", {Dns("a.example")}))));
}

TEST_F(IdentityTest, ASpiffeIdIsAUri) {
  Tenants(
      "tenant { name: \"control\" identity { uri: \"spiffe://x/control\" } }"
      "refuse_unlisted: true");
  Start(options_);
  EXPECT_TRUE(IsOk(Factor(*As("", {Uri("spiffe://x/control"), Dns("pod-7")}))));
  EXPECT_TRUE(IsRefused(Factor(*As("", {Uri("spiffe://x/other")})), "spiffe://x/other",
                        grpc::StatusCode::PERMISSION_DENIED));
  EXPECT_TRUE(IsRefused(Factor(*As("", {Uri("spiffe://x/control/")})), "",
                        grpc::StatusCode::PERMISSION_DENIED));
}

TEST_F(IdentityTest, StreamsAndEveryMethodAskWhoItIs) {
  NoTls();
  Tenants(
      "tenant { name: \"t\" identity { metadata: \"watcher\" } role: METRICS }"
      "refuse_unlisted: true");
  Start(options_);
  const std::pair<const char*, grpc::StatusCode> callers[] = {
      {"", grpc::StatusCode::UNAUTHENTICATED},
      {"stranger", grpc::StatusCode::PERMISSION_DENIED},
      {"watcher", grpc::StatusCode::PERMISSION_DENIED}};  // has not the role USE
  for (const auto& [caller, code] : callers) {
    const auto is = [expected = code](const grpc::Status& status) {
      return IsRefused(status, "", expected);
    };
    v1::FactorReply factored;
    EXPECT_TRUE(is(stub().Factor(NewContext(caller).get(), {}, &factored)));
    v1::SolveReply solved;
    EXPECT_TRUE(is(stub().Solve(NewContext(caller).get(), {}, &solved)));
    v1::FactorSolveReply both;
    EXPECT_TRUE(is(stub().FactorSolve(NewContext(caller).get(), {}, &both)));
    v1::ReleaseReply released;
    EXPECT_TRUE(is(stub().Release(NewContext(caller).get(), {}, &released)));
    v1::FactorizationInfo info;
    EXPECT_TRUE(is(stub().GetFactorization(NewContext(caller).get(), {}, &info)));
    v1::ListFactorizationsReply list;
    EXPECT_TRUE(is(stub().ListFactorizations(NewContext(caller).get(), {}, &list)));
    v1::ServerInfo server_info;
    EXPECT_TRUE(is(stub().GetServerInfo(NewContext(caller).get(), {}, &server_info)));
    v1::Plan plan;
    EXPECT_TRUE(is(stub().GetPlan(NewContext(caller).get(), {}, &plan)));
    const auto upload_context = NewContext(caller), stream_context = NewContext(caller);
    const auto upload = stub().FactorStream(upload_context.get(), &factored);
    EXPECT_TRUE(is(upload->Finish()));
    const auto stream = stub().SolveStream(stream_context.get());
    v1::SolveStreamReply reply;
    EXPECT_FALSE(stream->Read(&reply));
    EXPECT_TRUE(is(stream->Finish()));
    v1::SolveManyReply many;
    EXPECT_TRUE(is(stub().SolveMany(NewContext(caller).get(), {}, &many)));
    EXPECT_TRUE(is(stub().FactorSolveMany(NewContext(caller).get(), {}, &many)));
    const auto inverse_context = NewContext(caller), sample_context = NewContext(caller),
               smooth_context = NewContext(caller);
    EXPECT_TRUE(is(stub().SelectedInverse(inverse_context.get(), {})->Finish()));
    EXPECT_TRUE(is(stub().Sample(sample_context.get(), {})->Finish()));
    EXPECT_TRUE(is(stub().Smooth(smooth_context.get())->Finish()));
  }
  EXPECT_EQ(Health(), 1);  // which is anybody's to know
}

TEST_F(IdentityTest, ATokenIsItsTenantsAndNobodyElses) {
  options_.tls_client_ca_file = "";
  options_.access.trust_caller_metadata = "false";
  Tenants(
      absl::StrCat("tenant { name: \"t\" identity { token_sha256: \"", HashOf(kToken), "\" } }"));
  Start(options_);
  const auto stub = As("");
  std::string handle;
  EXPECT_TRUE(IsOk(Factor(*stub, WithToken(absl::StrCat("Bearer ", kToken)).get(), &handle)));
  for (const std::string& wrong : {absl::StrCat("Bearer ", kToken, "x"), std::string("Bearer "),
                                   std::string(kToken), absl::StrCat("Bearer ", HashOf(kToken))}) {
    const grpc::Status status = Factor(*stub, WithToken(wrong).get(), &handle);
    EXPECT_TRUE(IsRefused(status)) << wrong;
    EXPECT_FALSE(absl::StrContains(status.error_message(), kToken));
  }
  EXPECT_TRUE(IsRefused(Factor(*stub), "Bearer TOKEN"));
}

TEST_F(IdentityTest, ATokenIsNeverInTheLog) {
  NoTls();
  options_.log_level = "debug";
  server::SetUpLogging({.level = "debug"});
  testing::internal::CaptureStderr();
  Tenants(
      absl::StrCat("tenant { name: \"t\" identity { token_sha256: \"", HashOf(kToken), "\" } }"));
  Start(options_);
  const std::string wrong = absl::StrCat(kToken, "-wrong");
  std::string handle;
  EXPECT_TRUE(IsOk(Factor(stub(), WithToken(absl::StrCat("Bearer ", kToken)).get(), &handle)));
  EXPECT_TRUE(IsRefused(Factor(stub(), WithToken(absl::StrCat("Bearer ", wrong)).get(), &handle)));
  server_.reset();
  server::SetUpLogging({.level = "off"});
  EXPECT_TRUE(server::FlushLog(absl::Minutes(1)));
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(absl::StrContains(log, "caller=t")) << log;
  EXPECT_TRUE(absl::StrContains(log, "UNAUTHENTICATED")) << log;
  EXPECT_FALSE(absl::StrContains(log, kToken));
}

TEST_F(IdentityTest, CallersAreTrustedToNameThemselvesOnLoopbackOrWhereTheFlagSaysSo) {
  NoTls();
  Start(options_);
  EXPECT_TRUE(IsOk(Factor(stub())));
  options_.address = "0.0.0.0";
  const auto refused = server::Server::Start(options_);
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
  server_.reset();
  options_.access.trust_caller_metadata = "true";
  Start(options_);
  EXPECT_TRUE(IsOk(Factor(*v1::Solver::NewStub(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", server_->grpc_port()), grpc::InsecureChannelCredentials())))));
}

TEST_F(IdentityTest, TheFileThatIsDeployedLetsInWhomItSays) {
  options_.access.tenants_file = BLOCKD_DEPLOY "/tenants.textproto";
  Start(options_);
  files_.Make("operators", "", {Uri("spiffe://plant.example/operators")});
  files_.Make("control", "", {Uri("spiffe://plant.example/control"), Dns("pod-7")});
  const auto control = As("control"), smoother = As("", {Dns("smoother.plant.example")}),
             stranger = As("", {Dns("somebody.example")});
  EXPECT_FALSE(SameTenant(*control, *smoother));
  EXPECT_TRUE(IsOk(Factor(*stranger)));
  std::string handle;
  EXPECT_TRUE(IsRefused(Factor(*As("control"), WithToken("Bearer guessed").get(), &handle)));
  const auto tenants = [this](const std::string& who, std::vector<std::string>* names) {
    v1::ListTenantsReply reply;
    const auto admin = v1::Admin::NewStub(ChannelOf(who));
    const grpc::Status status = admin->ListTenants(NewContext().get(), {}, &reply);
    for (const v1::Tenant& tenant : reply.tenant()) names->push_back(tenant.name());
    return status;
  };
  std::vector<std::string> names;
  EXPECT_TRUE(IsRefused(tenants("control", &names), "the tenant control has not the role ADMIN",
                        grpc::StatusCode::PERMISSION_DENIED));
  EXPECT_TRUE(IsOk(tenants("operators", &names)));
  EXPECT_EQ(names, (std::vector<std::string>{"batch", "control", "dns:somebody.example",
                                             "operators", "smoothing"}));
}

TEST_F(IdentityTest, ANewFileOfTenantsHoldsForTheNextCall) {
  NoTls();
  Tenants("tenant { name: \"t\" identity { metadata: \"alice\" } } refuse_unlisted: true");
  Start(options_);
  const auto call = [this](const char* caller) {
    v1::ServerInfo info;
    return stub().GetServerInfo(NewContext(caller).get(), {}, &info);
  };
  EXPECT_TRUE(IsOk(call("alice")));
  EXPECT_FALSE(call("bob").ok());
  Tenants("tenant { name: \"t\" identity { metadata: \"bob\" } } refuse_unlisted: true, nonsense");
  EXPECT_TRUE(absl::IsInvalidArgument(server().Reload()));
  EXPECT_TRUE(IsOk(call("alice")));
  Tenants("tenant { name: \"t\" identity { metadata: \"bob\" } } refuse_unlisted: true");
  EXPECT_TRUE(server().Reload().ok());
  EXPECT_FALSE(call("alice").ok());
  EXPECT_TRUE(IsOk(call("bob")));
}

}  // namespace
}  // namespace blockd::test
