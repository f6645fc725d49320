// Tenants who share a server, as its file of tenants says: what each quota refuses and how, through
// gRPC.
#include <chrono>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "blockd/v1/admin.grpc.pb.h"
#include "tests/integration/calls/pending_solve.h"
#include "tests/integration/fixture.h"
#include "tests/support/temp_folder.h"

namespace blockd::test {
namespace {

class QuotasTest : public IntegrationTest {
 protected:
  // One tenant with these quotas. Whoever else asks has none.
  void StartWith(const std::string& quotas) {
    Write(quotas);
    options_.access.tenants_file = Path();
    Start(options_);
  }
  std::string Path() const { return folder_ / "tenants"; }
  void Write(const std::string& quotas) const {
    std::ofstream(Path()) << "tenant { name: \"small\" identity { metadata: \"small\" } quotas { "
                          << quotas << " } }\n"
                          << "default_tenant { role: [USE, ADMIN] }";
  }
  grpc::Status FactorOf(const std::string& caller, bool pin = false,
                        std::string* handle = nullptr) {
    v1::FactorRequest request = FactorRequestOf(matrix_);
    request.mutable_options()->set_pin(pin);
    v1::FactorReply reply;
    const grpc::Status status = FactorStatus(request, &reply, caller);
    if (status.ok() && handle != nullptr) *handle = reply.system(0).handle();
    return status;
  }
  // The amount of this quota that `small` uses, as the server tells its operator.
  double Used(const std::string& quota) {
    v1::ListTenantsReply reply;
    const auto admin = v1::Admin::NewStub(channel_);
    EXPECT_TRUE(IsOk(admin->ListTenants(NewContext().get(), {}, &reply)));
    for (const v1::Tenant& tenant : reply.tenant()) {
      if (tenant.name() != "small") continue;
      for (const v1::QuotaUse& use : tenant.quota()) {
        if (use.quota() == quota) return use.used();
      }
    }
    return -1;
  }
  // RESOURCE_EXHAUSTED by this quota of `small`, with these numbers.
  static ::testing::AssertionResult IsOver(const grpc::Status& status, const std::string& quota,
                                           double limit, double used, double asked,
                                           bool waiting_helps) {
    const auto detail = DetailOf<v1::QuotaExceeded>(status);
    if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED && detail &&
        detail->tenant() == "small" && detail->quota() == quota && detail->limit() == limit &&
        detail->used() == used && detail->asked() == asked &&
        DetailOf<v1::RetryAfter>(status).has_value() == waiting_helps) {
      return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure()
           << "status " << status.error_code() << ": " << status.error_message() << " "
           << RpcStatusOf(status).ShortDebugString();
  }
  int64_t MatrixBytes() const { return matrix_.form().bytes(); }

  const TempFolder folder_;
  const problems::Problem problem_ = problems::Poisson(6, 5);
  const HostMatrix matrix_{problem_, Scalar::kFloat64};
  server::ServerOptions options_ = Options();
};

// Each holds a handle that nobody may evict.
TEST_F(QuotasTest, NamesThatFillTheTableLockNobodyOut) {
  options_.core.max_tenants = 3;
  StartWith("handles: 9");
  for (const char* name : {"a", "b", "c"}) EXPECT_TRUE(IsOk(FactorOf(name, /*pin=*/true)));
  std::string handle;
  for (const char* name : {"d", "e", "small"}) {
    EXPECT_TRUE(IsOk(FactorOf(name, /*pin=*/false, &handle)));
    v1::SolveReply reply;
    EXPECT_TRUE(IsOk(SolveStatus(SolveRequestOf(handle, problem_.rhs), &reply, name)));
    EXPECT_TRUE(IsNotFound(SolveStatus(SolveRequestOf(handle, problem_.rhs), &reply, "f"),
                           v1::HandleNotFound::NEVER_EXISTED));
  }
}

TEST_F(QuotasTest, Handles) {
  StartWith("handles: 2");
  std::string first;
  EXPECT_TRUE(IsOk(FactorOf("small", false, &first)));
  EXPECT_TRUE(IsOk(FactorOf("small")));
  EXPECT_TRUE(IsOver(FactorOf("small"), "handles", 2, 2, 1, false));
  EXPECT_TRUE(IsOver(FactorStatus(FactorRequestOf(matrix_, 3), nullptr, "small"), "handles", 2, 2,
                     3, false));
  EXPECT_TRUE(IsOk(FactorOf("other")));
  EXPECT_TRUE(IsOk(ReleaseStatus({first}, nullptr, "small")));
  EXPECT_TRUE(IsOk(FactorOf("small")));
  // The metrics show it to the operator.
  EXPECT_EQ(Metric("blockd_tenant_handles", "tenant=\"small\""), 2);
  EXPECT_EQ(Metric("blockd_tenant_handles", "tenant=\"other\""), 1);
  EXPECT_TRUE(Eventually(
      [this] { return Metric("blockd_tenant_requests_total", "tenant=\"small\"") == 6; }));
  EXPECT_TRUE(Eventually(
      [this] { return Metric("blockd_tenant_over_quota_total", "tenant=\"small\"") == 2; }));
  EXPECT_EQ(Metric("blockd_tenant_over_quota_total", "tenant=\"other\""), 0);
  EXPECT_GT(Metric("blockd_tenant_device_seconds_total", "tenant=\"small\""), 0);
}

TEST_F(QuotasTest, BytesOnTheDevice) {
  StartWith("device_bytes: \"1MiB\"");
  EXPECT_TRUE(IsOk(FactorOf("small")));
  const double one = Used("device_bytes");
  EXPECT_GT(one, 0);
  EXPECT_EQ(Metric("blockd_tenant_device_bytes", "tenant=\"small\""), one);
  Write(absl::StrCat("device_bytes: \"", static_cast<int64_t>(one), "\""));
  ASSERT_TRUE(server().Reload().ok());
  const grpc::Status status = FactorOf("small");
  // While it is factored it takes more than what is then held.
  const auto detail = DetailOf<v1::QuotaExceeded>(status);
  ASSERT_TRUE(detail.has_value()) << status.error_message();
  EXPECT_GE(detail->asked(), one);
  EXPECT_TRUE(IsOver(status, "device_bytes", one, one, detail->asked(), false));
  EXPECT_TRUE(IsOk(FactorOf("other")));
}

TEST_F(QuotasTest, PinnedBytes) {
  StartWith("pinned_bytes: \"1MiB\"");
  EXPECT_TRUE(IsOk(FactorOf("small", true)));
  const double one = Used("pinned_bytes");
  EXPECT_EQ(one, Used("device_bytes"));
  const int64_t limit = static_cast<int64_t>(one) * 3 / 2;
  Write(absl::StrCat("pinned_bytes: \"", limit, "\""));
  ASSERT_TRUE(server().Reload().ok());
  EXPECT_TRUE(
      IsOver(FactorOf("small", true), "pinned_bytes", static_cast<double>(limit), one, one, false));
  EXPECT_TRUE(IsOk(FactorOf("small")));  // that may be evicted
  EXPECT_TRUE(IsOk(FactorOf("other", true)));
  EXPECT_EQ(Used("pinned_bytes"), one);
}

TEST_F(QuotasTest, BytesOfTheHost) {
  StartWith("host_bytes: \"100\"");
  const grpc::Status status = FactorOf("small");
  const auto detail = DetailOf<v1::QuotaExceeded>(status);
  ASSERT_TRUE(detail.has_value()) << status.error_message();
  EXPECT_GE(detail->asked(), MatrixBytes());
  EXPECT_TRUE(IsOver(status, "host_bytes", 100, 0, detail->asked(), false));
  EXPECT_TRUE(IsOk(FactorOf("other")));
  EXPECT_TRUE(Eventually([this] { return Metric("blockd_tenant_host_bytes") == 0; }));
}

TEST_F(QuotasTest, PlacesInTheQueue) {
  Write("queue_slots: 1");
  options_.access.tenants_file = Path();
  StartGated(options_);
  std::string handle, others;
  ASSERT_TRUE(IsOk(FactorOf("small", false, &handle)));
  ASSERT_TRUE(IsOk(FactorOf("other", false, &others)));
  gate_->Close();
  const v1::SolveRequest request = SolveRequestOf(handle, problem_.rhs);
  PendingSolve running(stub(), request, NewContext("small"));
  gate_->WaitForDevice();
  PendingSolve waiting(stub(), request, NewContext("small"));
  ASSERT_TRUE(Eventually([this] { return Metric("blockd_queue_requests") == 1; }));
  EXPECT_EQ(Metric("blockd_tenant_queue_slots", "tenant=\"small\""), 1);
  EXPECT_TRUE(IsOver(SolveStatus(request, nullptr, "small"), "queue_slots", 1, 1, 1, true));
  PendingSolve other(stub(), SolveRequestOf(others, problem_.rhs), NewContext("other"));
  EXPECT_TRUE(Eventually([this] { return Metric("blockd_queue_requests") == 2; }));
  gate_->Open();
  for (PendingSolve* solve : {&running, &waiting, &other}) EXPECT_TRUE(IsOk(solve->Wait()));
}

TEST_F(QuotasTest, RequestsASecond) {
  StartWith("requests_per_second: 0.001");
  EXPECT_TRUE(IsOk(FactorOf("small")));
  const grpc::Status status = FactorOf("small");
  EXPECT_TRUE(IsOver(status, "requests_per_second", 0.001, 0.001, 1, true));
  EXPECT_GT(DetailOf<v1::RetryAfter>(status)->delay().seconds(), 500);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(IsOk(FactorOf("other")));
  Write("requests_per_second: 0");
  ASSERT_TRUE(server().Reload().ok());
  EXPECT_TRUE(IsOver(FactorOf("small"), "requests_per_second", 0, 0, 1, false));
  EXPECT_TRUE(Eventually(
      [this] { return Metric("blockd_tenant_over_quota_total", "tenant=\"small\"") == 2; }));
}

// Each waits for its answer, and asks again at once: the others' calls come between.
TEST_F(QuotasTest, ACallerOverItsRateIsToldSoSlowly) {
  StartWith("requests_per_second: 0.001");
  EXPECT_TRUE(IsOk(FactorOf("small")));
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(IsOver(FactorOf("small"), "requests_per_second", 0.001, 0.001, 1, true));
  }
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(50));
}

TEST_F(QuotasTest, UploadedBytesASecond) {
  StartWith("upload_bytes_per_second: \"1\"");
  std::string handle;
  EXPECT_TRUE(IsOk(FactorOf("small", false, &handle)));  // as much as it wants, once
  const auto bytes = static_cast<double>(MatrixBytes());
  EXPECT_TRUE(IsOver(FactorOf("small"), "upload_bytes_per_second", 1, 1, bytes, true));
  const v1::SolveRequest solve = SolveRequestOf(handle, problem_.rhs);
  EXPECT_TRUE(IsOver(SolveStatus(solve, nullptr, "small"), "upload_bytes_per_second", 1, 1,
                     static_cast<double>(solve.rhs().size()), true));
  // A stream is refused at its header, before it has sent anything.
  v1::FactorReply reply;
  const auto context = NewContext("small");
  const auto stream = stub().FactorStream(context.get(), &reply);
  v1::FactorStreamRequest header;
  *header.mutable_header()->mutable_spec() = SpecOf(matrix_);
  header.mutable_header()->set_num_systems(1);
  stream->Write(header);
  EXPECT_TRUE(IsOver(stream->Finish(), "upload_bytes_per_second", 1, 1, bytes, true));
  EXPECT_TRUE(IsOk(FactorOf("other")));
}

TEST_F(QuotasTest, WhatCannotMeetItsDeadlineIsRefusedAtOnce) {
  // Much more work than a message of 16 MiB takes to arrive.
  const bool on_cpu = options_.backend == "cpu";
  const int64_t blocks = on_cpu ? 128 : 1024;
  options_.device.memory_bytes = int64_t{on_cpu ? 5 : 36} << 30;
  StartWith("");
  v1::FactorRequest request;
  v1::SystemSpec& spec = *request.mutable_spec();
  spec = SpecOf(MatrixForm{.shape = {blocks, 1024, Scalar::kFloat64}});
  spec.mutable_palette()->set_num_diagonal(1);
  spec.mutable_palette()->set_num_coupling(1);
  for (int64_t i = 0; i < blocks; ++i) spec.mutable_palette()->add_diagonal_index(0);
  for (int64_t i = 0; i + 1 < blocks; ++i) spec.mutable_palette()->add_coupling_index(0);
  request.add_system()->set_diagonal(std::string(1024 * 1024 * 8, '\0'));
  request.mutable_system(0)->set_coupling(std::string(1024 * 1024 * 8, '\0'));
  v1::GetPlanRequest question;
  *question.mutable_spec() = spec;
  v1::Plan plan;
  ASSERT_TRUE(IsOk(stub().GetPlan(NewContext().get(), question, &plan)));
  const absl::Duration predicted = absl::Seconds(plan.predicted_factor_seconds());
  v1::FactorReply reply;
  const auto context = ContextWithServerTimeout(predicted / 3);
  const grpc::Status status = stub().Factor(context.get(), request, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
  const auto detail = DetailOf<v1::DeadlineUnreachable>(status);
  ASSERT_TRUE(detail.has_value()) << status.error_message();
  const auto seconds = [](const google::protobuf::Duration& time) {
    return absl::Seconds(time.seconds()) + absl::Nanoseconds(time.nanos());
  };
  EXPECT_LE(seconds(detail->left()), predicted / 3);
  EXPECT_GT(seconds(detail->predicted()), 2 * seconds(detail->left()));
  EXPECT_EQ(ReservedBytes(), 0);
}

TEST_F(QuotasTest, WhoHasMoreThanItsPartGivesItFirst) {
  StartWith("");
  const problems::Problem problem = problems::RandomSpd(64, 32, 1, 10);
  const HostMatrix matrix(problem, Scalar::kFloat64);
  const v1::FactorRequest request = FactorRequestOf(matrix);
  const std::string modest = Factor(request, "modest").system(0).handle();
  const int64_t one = ReservedBytes();
  // The hog wants twice the memory; the handle that was used least recently is the other one's.
  std::vector<std::string> hogs;
  for (int64_t bytes = 0; bytes < int64_t{128} << 20; bytes += one) {
    hogs.push_back(Factor(request, "hog").system(0).handle());
  }
  EXPECT_GT(Metric("blockd_evictions_total", "reason=\"memory\""), 0);
  v1::SolveRequest solve = SolveRequestOf(modest, problem.rhs);
  EXPECT_TRUE(IsOk(SolveStatus(solve, nullptr, "modest")));
  solve.set_handle(hogs.front());
  EXPECT_TRUE(IsNotFound(SolveStatus(solve, nullptr, "hog"), v1::HandleNotFound::EVICTED));
  solve.set_handle(hogs.back());
  EXPECT_TRUE(IsOk(SolveStatus(solve, nullptr, "hog")));
}

}  // namespace
}  // namespace blockd::test
