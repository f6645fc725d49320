#include "blockd/client/admin_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/client/fake_solver.h"

namespace blockd::client {
namespace {

using ::testing::ElementsAre;

class AdminClientTest : public ::testing::Test {
 protected:
  AdminClient Connect() const {
    return *AdminClient::Connect(fake_.target(),
                                 {.retry = {.initial_delay = absl::Milliseconds(1)}});
  }
  FakeSolver fake_;
};

TEST_F(AdminClientTest, AListIsReadToItsLastPageWithItsFilters) {
  Shared<std::vector<v1::ListAllFactorizationsRequest>> asked;
  fake_.admin.on_list = [&](const v1::ListAllFactorizationsRequest& request,
                            v1::ListAllFactorizationsReply* reply) {
    const size_t page = asked.Append(request);
    v1::TenantFactorization& one = *reply->add_factorization();
    one.set_tenant("ada");
    one.mutable_info()->set_handle(absl::StrCat("h", page));
    if (page < 3) reply->set_next_page_token(absl::StrCat("page", page));
    return grpc::Status::OK;
  };
  const auto all = Connect().ListFactorizations({.tenant = "ada",
                                                 .pinned_only = true,
                                                 .min_idle = absl::Milliseconds(1500),
                                                 .min_held_bytes = 7});
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), 3);
  EXPECT_EQ((*all)[0].info().handle(), "h1");
  EXPECT_EQ((*all)[2].info().handle(), "h3");
  const auto requests = asked.Get();
  ASSERT_EQ(requests.size(), 3);
  for (int k = 0; k < 3; ++k) {
    EXPECT_EQ(requests[k].page_token(), k == 0 ? "" : absl::StrCat("page", k));
    EXPECT_EQ(requests[k].tenant(), "ada");
    EXPECT_TRUE(requests[k].pinned_only());
    EXPECT_EQ(requests[k].min_idle().seconds(), 1);
    EXPECT_EQ(requests[k].min_idle().nanos(), 500000000);
    EXPECT_EQ(requests[k].min_held_bytes(), 7);
  }
}

TEST_F(AdminClientTest, WithoutFiltersNoneIsSent) {
  Shared<v1::ListAllFactorizationsRequest> asked;
  fake_.admin.on_list = [&](const v1::ListAllFactorizationsRequest& request,
                            v1::ListAllFactorizationsReply*) {
    asked = request;
    return grpc::Status::OK;
  };
  const AdminClient admin = Connect();
  ASSERT_TRUE(admin.ListFactorizations().ok());
  EXPECT_EQ(asked.Get().ByteSizeLong(), 0);
  ASSERT_TRUE(admin.ListFactorizations({.tenant = ""}).ok());
  EXPECT_TRUE(asked.Get().has_tenant());
}

TEST_F(AdminClientTest, AnyNumberOfHandlesIsEvictedAThousandACall) {
  std::vector<std::string> handles;
  for (int k = 0; k < 2500; ++k) handles.push_back(absl::StrCat("h", k));
  Shared<std::vector<int>> sizes;
  Shared<std::vector<std::string>> named;
  fake_.admin.on_evict = [&](const v1::EvictRequest& request, v1::EvictReply* reply) {
    sizes.Append(request.handle_size());
    for (const std::string& handle : request.handle()) named.Append(handle);
    reply->set_evicted(request.handle_size() - 1);
    reply->set_evicted_bytes(10);
    reply->add_not_held(request.handle(0));
    return grpc::Status::OK;
  };
  fake_.admin.on_unpin = [&](const v1::UnpinRequest& request, v1::UnpinReply* reply) {
    reply->set_unpinned(request.handle_size());
    reply->add_not_held("gone");
    return grpc::Status::OK;
  };
  const AdminClient admin = Connect();
  const auto evicted = admin.Evict(handles);
  ASSERT_TRUE(evicted.ok()) << evicted.status();
  EXPECT_THAT(sizes.Get(), ElementsAre(1000, 1000, 500));
  EXPECT_EQ(named.Get(), handles);
  EXPECT_EQ(evicted->evicted(), 2497);
  EXPECT_EQ(evicted->evicted_bytes(), 30);
  EXPECT_THAT(evicted->not_held(), ElementsAre("h0", "h1000", "h2000"));
  const auto unpinned = admin.Unpin(handles);
  ASSERT_TRUE(unpinned.ok()) << unpinned.status();
  EXPECT_EQ(unpinned->unpinned(), 2500);
  EXPECT_EQ(unpinned->not_held_size(), 3);
}

TEST_F(AdminClientTest, TheOtherCallsSayWhatTheServerSays) {
  fake_.admin.on_tenants = [](v1::ListTenantsReply* reply) {
    reply->add_tenant()->set_name("ada");
    reply->add_tenant()->set_name("bob");
    return grpc::Status::OK;
  };
  fake_.admin.on_drain = [](v1::DrainReply* reply) {
    reply->mutable_timeout()->set_seconds(30);
    reply->set_requests(4);
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
    reply->set_changed(true);
    return grpc::Status::OK;
  };
  const AdminClient admin = Connect();
  const auto tenants = admin.ListTenants();
  ASSERT_TRUE(tenants.ok()) << tenants.status();
  ASSERT_EQ(tenants->size(), 2);
  EXPECT_EQ((*tenants)[1].name(), "bob");
  const auto drain = admin.Drain();
  ASSERT_TRUE(drain.ok()) << drain.status();
  EXPECT_EQ(drain->timeout().seconds(), 30);
  EXPECT_EQ(drain->requests(), 4);
  EXPECT_EQ(*admin.SetLogLevel("debug"), "info");
  EXPECT_EQ(level.Get(), "debug");
  EXPECT_EQ(admin.Reload()->tenants(), 12);
}

TEST_F(AdminClientTest, ABusyServerIsAskedAgainAndARefusalIsFinal) {
  std::atomic<int> calls{0};
  fake_.admin.on_reload = [&](v1::ReloadReply* reply) {
    reply->set_tenants(1);
    return ++calls < 3 ? UnavailableFor(absl::Milliseconds(1)) : grpc::Status::OK;
  };
  EXPECT_TRUE(Connect().Reload().ok());
  EXPECT_EQ(calls, 3);
  fake_.admin.on_reload = [&](v1::ReloadReply*) {
    ++calls;
    v1::InvalidField field;
    field.set_field("tenant \"ada\".weight");
    field.set_came("-1");
    field.set_expected("more than 0");
    v1::RpcStatus status;
    status.set_code(grpc::StatusCode::INVALID_ARGUMENT);
    status.add_details()->PackFrom(field);
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the tenants file is wrong",
                        status.SerializeAsString());
  };
  const auto field = GetInvalidField(Connect().Reload().status());
  ASSERT_TRUE(field.has_value());
  EXPECT_EQ(field->field(), "tenant \"ada\".weight");
  EXPECT_EQ(calls, 4);
  fake_.admin.on_drain = [&](v1::DrainReply*) {
    ++calls;
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "needs the role admin");
  };
  EXPECT_TRUE(absl::IsPermissionDenied(Connect().Drain().status()));
  EXPECT_EQ(calls, 5);
}

TEST_F(AdminClientTest, OptionsThatCannotWorkAreRefused) {
  EXPECT_FALSE(AdminClient::Connect("").ok());
  EXPECT_FALSE(AdminClient::Connect("solver:1", {.token = "secret"}).ok());
}

}  // namespace
}  // namespace blockd::client
