// blockctl admin as who runs a server types it, against a scripted one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "client/blockctl/text/admin_text.h"
#include "tests/client/blockctl/blockctl_program.h"
#include "tests/client/fake_solver.h"

namespace blockd::blockctl {
namespace {

using client::Shared;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class BlockctlAdminTest : public ::testing::Test {
 protected:
  Outcome Admin(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "admin");
    return Blockctl(fake_.target(), arguments);
  }
  client::FakeSolver fake_;
};

TEST_F(BlockctlAdminTest, ListShowsWhoseEachHandleIs) {
  Shared<v1::ListAllFactorizationsRequest> asked;
  fake_.admin.on_list = [&](const v1::ListAllFactorizationsRequest& request,
                            v1::ListAllFactorizationsReply* reply) {
    asked = request;
    for (const char* tenant : {"ada", "a-name-that-is-longer\x1b[2J"}) {
      v1::TenantFactorization& one = *reply->add_factorization();
      one.set_tenant(tenant);
      one.mutable_info()->set_handle("\xab\xcd");
      one.mutable_info()->set_num_blocks(12);
      one.mutable_info()->set_pinned(true);
    }
    return grpc::Status::OK;
  };
  const Outcome list = Admin({"list"});
  EXPECT_EQ(list.exit_status, 0) << list.err;
  EXPECT_THAT(list.out,
              AllOf(HasSubstr("TENANT"), HasSubstr("ada "), HasSubstr("abcd"), HasSubstr(" pinned"),
                    HasSubstr("a-name-that-is-longer?[2J"), Not(HasSubstr("\x1b"))));
  EXPECT_EQ(asked.Get().ByteSizeLong(), 0);
  const Outcome json = Admin(
      {"list", "--json", "--tenant=ada", "--pinned_only", "--min_idle=90s", "--min_held_bytes=5"});
  EXPECT_EQ(json.exit_status, 0) << json.err;
  EXPECT_THAT(json.out, AllOf(HasSubstr("\"tenant\": \"ada\", \"handle\": \"abcd\""),
                              HasSubstr("\"num_blocks\": 12")));
  EXPECT_EQ(asked.Get().tenant(), "ada");
  EXPECT_TRUE(asked.Get().pinned_only());
  EXPECT_EQ(asked.Get().min_idle().seconds(), 90);
  EXPECT_EQ(asked.Get().min_held_bytes(), 5);
}

TEST_F(BlockctlAdminTest, EvictAndUnpinNameHandlesOfAnybody) {
  Shared<std::vector<std::string>> named;
  fake_.admin.on_evict = [&](const v1::EvictRequest& request, v1::EvictReply* reply) {
    for (const std::string& handle : request.handle()) named.Append(handle);
    reply->set_evicted(1);
    reply->set_evicted_bytes(2048);
    reply->add_not_held(request.handle(1));
    return grpc::Status::OK;
  };
  fake_.admin.on_unpin = [&](const v1::UnpinRequest& request, v1::UnpinReply* reply) {
    for (const std::string& handle : request.handle()) named.Append(handle);
    reply->set_unpinned(1);
    return grpc::Status::OK;
  };
  const Outcome evict = Admin({"evict", "abcd", "ef01"});
  EXPECT_EQ(evict.exit_status, 0) << evict.err;
  EXPECT_THAT(evict.err, AllOf(HasSubstr("evicted 1, 2.0 KiB"), HasSubstr("ef01 is not held")));
  EXPECT_THAT(Admin({"evict", "abcd", "ef01", "--json"}).out,
              HasSubstr(R"({"evicted": 1, "evicted_bytes": 2048, "not_held": ["ef01"]})"));
  EXPECT_THAT(Admin({"unpin", "abcd"}).err, HasSubstr("unpinned 1"));
  EXPECT_THAT(Admin({"unpin", "abcd", "--json"}).out,
              HasSubstr(R"({"unpinned": 1, "not_held": []})"));
  EXPECT_THAT(named.Get(),
              ElementsAre("\xab\xcd", "\xef\x01", "\xab\xcd", "\xef\x01", "\xab\xcd", "\xab\xcd"));
}

v1::Tenant SomeTenant() {
  v1::Tenant tenant;
  tenant.set_name("ada");
  tenant.set_configured(true);
  tenant.set_weight(2.5);
  tenant.set_highest_class(v1::REALTIME);
  tenant.set_requests(1000);
  tenant.set_refused(3);
  tenant.set_device_seconds(1.5);
  const auto add = [&](const std::string& quota, double used, double limit) {
    v1::QuotaUse& use = *tenant.add_quota();
    use.set_quota(quota);
    use.set_used(used);
    if (limit >= 0) use.set_limit(limit);
  };
  add("device_bytes", 1 << 20, 4 << 20);
  add("handles", 12, 100);
  add("requests_per_second", 2.5, -1);
  add("upload_bytes_per_second", 1024, 2048);
  return tenant;
}

TEST_F(BlockctlAdminTest, TenantsShowUseAndQuotaInTheirUnits) {
  fake_.admin.on_tenants = [](v1::ListTenantsReply* reply) {
    *reply->add_tenant() = SomeTenant();
    return grpc::Status::OK;
  };
  const Outcome tenants = Admin({"tenants"});
  EXPECT_EQ(tenants.exit_status, 0) << tenants.err;
  EXPECT_THAT(tenants.out,
              AllOf(HasSubstr("ada: weight 2.5, up to realtime, 1000 requests, 3 refused"),
                    HasSubstr("1.0 MiB of 4.0 MiB"), HasSubstr("12 of 100"),
                    HasSubstr("2.5/s of any"), HasSubstr("1.0 KiB/s of 2.0 KiB/s")));
  EXPECT_THAT(
      Admin({"tenants", "--json"}).out,
      AllOf(HasSubstr(
                R"("name": "ada", "configured": true, "weight": 2.5, "highest_class": "realtime")"),
            HasSubstr(R"("handles": {"used": 12, "limit": 100})"),
            HasSubstr(R"("requests_per_second": {"used": 2.5})")));
}

TEST_F(BlockctlAdminTest, TheProcessIsDrainedAndSetOverTheWire) {
  fake_.admin.on_drain = [](v1::DrainReply* reply) {
    reply->set_requests(4);
    reply->mutable_timeout()->set_seconds(30);
    return grpc::Status::OK;
  };
  Shared<std::string> level;
  fake_.admin.on_log_level = [&](const v1::SetLogLevelRequest& request,
                                 v1::SetLogLevelReply* reply) {
    level = request.level();
    reply->set_previous("info");
    return grpc::Status::OK;
  };
  fake_.admin.on_reload = [](v1::ReloadReply* reply) {
    reply->set_tenants(12);
    return grpc::Status::OK;
  };
  EXPECT_THAT(Admin({"drain"}).err, HasSubstr("draining: 4 requests under way, at most 30"));
  EXPECT_THAT(Admin({"drain", "--json"}).out,
              HasSubstr(R"({"requests": 4, "timeout_seconds": 30})"));
  EXPECT_THAT(Admin({"log-level", "debug"}).err, HasSubstr("log level debug, was info"));
  EXPECT_EQ(level.Get(), "debug");
  EXPECT_THAT(Admin({"log-level", "warn", "--json"}).out,
              HasSubstr(R"({"level": "warn", "previous": "info"})"));
  EXPECT_THAT(Admin({"reload"}).err, HasSubstr("12 tenants, as before"));
  EXPECT_THAT(Admin({"reload", "--json"}).out, HasSubstr(R"({"tenants": 12, "changed": false})"));
}

TEST_F(BlockctlAdminTest, RefusalsHaveExitStatusesOfTheirOwn) {
  fake_.admin.on_drain = [](v1::DrainReply*) {
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "needs the role admin");
  };
  const Outcome denied = Admin({"drain"});
  EXPECT_EQ(denied.exit_status, 10);
  EXPECT_THAT(denied.err, AllOf(HasSubstr("needs the role admin"), HasSubstr("--token_file")));
  fake_.on_list = [](const v1::ListFactorizationsRequest&, v1::ListFactorizationsReply*) {
    return client::OverQuota("handles", absl::InfiniteDuration());
  };
  const Outcome over = Blockctl(fake_.target(), {"list", "--json"});
  EXPECT_EQ(over.exit_status, 9);
  EXPECT_THAT(over.out, AllOf(HasSubstr("\"quota\": \"handles\""), HasSubstr("\"limit\": 100"),
                              HasSubstr("\"used\": 100"), HasSubstr("\"asked\": 1"),
                              HasSubstr("\"tenant\": \"ada\"")));
  EXPECT_THAT(over.err, HasSubstr("release something"));
}

TEST_F(BlockctlAdminTest, MistakesExitWithOneAndAskNobody) {
  std::atomic<int> calls{0};
  fake_.admin.on_drain = [&](v1::DrainReply*) {
    ++calls;
    return grpc::Status::OK;
  };
  fake_.admin.on_evict = [&](const v1::EvictRequest&, v1::EvictReply*) {
    ++calls;
    return grpc::Status::OK;
  };
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"dance"},
                                             {"list", "extra"},
                                             {"list", "--min_idle=-1s"},
                                             {"list", "--min_held_bytes=-1"},
                                             {"evict"},
                                             {"evict", "zz"},
                                             {"evict", "abcd@route"},
                                             {"evict", "abcd", "--tenant=ada"},
                                             {"unpin"},
                                             {"drain", "now"},
                                             {"drain", "--tenant=ada"},
                                             {"log-level"},
                                             {"log-level", "debug", "now"},
                                             {"reload", "file"}}) {
    const Outcome outcome = Admin(arguments);
    EXPECT_EQ(outcome.exit_status, 1) << ::testing::PrintToString(arguments) << outcome.err;
  }
  EXPECT_EQ(calls, 0);
}

TEST_F(BlockctlAdminTest, ThePriorityOfWorkIsAFlag) {
  Shared<v1::FactorRequest> factored;
  fake_.on_factor = [&](const v1::FactorRequest& request, v1::FactorReply* reply) {
    factored = request;
    return client::AnswerWith("\xab\xcd", reply);
  };
  const std::string matrix = ::testing::TempDir() + "/blockctl_priority.mtx";
  FILE* file = std::fopen(matrix.c_str(), "w");
  ASSERT_NE(file, nullptr);
  std::fputs("%%MatrixMarket matrix coordinate real symmetric\n1 1 1\n1 1 2\n", file);
  std::fclose(file);
  EXPECT_EQ(Blockctl(fake_.target(), {"factor", "--matrix=" + matrix}).exit_status, 0);
  EXPECT_EQ(factored.Get().options().priority(), v1::INTERACTIVE);
  EXPECT_EQ(
      Blockctl(fake_.target(), {"factor", "--matrix=" + matrix, "--priority=realtime"}).exit_status,
      0);
  EXPECT_EQ(factored.Get().options().priority(), v1::REALTIME);
  EXPECT_EQ(
      Blockctl(fake_.target(), {"factor", "--matrix=" + matrix, "--priority=bulk"}).exit_status, 0);
  EXPECT_EQ(factored.Get().options().priority(), v1::BULK);
  for (const std::string command : {"factor", "solve", "refactor", "bench"}) {
    EXPECT_EQ(
        Blockctl("127.0.0.1:1", {command, "--matrix=" + matrix, "--rhs=b.mtx", "--priority=high"})
            .exit_status,
        1);
  }
}

}  // namespace
}  // namespace blockd::blockctl
