// blockctl admin as who runs a server types it, against the real one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/server.h"
#include "tests/client/blockctl/blockctl_program.h"
#include "tests/client/fake_solver.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_folder.h"

namespace blockd::blockctl {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kTenants[] = R"(
    tenant { name: "operators" identity { metadata: "boss" } role: ADMIN }
    tenant { name: "estimation" identity { metadata: "ada" }
             quotas { handles: 2 pinned_bytes: "1MiB" requests_per_second: 1000 } }
)";

class BlockctlAdminServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Write("tenants", kTenants);
    Write("a.mtx", "%%MatrixMarket matrix coordinate real symmetric\n2 2 2\n1 1 2\n2 2 2\n");
    Write("b.mtx", "%%MatrixMarket matrix array real general\n2 1\n1\n1\n");
    server::ServerOptions options;
    options.port = 0;
    options.metrics_port = -1;
    options.backend = "cpu";
    options.device.memory_bytes = int64_t{64} << 20;
    options.device.cpu_threads = 2;
    options.access.tenants_file = folder_ / "tenants";
    auto server = server::Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }
  Outcome As(const std::string& caller, std::vector<std::string> arguments) const {
    arguments.push_back("--caller=" + caller);
    return Blockctl(server_->grpc_target(), arguments);
  }
  Outcome Admin(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "admin");
    return As("boss", arguments);
  }
  // The handle of a new factorization; empty, and `refused`, if there is none.
  std::string Factor(std::vector<std::string> flags = {}, Outcome* refused = nullptr) const {
    flags.insert(flags.begin(), {"factor", "--matrix=" + (folder_ / "a.mtx")});
    const Outcome outcome = As("ada", flags);
    if (refused != nullptr) *refused = outcome;
    return std::string(absl::StripTrailingAsciiWhitespace(outcome.out));
  }
  Outcome Solve(const std::string& handle) const {
    return As("ada", {"solve", "--handle=" + handle, "--rhs=" + (folder_ / "b.mtx")});
  }

  const test::TempFolder folder_;
  std::unique_ptr<server::Server> server_;
};

TEST_F(BlockctlAdminServerTest, HandlesAreListedUnpinnedAndEvicted) {
  const std::string pinned = Factor({"--pin"}), plain = Factor();
  const Outcome all = Admin({"list"});
  EXPECT_EQ(all.exit_status, 0) << all.err;
  EXPECT_THAT(all.out, AllOf(HasSubstr("estimation"), HasSubstr(pinned), HasSubstr(plain)));
  EXPECT_THAT(Admin({"list", "--pinned_only"}).out,
              AllOf(HasSubstr(pinned), Not(HasSubstr(plain))));
  EXPECT_THAT(Admin({"list", "--tenant=nobody"}).err, HasSubstr("no factorizations are held"));
  EXPECT_THAT(Admin({"unpin", pinned, plain}).err, HasSubstr("unpinned 1"));
  EXPECT_THAT(Admin({"list", "--pinned_only"}).out, Not(HasSubstr(pinned)));
  EXPECT_EQ(Solve(plain).exit_status, 0);
  const std::string unknown(plain.size(), 'a');
  const Outcome evict = Admin({"evict", plain, unknown});
  EXPECT_EQ(evict.exit_status, 0);
  EXPECT_THAT(evict.err, AllOf(HasSubstr("evicted 1, "), HasSubstr(unknown + " is not held")));
  const Outcome gone = Solve(plain);
  EXPECT_EQ(gone.exit_status, 5);
  EXPECT_THAT(gone.err, HasSubstr("evicted"));
  EXPECT_EQ(Solve(pinned).exit_status, 0);
}

TEST_F(BlockctlAdminServerTest, TenantsShowWhoIsOverAQuota) {
  Factor();
  Factor();
  Outcome refused;
  EXPECT_EQ(Factor({}, &refused), "");
  EXPECT_EQ(refused.exit_status, 9) << refused.err;
  Outcome tenants;
  EXPECT_TRUE(test::Eventually([&] {  // a call is counted once it is answered
    tenants = Admin({"tenants"});
    return absl::StrContains(tenants.out, "3 requests");
  }));
  EXPECT_EQ(tenants.exit_status, 0) << tenants.err;
  EXPECT_THAT(tenants.out,
              AllOf(HasSubstr("estimation: weight 1, up to interactive, 3 requests, 1 refused"),
                    HasSubstr("2 of 2"), HasSubstr("of 1.0 MiB"), HasSubstr("of 1000/s"),
                    HasSubstr("operators: ")));
  EXPECT_THAT(Admin({"tenants", "--json"}).out, HasSubstr(R"("handles": {"used": 2, "limit": 2})"));
}

TEST_F(BlockctlAdminServerTest, OnlyWhoHasTheRoleMayAsk) {
  for (const char* caller : {"ada", "stranger"}) {
    for (const char* command : {"list", "tenants", "drain", "reload"}) {
      const Outcome outcome = As(caller, {"admin", command});
      EXPECT_EQ(outcome.exit_status, 10);
      EXPECT_THAT(outcome.err, HasSubstr("has not the role ADMIN"));
    }
  }
}

TEST_F(BlockctlAdminServerTest, TheFileOfTenantsIsReadAgain) {
  EXPECT_THAT(Admin({"reload"}).err, HasSubstr("2 tenants, as before"));
  Write("tenants", absl::StrCat(kTenants, "tenant { name: \"new\" weight: 0 }"));
  const Outcome wrong = Admin({"reload"});
  EXPECT_EQ(wrong.exit_status, 3);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr((folder_ / "tenants") + ":5: tenant \"new\": weight"),
                               HasSubstr("0.01 to 100")));
  EXPECT_THAT(Admin({"tenants"}).out, Not(HasSubstr("new")));
  Write("tenants", absl::StrCat(kTenants, "tenant { name: \"new\" }"));
  EXPECT_THAT(Admin({"reload"}).err, HasSubstr("3 tenants, changed"));
  EXPECT_THAT(Admin({"tenants"}).out, HasSubstr("new: "));
}

TEST_F(BlockctlAdminServerTest, TheLevelOfTheLogIsSet) {
  EXPECT_EQ(Admin({"log-level", "off"}).exit_status, 0);
  EXPECT_THAT(Admin({"log-level", "warn"}).err, HasSubstr("log level warn, was off"));
  EXPECT_THAT(Admin({"log-level", "off"}).err, HasSubstr("log level off, was warn"));
  const Outcome wrong = Admin({"log-level", "loud"});
  EXPECT_EQ(wrong.exit_status, 3);
  EXPECT_THAT(wrong.err, HasSubstr("debug, info, warn, error, off"));
}

TEST_F(BlockctlAdminServerTest, ADrainEndsTheWork) {
  const Outcome drain = Admin({"drain"});
  EXPECT_EQ(drain.exit_status, 0) << drain.err;
  EXPECT_THAT(drain.err, HasSubstr("draining: 0 requests under way, at most 30"));
  // The last attempt is refused, or its deadline passes as it is sent.
  const Outcome refused = As("ada", {"factor", "--matrix=" + (folder_ / "a.mtx"), "--timeout=3s"});
  EXPECT_THAT(refused.exit_status, AnyOf(2, 7)) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("takes no new work"));
  EXPECT_EQ(Admin({"drain"}).exit_status, 0);
}

TEST(BlockctlOldServerTest, ACallThatTheServerDoesNotHaveIsSaidInWords) {
  client::FakeSolver old;
  old.admin.on_tenants = [](v1::ListTenantsReply*) {
    return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
  };
  const Outcome outcome = Blockctl(old.target(), {"admin", "tenants"});
  EXPECT_EQ(outcome.exit_status, 8);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("blockctl: UNIMPLEMENTED"),
                                 HasSubstr("the server has no such call")));
  EXPECT_THAT(Blockctl(old.target(), {"admin", "tenants", "--json"}).out,
              HasSubstr("\"message\": \"UNIMPLEMENTED\""));
}

}  // namespace
}  // namespace blockd::blockctl
