// blockd.v1.Admin: the log and its lines, the file of tenants, the drain.
#include <algorithm>
#include <filesystem>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/access/admin_fixture.h"
#include "tests/integration/calls/pending_solve.h"

namespace blockd::test {
namespace {

TEST_F(AdminTest, ALevelOfTheLogHoldsFromNowOn) {
  CaptureLog({.level = "info"});
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
  // And maybe the Factor: its caller has the answer before the call is over.
  EXPECT_GE(Get(&v1::Admin::Stub::Drain, v1::DrainRequest()).requests(), 1);
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
  CaptureLog({.level = "off", .requests_per_second = 0});
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
