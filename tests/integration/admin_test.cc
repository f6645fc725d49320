// blockd.v1.Admin: who may ask, what each call does, and the lines that it leaves.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "blockd/v1/admin.grpc.pb.h"
#include "server/logging.h"
#include "tests/integration/fixture.h"
#include "tests/integration/pending_solve.h"
#include "tests/support/temp_folder.h"

namespace blockd::test {
namespace {

constexpr char kTenants[] = R"(
    tenant { name: "boss" identity { metadata: "boss" } role: ADMIN }
    tenant { name: "watch" identity { metadata: "watch" } role: METRICS }
    tenant { name: "idle" identity { metadata: "idle" } weight: 3 highest_class: REALTIME
             quotas { handles: 7 device_bytes: "1MiB" requests_per_second: 2.5 } }
)";

class AdminTest : public IntegrationTest {
 protected:
  void StartWith(const std::string& tenants = kTenants) {
    Write(tenants);
    options_.access.tenants_file = Path();
    Start(options_);
    admin_ = v1::Admin::NewStub(channel_);
  }
  std::string Path() const { return folder_ / "tenants"; }
  void Write(const std::string& tenants) const { std::ofstream(Path()) << tenants; }
  void TearDown() override {
    admin_.reset();
    IntegrationTest::TearDown();
  }

  template <typename Request, typename Reply>
  using Call = grpc::Status (v1::Admin::Stub::*)(grpc::ClientContext*, const Request&, Reply*);

  template <typename Request, typename Reply>
  grpc::Status Ask(Call<Request, Reply> call, const Request& request, Reply* reply,
                   const std::string& caller = "boss") {
    return (admin_.get()->*call)(NewContext(caller).get(), request, reply);
  }
  // One that succeeds.
  template <typename Request, typename Reply>
  Reply Get(Call<Request, Reply> call, const Request& request = {}) {
    Reply reply;
    EXPECT_TRUE(IsOk(Ask(call, request, &reply)));
    return reply;
  }
  template <typename Request, typename Reply>
  grpc::Status StatusOf(Call<Request, Reply> call, const Request& request = {},
                        const std::string& caller = "boss") {
    Reply reply;
    return Ask(call, request, &reply, caller);
  }
  grpc::Status EvictStatus(const std::vector<std::string>& handles) {
    v1::EvictRequest request;
    for (const std::string& handle : handles) request.add_handle(handle);
    return StatusOf(&v1::Admin::Stub::Evict, request);
  }

  std::string FactorAs(const std::string& caller,
                       const std::function<void(v1::FactorOptions*)>& change = nullptr) {
    v1::FactorRequest request = FactorRequestOf(matrix_);
    if (change) change(request.mutable_options());
    return Factor(request, caller).system(0).handle();
  }
  grpc::Status GetStatus(const std::string& caller, const std::string& handle,
                         v1::FactorizationInfo* info) {
    v1::GetFactorizationRequest request;
    request.set_handle(handle);
    return stub().GetFactorization(NewContext(caller).get(), request, info);
  }
  // The tenant of this name, as ListTenants has it; empty if it has none.
  v1::Tenant TenantOf(const std::string& name) {
    for (const v1::Tenant& tenant :
         Get(&v1::Admin::Stub::ListTenants, v1::ListTenantsRequest()).tenant()) {
      if (tenant.name() == name) return tenant;
    }
    return {};
  }
  // Lines of this event that the server has written when it has ended.
  std::vector<std::string> LinesUntilTheEnd(const std::string& event) {
    server_.reset();
    EXPECT_TRUE(server::FlushLog(absl::Minutes(1)));
    server::SetUpLogging({.level = "off"});
    std::vector<std::string> lines;
    for (absl::string_view line :
         absl::StrSplit(testing::internal::GetCapturedStderr(), '\n', absl::SkipEmpty())) {
      if (absl::StrContains(line, " event=" + event + " ")) lines.emplace_back(line);
    }
    return lines;
  }

  const TempFolder folder_;
  const problems::Problem problem_ = problems::Poisson(6, 5);
  const HostMatrix matrix_{problem_, Scalar::kFloat64};
  server::ServerOptions options_ = Options();
  std::unique_ptr<v1::Admin::Stub> admin_;
};

TEST_F(AdminTest, EveryCallNeedsItsRole) {
  StartWith();
  using Stub = v1::Admin::Stub;
  using Caller = const std::string&;
  v1::EvictRequest evict;
  evict.add_handle(std::string(16, 'x'));
  v1::UnpinRequest unpin;
  unpin.add_handle(std::string(16, 'x'));
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
  for (const char* path : {"/blockd.v1.Admin/", "/blockd.v1.Admin/Evic", "/blockd.v1.Admin/Evict/",
                           "/blockd.v1.Administrator/Evict"}) {
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
    for (const auto& one : Get(&v1::Admin::Stub::ListAllFactorizations, request).factorization()) {
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
  EXPECT_TRUE(IsInvalid(EvictStatus({std::string(16, 'x'), "short"}), "handle[1]"));
  EXPECT_TRUE(
      IsInvalid(EvictStatus(std::vector<std::string>(1001, std::string(16, 'x'))), "handle"));
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
  for (const std::string& handle : {pinned, plain, plain, std::string(16, 'x')}) {
    request.add_handle(handle);
  }
  const auto reply = Get(&v1::Admin::Stub::Evict, request);
  EXPECT_EQ(reply.evicted(), 2);
  EXPECT_EQ(reply.evicted_bytes(), 2 * info.held_bytes());
  ASSERT_EQ(reply.not_held_size(), 1);
  EXPECT_EQ(reply.not_held(0), std::string(16, 'x'));
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
  for (const std::string& handle : {pinned, leased, plain, std::string(16, 'x')}) {
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
    for (const auto& one : Get(&v1::Admin::Stub::ListTenants, v1::ListTenantsRequest()).tenant()) {
      all.push_back(one.name());
    }
    return all;
  };
  using Names = std::vector<std::string>;
  const std::string handle = FactorAs("ada");
  EXPECT_EQ(names(), (Names{"boss", "idle", "metadata:ada", "watch"}));
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
  EXPECT_EQ(ada.requests(), 1);
  EXPECT_EQ(ada.refused(), 0);
  EXPECT_GT(ada.device_seconds(), 0);
  EXPECT_GT(ada.quota(0).used(), 0);
  EXPECT_EQ(ada.quota(2).used(), 1);
  EXPECT_TRUE(IsOk(ReleaseStatus({handle}, nullptr, "ada")));
  EXPECT_EQ(names(), (Names{"boss", "idle", "watch"}));
}

TEST_F(AdminTest, ALevelOfTheLogHoldsFromNowOn) {
  server::SetUpLogging({.level = "info"});
  testing::internal::CaptureStderr();
  StartWith();
  const auto set = [this](const std::string& level) {
    v1::SetLogLevelRequest request;
    request.set_level(level);
    return Get(&v1::Admin::Stub::SetLogLevel, request).previous();
  };
  EXPECT_EQ(set("error"), "info");
  EXPECT_EQ(set("off"), "error");
  FactorAs("ada");
  EXPECT_EQ(set("debug"), "off");
  FactorAs("bob");
  const std::vector<std::string> lines = LinesUntilTheEnd("request");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(absl::StrContains(lines[0], " caller=metadata:bob ")) << lines[0];
}

TEST_F(AdminTest, AReloadSaysWhetherTheFileHasChanged) {
  StartWith();
  using Stub = v1::Admin::Stub;
  const v1::ReloadRequest request;
  auto reply = Get(&Stub::Reload, request);
  EXPECT_EQ(reply.tenants(), 3);
  EXPECT_FALSE(reply.changed());
  Write(absl::StrCat("# a comment\n", kTenants));
  EXPECT_FALSE(Get(&Stub::Reload, request).changed());
  Write(absl::StrCat(kTenants, "tenant { name: \"new\" quotas { handles: 0 } }"));
  reply = Get(&Stub::Reload, request);
  EXPECT_EQ(reply.tenants(), 4);
  EXPECT_TRUE(reply.changed());
  EXPECT_TRUE(TenantOf("new").configured());
  // An identity that is another's from now on is a change too.
  Write("tenant { name: \"boss\" identity { metadata: \"chief\" } role: ADMIN }");
  EXPECT_TRUE(Get(&Stub::Reload, request).changed());
  EXPECT_EQ(StatusOf(&Stub::Reload, request).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(IsOk(StatusOf(&Stub::Reload, request, "chief")));
}

TEST_F(AdminTest, AWrongFileIsRefusedWithItsPlaceAndTheOldOneHolds) {
  StartWith();
  const v1::ReloadRequest request;
  Write("\n\ntenant { name: \"t\" weight: 1000 }");
  grpc::Status status = StatusOf(&v1::Admin::Stub::Reload, request);
  EXPECT_TRUE(IsInvalid(status, Path() + ":3: tenant \"t\"")) << status.error_message();
  EXPECT_EQ(DetailOf<v1::InvalidField>(status)->came(), "weight: \"1000\"");
  EXPECT_EQ(DetailOf<v1::InvalidField>(status)->expected(), "a number from 0.01 to 100");
  Write("tenant {\n  nonsense: 1\n}");
  EXPECT_TRUE(IsInvalid(StatusOf(&v1::Admin::Stub::Reload, request), Path() + ":2:11"));
  std::filesystem::remove(Path());
  EXPECT_TRUE(IsInvalid(StatusOf(&v1::Admin::Stub::Reload, request), Path()));
  EXPECT_EQ(TenantOf("idle").weight(), 3);
}

TEST_F(AdminTest, ADrainBeginsAndTellsWhoeverRunsTheServer) {
  StartWith();
  int asked = 0;
  server().OnDrainAsked([&asked] { ++asked; });
  const auto reply = Get(&v1::Admin::Stub::Drain, v1::DrainRequest());
  EXPECT_EQ(reply.requests(), 0);
  EXPECT_EQ(reply.timeout().seconds(), 30);
  EXPECT_EQ(asked, 1);
  const grpc::Status refused = FactorStatus(FactorRequestOf(matrix_), nullptr, "ada");
  EXPECT_TRUE(IsRetryLater(refused));
  EXPECT_TRUE(DetailOf<v1::ServerDraining>(refused).has_value());
  EXPECT_EQ(Health(), 2);
  // Again, and what asks for no work: answered still.
  Get(&v1::Admin::Stub::Drain, v1::DrainRequest());
  EXPECT_EQ(asked, 1);
  EXPECT_TRUE(TenantOf("idle").configured());
  EXPECT_TRUE(server().Drain());
}

TEST_F(AdminTest, ADrainCountsTheWorkThatGoesOn) {
  Write(kTenants);
  options_.access.tenants_file = Path();
  StartGated(options_);
  admin_ = v1::Admin::NewStub(channel_);
  const std::string handle = FactorAs("ada");
  gate_->Close();
  v1::SolveRequest request = SolveRequestOf(handle, problem_.rhs);
  PendingSolve solve(stub(), request, NewContext("ada"));
  gate_->WaitForDevice();
  EXPECT_EQ(Get(&v1::Admin::Stub::Drain, v1::DrainRequest()).requests(), 1);
  gate_->Open();
  EXPECT_TRUE(IsOk(solve.Wait()));
  ExpectSolves(matrix_, ValuesOf(solve.reply().solution()), problem_.rhs);
}

TEST_F(AdminTest, ADrainThatWasAskedForBeforeSomebodyListensIsHeard) {
  StartWith();
  Get(&v1::Admin::Stub::Drain, v1::DrainRequest());
  int asked = 0;
  server().OnDrainAsked([&asked] { ++asked; });
  EXPECT_EQ(asked, 1);
}

TEST_F(AdminTest, EachCallLeavesALineThatNothingLeavesOut) {
  server::SetUpLogging({.level = "off", .requests_per_second = 0});
  testing::internal::CaptureStderr();
  StartWith();
  const std::string ada = FactorAs("ada"), bob = FactorAs("bob");
  v1::EvictRequest evict;
  evict.add_handle(ada);
  evict.add_handle(bob);
  Get(&v1::Admin::Stub::Evict, evict);
  StatusOf(&v1::Admin::Stub::Drain, v1::DrainRequest(), "ada");
  StatusOf(&v1::Admin::Stub::ListAllFactorizations, {}, "watch");
  v1::SetLogLevelRequest level;
  level.set_level("loud\nlevel=info");
  StatusOf(&v1::Admin::Stub::SetLogLevel, level);
  EXPECT_TRUE(Eventually([this] { return Metric("blockd_requests_total", "\"Admin\"") == 4; }));
  EXPECT_EQ(Ended("Admin", "OK"), 2);
  EXPECT_EQ(Ended("Admin", "PERMISSION_DENIED"), 1);
  EXPECT_EQ(Ended("Admin", "INVALID_ARGUMENT"), 1);
  const std::vector<std::string> lines = LinesUntilTheEnd("audit");
  ASSERT_EQ(lines.size(), 4u);
  const auto short_name = [](const std::string& handle) {
    return absl::BytesToHexString(handle).substr(0, 8);
  };
  const std::vector<std::vector<std::string>> expected = {
      {"level=info", " call=Evict caller=boss peer=ipv4:127.0.0.1:", " status=OK ",
       "asked=\"2 of 2 handles, of tenants metadata:ada,metadata:bob: ", short_name(ada),
       short_name(bob)},
      {"level=warn", " call=Drain caller=metadata:ada peer=", " status=PERMISSION_DENIED ",
       "message=\"the tenant metadata:ada has not the role ADMIN\""},
      {"level=info", " call=ListAllFactorizations caller=watch ", "asked=\"tenant=(all)\""},
      {"level=warn", " call=SetLogLevel caller=boss ", " status=INVALID_ARGUMENT ",
       "asked=\"level=loud\\u000alevel=info\""}};
  // Lines of calls that end at once may change places.
  for (const std::vector<std::string>& words : expected) {
    EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                            [&](const std::string& line) {
                              return std::all_of(words.begin(), words.end(), [&](const auto& word) {
                                return absl::StrContains(line, word);
                              });
                            }),
              1)
        << words[1] << "\n"
        << lines[0] << "\n"
        << lines[1] << "\n"
        << lines[2] << "\n"
        << lines[3];
  }
  for (const std::string& line : lines) {
    EXPECT_FALSE(absl::StrContains(line, absl::BytesToHexString(ada)));  // a handle is a key
  }
}

TEST_F(AdminTest, ReflectionListsIt) {
  StartWith();
  std::string reply;
  ASSERT_TRUE(IsOk(RawCall("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                           std::string("\x3a\x01*"), &reply)));  // list_services: "*"
  EXPECT_TRUE(absl::StrContains(reply, "blockd.v1.Admin"));
  ASSERT_TRUE(IsOk(RawCall("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                           std::string("\x22\x0f") + "blockd.v1.Admin", &reply)));
  EXPECT_TRUE(absl::StrContains(reply, "ListAllFactorizations"));  // file_containing_symbol
}

}  // namespace
}  // namespace blockd::test
