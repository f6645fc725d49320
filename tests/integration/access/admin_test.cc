// blockd.v1.Admin: who may ask, everybody's handles, and tenants.
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/integration/access/admin_fixture.h"

namespace blockd::test {
namespace {

// A handle that nobody has.
const std::string kNobodys(24, 'x');

TEST_F(AdminTest, EveryCallNeedsItsRole) {
  StartWith();
  using Stub = v1::Admin::Stub;
  using Caller = const std::string&;
  v1::EvictRequest evict;
  evict.add_handle(kNobodys);
  v1::UnpinRequest unpin;
  unpin.add_handle(kNobodys);
  v1::SetLogLevelRequest level;
  level.set_level("off");
  const std::vector<std::pair<bool, std::function<grpc::Status(Caller)>>> calls = {
      {true, [&](Caller who) { return StatusOf(&Stub::ListAllFactorizations, {}, who); }},
      {true, [&](Caller who) { return StatusOf(&Stub::ListTenants, {}, who); }},
      {false, [&](Caller who) { return StatusOf(&Stub::Evict, evict, who); }},
      {false, [&](Caller who) { return StatusOf(&Stub::Unpin, unpin, who); }},
      {false, [&](Caller who) { return StatusOf(&Stub::SetLogLevel, level, who); }},
      {false, [&](Caller who) { return StatusOf(&Stub::Reload, {}, who); }},
      {false, [&](Caller who) { return StatusOf(&Stub::Drain, {}, who); }},
  };
  for (const auto& [reads, call] : calls) {
    for (const char* caller : {"", "stranger", "idle"}) {
      const grpc::Status status = call(caller);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
      EXPECT_TRUE(absl::StrContains(status.error_message(), "has not the role ADMIN"))
          << status.error_message();
    }
    EXPECT_EQ(call("watch").error_code(),
              reads ? grpc::StatusCode::OK : grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_TRUE(IsOk(call("boss")));
  }
  // Who runs the server is not, by that, one who uses it.
  EXPECT_EQ(FactorStatus(FactorRequestOf(matrix_), nullptr, "boss").error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(AdminTest, WithoutATenantsFileNobodyHasTheRole) {
  Start(options_);
  admin_ = v1::Admin::NewStub(channel_);
  for (const char* caller : {"", "boss", "admin"}) {
    EXPECT_EQ(StatusOf(&v1::Admin::Stub::Drain, {}, caller).error_code(),
              grpc::StatusCode::PERMISSION_DENIED);
  }
  ExpectServes();
}

TEST_F(AdminTest, TheFileMayMakeEverybodyAnAdministrator) {
  StartWith("default_tenant { role: [USE, ADMIN] }");
  EXPECT_TRUE(IsOk(StatusOf(&v1::Admin::Stub::ListTenants, {}, "")));
  ExpectServes();
}

TEST_F(AdminTest, OthersThanItsMethodsAreUnknown) {
  StartWith();
  for (const char* path :
       {"/blockd.v1.Admin/Evic", "/blockd.v1.Admin/Evict/", "/blockd.v1.Administrator/Evict"}) {
    const grpc::Status status = RawCall(path, "");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << path;
    EXPECT_TRUE(absl::StrContains(status.error_message(), "no such call"));
  }
}

TEST_F(AdminTest, TheListHasEverybodysHandlesPageByPage) {
  StartWith();
  std::set<std::pair<std::string, std::string>> made, listed;
  for (int i = 0; i < 5; ++i) {
    for (const char* name : {"ada", "bob"}) {
      made.emplace(absl::StrCat("metadata:", name), FactorAs(name, [&](v1::FactorOptions* options) {
                     options->set_idempotency_key(absl::StrCat("secret", i));
                   }));
    }
  }
  v1::ListAllFactorizationsRequest request;
  request.set_page_size(3);
  int pages = 0;
  std::string last;
  do {
    const auto reply = Get(&v1::Admin::Stub::ListAllFactorizations, request);
    EXPECT_LE(reply.factorization_size(), 3);
    for (const v1::TenantFactorization& one : reply.factorization()) {
      EXPECT_LT(last, one.info().handle());
      last = one.info().handle();
      EXPECT_GT(one.info().held_bytes(), 0);
      EXPECT_EQ(one.info().idempotency_key(), "");
      EXPECT_TRUE(listed.emplace(one.tenant(), one.info().handle()).second);
    }
    request.set_page_token(reply.next_page_token());
    ++pages;
  } while (!request.page_token().empty());
  EXPECT_EQ(listed, made);
  EXPECT_EQ(pages, 4);
}

TEST_F(AdminTest, TheListLeavesOutWhatIsNotAskedFor) {
  StartWith();
  const std::string pinned =
      FactorAs("ada", [](v1::FactorOptions* options) { options->set_pin(true); });
  const std::string leased = FactorAs(
      "ada", [](v1::FactorOptions* options) { options->mutable_lease()->set_seconds(3000); });
  const std::string plain = FactorAs("bob");
  const auto list = [this](const v1::ListAllFactorizationsRequest& request) {
    std::set<std::string> handles;
    const auto reply = Get(&v1::Admin::Stub::ListAllFactorizations, request);
    for (const auto& one : reply.factorization()) {
      handles.insert(one.info().handle());
    }
    return handles;
  };
  using Handles = std::set<std::string>;
  v1::ListAllFactorizationsRequest request;
  EXPECT_EQ(list(request), (Handles{pinned, leased, plain}));
  request.set_pinned_only(true);
  EXPECT_EQ(list(request), (Handles{pinned, leased}));
  request.set_tenant("metadata:bob");
  EXPECT_EQ(list(request), Handles());
  request.set_pinned_only(false);
  EXPECT_EQ(list(request), Handles{plain});
  request.set_tenant("");
  EXPECT_EQ(list(request), Handles());
  request.Clear();
  request.mutable_min_idle()->set_seconds(3600);
  EXPECT_EQ(list(request), Handles());
  request.Clear();
  request.set_min_held_bytes(int64_t{1} << 40);
  EXPECT_EQ(list(request), Handles());
  request.set_min_held_bytes(1);
  EXPECT_EQ(list(request).size(), 3u);
}

TEST_F(AdminTest, WrongArgumentsAreRefusedByName) {
  StartWith();
  using Stub = v1::Admin::Stub;
  const auto list = [this](const std::function<void(v1::ListAllFactorizationsRequest*)>& change) {
    v1::ListAllFactorizationsRequest request;
    change(&request);
    return StatusOf(&Stub::ListAllFactorizations, request);
  };
  EXPECT_TRUE(IsInvalid(list([](auto* r) { r->set_page_size(-1); }), "page_size"));
  EXPECT_TRUE(IsInvalid(list([](auto* r) { r->set_page_size(1001); }), "page_size"));
  EXPECT_TRUE(IsInvalid(list([](auto* r) { r->set_page_token("x"); }), "page_token"));
  EXPECT_TRUE(IsInvalid(list([](auto* r) { r->mutable_min_idle()->set_seconds(-1); }), "min_idle"));
  EXPECT_TRUE(IsInvalid(list([](auto* r) { r->set_min_held_bytes(-1); }), "min_held_bytes"));
  EXPECT_TRUE(IsInvalid(EvictStatus({}), "handle"));
  EXPECT_TRUE(IsInvalid(EvictStatus({kNobodys, "short"}), "handle[1]"));
  EXPECT_TRUE(IsInvalid(EvictStatus(std::vector<std::string>(1001, kNobodys)), "handle"));
  EXPECT_TRUE(IsInvalid(StatusOf(&Stub::Unpin), "handle"));
  v1::SetLogLevelRequest level;
  level.set_level("loud");
  EXPECT_TRUE(IsInvalid(StatusOf(&Stub::SetLogLevel, level), "level"));
  // No message of its.
  EXPECT_EQ(RawCall("/blockd.v1.Admin/Evict", "\xff\xff\xff").error_code(),
            grpc::StatusCode::PERMISSION_DENIED);  // who asks is looked at first
}

TEST_F(AdminTest, EvictTakesAnybodysHandlesPinnedOnesToo) {
  StartWith();
  const std::string pinned =
      FactorAs("ada", [](v1::FactorOptions* options) { options->set_pin(true); });
  const std::string plain = FactorAs("bob"), kept = FactorAs("bob");
  v1::FactorizationInfo info;
  ASSERT_TRUE(IsOk(GetStatus("bob", plain, &info)));
  v1::EvictRequest request;
  for (const std::string& handle : {pinned, plain, plain, kNobodys}) {
    request.add_handle(handle);
  }
  const auto reply = Get(&v1::Admin::Stub::Evict, request);
  EXPECT_EQ(reply.evicted(), 2);
  EXPECT_EQ(reply.evicted_bytes(), 2 * info.held_bytes());
  ASSERT_EQ(reply.not_held_size(), 1);
  EXPECT_EQ(reply.not_held(0), kNobodys);
  EXPECT_TRUE(IsNotFound(GetStatus("ada", pinned, &info), v1::HandleNotFound::EVICTED));
  EXPECT_TRUE(IsNotFound(GetStatus("bob", plain, &info), v1::HandleNotFound::EVICTED));
  EXPECT_TRUE(IsOk(GetStatus("bob", kept, &info)));
  EXPECT_EQ(Metric("blockd_evictions_total", "reason=\"admin\""), 2);
  EXPECT_EQ(Metric("blockd_pinned_factorizations"), 0);
  const auto again = Get(&v1::Admin::Stub::Evict, request);
  EXPECT_EQ(again.evicted(), 0);
  EXPECT_EQ(again.not_held_size(), 3);
}

TEST_F(AdminTest, UnpinEndsPinsAndLeasesAndLeavesTheRest) {
  StartWith();
  const std::string pinned =
      FactorAs("ada", [](v1::FactorOptions* options) { options->set_pin(true); });
  const std::string leased = FactorAs(
      "bob", [](v1::FactorOptions* options) { options->mutable_lease()->set_seconds(3000); });
  const std::string plain = FactorAs("bob");
  const double evictable = Metric("blockd_budget_evictable_bytes");
  v1::UnpinRequest request;
  for (const std::string& handle : {pinned, leased, plain, kNobodys}) {
    request.add_handle(handle);
  }
  const auto reply = Get(&v1::Admin::Stub::Unpin, request);
  EXPECT_EQ(reply.unpinned(), 2);
  EXPECT_EQ(reply.not_held_size(), 1);
  v1::FactorizationInfo info;
  ASSERT_TRUE(IsOk(GetStatus("ada", pinned, &info)));
  EXPECT_FALSE(info.pinned());
  EXPECT_EQ(Metric("blockd_budget_evictable_bytes"), 3 * evictable);
  EXPECT_EQ(Metric("blockd_tenant_pinned_bytes"), 0);
  EXPECT_EQ(Get(&v1::Admin::Stub::Unpin, request).unpinned(), 0);
}

TEST_F(AdminTest, TenantsAreThoseOfTheFileAndThoseWhoHaveSomething) {
  StartWith();
  const auto names = [this] {
    std::vector<std::string> all;
    const auto reply = Get(&v1::Admin::Stub::ListTenants, v1::ListTenantsRequest());
    for (const auto& one : reply.tenant()) {
      all.push_back(one.name());
    }
    return all;
  };
  using Names = std::vector<std::string>;
  const std::string handle = FactorAs("ada");
  EXPECT_EQ(names(), (Names{"boss", "idle", "metadata:ada", "watch"}));
  // A call is counted, and over, a little after its caller has the answer.
  EXPECT_TRUE(Eventually([&] { return TenantOf("metadata:ada").requests() == 1; }));
  const v1::Tenant idle = TenantOf("idle"), ada = TenantOf("metadata:ada");
  EXPECT_TRUE(idle.configured());
  EXPECT_EQ(idle.weight(), 3);
  EXPECT_EQ(idle.highest_class(), v1::REALTIME);
  EXPECT_EQ(idle.requests(), 0);
  const std::vector<std::pair<std::string, double>> limits = {{"device_bytes", 1 << 20},
                                                              {"pinned_bytes", -1},
                                                              {"handles", 7},
                                                              {"host_bytes", -1},
                                                              {"queue_slots", -1},
                                                              {"requests_per_second", 2.5},
                                                              {"upload_bytes_per_second", -1}};
  ASSERT_EQ(idle.quota_size(), 7);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(idle.quota(i).quota(), limits[i].first);
    EXPECT_EQ(idle.quota(i).has_limit() ? idle.quota(i).limit() : -1, limits[i].second);
    EXPECT_EQ(idle.quota(i).used(), 0);
  }
  EXPECT_FALSE(ada.configured());
  EXPECT_EQ(ada.weight(), 1);
  EXPECT_EQ(ada.highest_class(), v1::INTERACTIVE);
  EXPECT_EQ(ada.refused(), 0);
  EXPECT_GT(ada.device_seconds(), 0);
  EXPECT_GT(ada.quota(0).used(), 0);
  EXPECT_EQ(ada.quota(2).used(), 1);
  EXPECT_TRUE(IsOk(ReleaseStatus({handle}, nullptr, "ada")));
  EXPECT_TRUE(Eventually([&] { return names() == Names{"boss", "idle", "watch"}; }));
}

}  // namespace
}  // namespace blockd::test
