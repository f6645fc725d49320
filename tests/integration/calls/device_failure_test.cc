// The device fails under a server: callers learn it, health says it, and the log says what failed.
#include <utility>

#include "absl/strings/match.h"
#include "blockd/engine/backend_registry.h"
#include "server/log/logging.h"
#include "tests/integration/fixture.h"
#include "tests/support/hooked_backend.h"

namespace blockd::test {
namespace {

constexpr int kServing = 1, kNotServing = 2;

class DeviceFailureTest : public IntegrationTest {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Backend>> cpu = CreateBackend("cpu", Options().device);
    ASSERT_TRUE(cpu.ok()) << cpu.status();
    const CostModel costs = (*cpu)->costs({1, 1, Scalar::kFloat64});
    server::SetUpLogging({.level = "error", .format = "logfmt"});
    testing::internal::CaptureStderr();
    Start(Options(), std::make_unique<HookedBackend>(*std::move(cpu), costs, gate_));
  }
  void TearDown() override {
    IntegrationTest::TearDown();
    server::SetUpLogging({.level = "off", .format = "logfmt"});
    if (!log_taken_) testing::internal::GetCapturedStderr();
  }
  std::string Log() {
    log_taken_ = true;
    server_->Drain();  // each call's line is there
    EXPECT_TRUE(server::FlushLog(absl::Minutes(1)));
    return testing::internal::GetCapturedStderr();
  }
  // Nobody is sent here any more, and the metrics say so too.
  void ExpectUnhealthy() {
    EXPECT_EQ(Health(), kNotServing);
    EXPECT_EQ(Health("blockd.v1.Solver"), kNotServing);
    EXPECT_EQ(Metric("blockd_healthy"), 0);
  }

  std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  bool log_taken_ = false;
  const problems::Problem problem_ = problems::RandomSpd(16, 4, 1, 10);
  const HostMatrix matrix_{problem_, Scalar::kFloat64};
};

TEST_F(DeviceFailureTest, ASolveSaysInternalHealthTurnsAndTheLogSaysWhatFailed) {
  const std::string handle = Factor(matrix_);
  EXPECT_EQ(Health(), kServing);
  EXPECT_EQ(Health("blockd.v1.Solver"), kServing);
  EXPECT_EQ(Metric("blockd_healthy"), 1);
  gate_->FailAfter(0);
  v1::SolveRequest request;
  request.set_handle(handle);
  request.set_num_rhs(1);
  request.set_rhs(BytesOf(problem_.rhs));
  const grpc::Status status = SolveStatus(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(status.error_message(), "the device fell off at Solve");
  ExpectUnhealthy();
  // Calls that need no device are still answered.
  EXPECT_TRUE(IsOk(ReleaseStatus({handle})));
  EXPECT_EQ(ReservedBytes(), 0);
  const std::string log = Log();
  EXPECT_TRUE(absl::StrContains(log, "level=error event=device_failed backend=cpu")) << log;
  EXPECT_TRUE(absl::StrContains(log, "message=\"the device fell off at Solve\"")) << log;
  EXPECT_TRUE(absl::StrContains(log, "method=Solve")) << log;
  EXPECT_TRUE(absl::StrContains(log, "status=INTERNAL")) << log;
}

TEST_F(DeviceFailureTest, AFactorSaysInternal) {
  gate_->FailAfter(0);
  const grpc::Status status = FactorStatus(FactorRequestOf(matrix_));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL) << status.error_message();
  ExpectUnhealthy();
  EXPECT_EQ(ReservedBytes(), 0);
}

TEST_F(DeviceFailureTest, AnUploadSaysInternal) {
  gate_->FailAfter(0);
  const auto context = NewContext();
  v1::FactorReply reply;
  const auto upload = stub().FactorStream(context.get(), &reply);
  v1::FactorStreamRequest message;
  *message.mutable_header()->mutable_spec() = SpecOf(matrix_);
  message.mutable_header()->set_num_systems(1);
  upload->Write(message);
  const v1::SystemData data = DataOf(matrix_);
  message.set_chunk(data.diagonal() + data.coupling());
  upload->Write(message);
  upload->WritesDone();
  const grpc::Status status = upload->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL) << status.error_message();
  ExpectUnhealthy();
  EXPECT_EQ(ReservedBytes(), 0);
}

TEST_F(DeviceFailureTest, ARequestOfAStreamSaysInternalAndTheStreamGoesOn) {
  const std::string handle = Factor(matrix_);
  const auto context = NewContext();
  const auto stream = stub().SolveStream(context.get());
  v1::SolveStreamRequest request;
  request.mutable_request()->set_handle(handle);
  request.mutable_request()->set_num_rhs(1);
  request.mutable_request()->set_rhs(BytesOf(problem_.rhs));
  gate_->FailAfter(0);
  for (uint64_t id = 1; id <= 2; ++id) {
    request.set_id(id);
    ASSERT_TRUE(stream->Write(request));
    v1::SolveStreamReply reply;
    ASSERT_TRUE(stream->Read(&reply));
    EXPECT_EQ(reply.id(), id);
    EXPECT_EQ(reply.status().code(), grpc::StatusCode::INTERNAL);
  }
  stream->WritesDone();
  EXPECT_TRUE(IsOk(stream->Finish()));
  ExpectUnhealthy();
}

}  // namespace
}  // namespace blockd::test
