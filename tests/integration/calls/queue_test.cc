// Full queues, cancellations and deadlines: what the server itself said, not the client's own gRPC.
#include <atomic>

#include "tests/integration/calls/pending_solve.h"
#include "tests/integration/fixture.h"

namespace blockd::test {
namespace {

class QueueTest : public IntegrationTest {
 protected:
  // Served, with a factorization, and a Solve that holds the device until gate_ opens.
  void StartHeld(const server::ServerOptions& options = Options()) {
    StartGated(options);
    handle_ = Factor(matrix_);
    gate_->Close();
    held_ = std::make_unique<PendingSolve>(stub(), Request());
    gate_->WaitForDevice();
  }
  void TearDown() override {
    gate_->Open();
    held_.reset();
    IntegrationTest::TearDown();
  }
  v1::SolveRequest Request() const { return SolveRequestOf(handle_, problem_.rhs); }
  bool QueueHolds(int requests) {
    return Eventually([&] { return Metric("blockd_queue_requests") == requests; });
  }
  int64_t TimesSolved() {
    v1::GetFactorizationRequest request;
    request.set_handle(handle_);
    v1::FactorizationInfo info;
    EXPECT_TRUE(IsOk(stub().GetFactorization(NewContext().get(), request, &info)));
    return info.times_solved();
  }

  const problems::Problem problem_ = problems::RandomSpd(16, 4, 1, 100);
  const HostMatrix matrix_{problem_, Scalar::kFloat64};
  std::string handle_;
  std::unique_ptr<PendingSolve> held_;
};

TEST_F(QueueTest, AFullQueueIsUnavailableWithADelay) {
  server::ServerOptions options = Options();
  options.core.max_queued_requests = 2;
  StartHeld(options);
  PendingSolve first(stub(), Request()), second(stub(), Request());
  ASSERT_TRUE(QueueHolds(2));
  const auto context = NewContext();
  v1::SolveReply reply;
  EXPECT_TRUE(IsRetryLater(stub().Solve(context.get(), Request(), &reply)));
  EXPECT_EQ(context->GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1u);
  EXPECT_TRUE(Eventually([&] { return Ended("Solve", "UNAVAILABLE") == 1; }));
  gate_->Open();
  for (PendingSolve* call : {held_.get(), &first, &second}) {
    EXPECT_TRUE(IsOk(call->Wait()));
    ExpectSolves(matrix_, ValuesOf(call->reply().solution()), problem_.rhs);
  }
}

TEST_F(QueueTest, TooManyBytesInFlightAreUnavailable) {
  server::ServerOptions options = Options();
  // Two large requests do not fit, one does.
  const int64_t columns = 100, rhs_bytes = columns * problem_.rows() * 8;
  options.core.max_inflight_request_bytes = rhs_bytes * 3 / 2;
  StartHeld(options);
  const v1::SolveRequest large =
      SolveRequestOf(handle_, problems::RandomColumns(problem_.rows(), columns, 1), columns);
  PendingSolve waiting(stub(), large);
  ASSERT_TRUE(QueueHolds(1));
  const grpc::Status status = SolveStatus(large);
  EXPECT_TRUE(IsRetryLater(status));
  EXPECT_NE(status.error_message().find("host memory"), std::string::npos);
  gate_->Open();
  EXPECT_TRUE(IsOk(waiting.Wait()));
  // Its bytes are given back when the transport has done with its answer, which the caller may
  // have before.
  EXPECT_TRUE(Eventually([&] { return SolveStatus(large).ok(); }));
}

// A cancelled request makes room in a full queue while the device is still busy.
TEST_F(QueueTest, ACancelledRequestInTheQueueNeverRuns) {
  server::ServerOptions options = Options();
  options.core.max_queued_requests = 1;
  StartHeld(options);
  PendingSolve cancelled(stub(), Request());
  ASSERT_TRUE(QueueHolds(1));
  cancelled.Cancel();
  EXPECT_EQ(cancelled.Wait().error_code(), grpc::StatusCode::CANCELLED);
  std::unique_ptr<PendingSolve> next;
  EXPECT_TRUE(Eventually([&] {  // until the server has heard of it
    if (next == nullptr || next->done()) next = std::make_unique<PendingSolve>(stub(), Request());
    return Ended("Solve", "CANCELLED") == 1;
  }));
  EXPECT_FALSE(held_->done());
  gate_->Open();
  EXPECT_TRUE(IsOk(held_->Wait()));
  const int solved = next->Wait().ok() ? 2 : 1;
  EXPECT_EQ(TimesSolved(), solved);
}

TEST_F(QueueTest, ADeadlineThatPassesInTheQueueIsSaidWhileTheDeviceIsBusy) {
  StartHeld();
  PendingSolve late(stub(), Request(), ContextWithServerTimeout(absl::Seconds(2)));
  EXPECT_EQ(late.Wait().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Eventually([&] { return Ended("Solve", "DEADLINE_EXCEEDED") == 1; }));
  EXPECT_TRUE(QueueHolds(0));
  EXPECT_FALSE(held_->done());
  gate_->Open();
  EXPECT_TRUE(IsOk(held_->Wait()));
  EXPECT_TRUE(IsOk(SolveStatus(Request())));
  EXPECT_EQ(TimesSolved(), 2);
}

// The caller may hear of its deadline before the core does: then the round says nothing.
TEST_F(QueueTest, ADeadlineThatPassesOnTheDeviceEndsTheWorkBetweenTwoSteps) {
  StartHeld();
  gate_->Open();
  EXPECT_TRUE(IsOk(held_->Wait()));
  int attempts = 0;
  EXPECT_TRUE(Eventually([&] {
    gate_->Close();
    PendingSolve late(stub(), Request(), ContextWithServerTimeout(absl::Seconds(2)));
    gate_->WaitForDevice();
    EXPECT_EQ(late.Wait().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    gate_->Open();
    ++attempts;
    EXPECT_TRUE(Eventually([&] {
      return Ended("Solve", "OK") + Ended("Solve", "DEADLINE_EXCEEDED") == attempts + 1;
    }));
    return Ended("Solve", "DEADLINE_EXCEEDED") == 1;
  }));
  EXPECT_EQ(TimesSolved(), attempts);
}

// A cancellation takes its way; the gate opens when it may not have come yet. Once is enough.
TEST_F(QueueTest, ACancelledFactorStopsAndGivesItsMemoryBack) {
  StartHeld();
  gate_->Open();
  held_->Wait();
  const v1::FactorRequest request =
      FactorRequestOf(HostMatrix(problems::Poisson(300, 4), Scalar::kFloat64));
  const int64_t before = ReservedBytes();
  int attempts = 0;
  EXPECT_TRUE(Eventually([&] {
    gate_->Close();
    const auto context = NewContext();
    v1::FactorReply reply;
    std::atomic<bool> done{false};
    stub().async()->Factor(context.get(), &request, &reply, [&](grpc::Status) { done = true; });
    gate_->WaitForDevice();
    context->TryCancel();
    EXPECT_TRUE(Eventually([&] { return done.load(); }));
    v1::ServerInfo info;
    EXPECT_TRUE(IsOk(stub().GetServerInfo(NewContext().get(), {}, &info)));
    gate_->Open();
    ++attempts;
    EXPECT_TRUE(Eventually([&] {  // with the one of StartHeld
      return Ended("Factor", "OK") + Ended("Factor", "CANCELLED") == attempts + 1;
    }));
    return Ended("Factor", "CANCELLED") == 1;
  }));
  // The factors of attempts that were cancelled too late are held, those of the last one are not.
  EXPECT_EQ(Metric("blockd_factorizations"), attempts);
  if (attempts == 1) {
    EXPECT_EQ(ReservedBytes(), before);
  }
  ExpectServes();
}

}  // namespace
}  // namespace blockd::test
