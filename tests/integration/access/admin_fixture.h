// The fixture of the tests of blockd.v1.Admin: a server with a file of tenants, short ways to ask.
#ifndef BLOCKD_TESTS_INTEGRATION_ACCESS_ADMIN_FIXTURE_H_
#define BLOCKD_TESTS_INTEGRATION_ACCESS_ADMIN_FIXTURE_H_

#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "blockd/v1/admin.grpc.pb.h"
#include "server/log/logging.h"
#include "tests/integration/fixture.h"
#include "tests/support/temp_folder.h"

namespace blockd::test {

inline constexpr char kTenants[] = R"(
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
    const auto reply = Get(&v1::Admin::Stub::ListTenants, v1::ListTenantsRequest());
    for (const v1::Tenant& tenant : reply.tenant()) {
      if (tenant.name() == name) return tenant;
    }
    return {};
  }
  static void CaptureLog(const server::LogOptions& options) {
    server::SetUpLogging(options);
    EXPECT_TRUE(server::FlushLog(absl::Minutes(1)));  // what other servers wrote
    testing::internal::CaptureStderr();
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

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_INTEGRATION_ACCESS_ADMIN_FIXTURE_H_
