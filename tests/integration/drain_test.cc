// Draining, cancelling, deadlines and full queues.
#include <atomic>
#include <thread>

#include "tests/integration/fixture.h"

namespace blockd::test {
namespace {

struct PendingSolve {
  grpc::ClientContext context;
  v1::SolveRequest request;
  v1::SolveReply reply;
  grpc::Status status;
  std::atomic<bool> done{false};
};

class DrainTest : public IntegrationTest {
 protected:
  // Solves of this take long enough to be caught under way.
  const problems::Problem problem_ = problems::RandomSpd(64, 32, 1, 100);
  const HostMatrix matrix_{problem_, Scalar::kFloat64};

  v1::SolveRequest SolveRequestOf(const std::string& handle) const {
    v1::SolveRequest request;
    request.set_handle(handle);
    request.set_num_rhs(1);
    request.set_rhs(BytesOf(problem_.rhs));
    return request;
  }
  void StartSolve(const std::string& handle, PendingSolve* call) {
    call->request = SolveRequestOf(handle);
    Run(call);
  }
  void Run(PendingSolve* call) {
    stub().async()->Solve(&call->context, &call->request, &call->reply,
                          [call](grpc::Status status) {
                            call->status = std::move(status);
                            call->done = true;
                          });
  }
};

TEST_F(DrainTest, AcceptedWorkFinishesAndNewWorkIsUnavailable) {
  // Work waits for company, so that it is accepted and not finished when the drain begins.
  server::ServerOptions options = Options();
  options.core.max_batch_delay = absl::Seconds(1);
  Start(options);
  const std::string handle = Factor(matrix_);
  EXPECT_EQ(Health(), 1);

  PendingSolve pending;
  StartSolve(handle, &pending);
  ASSERT_TRUE(Eventually([&] { return Metric("blockd_queue_requests") > 0; }));
  const auto stream_context = NewContext();
  const auto idle_stream = stub().SolveStream(stream_context.get());
  idle_stream->WaitForInitialMetadata();
  // An upload that has begun is accepted work too.
  const auto upload_context = NewContext();
  v1::FactorReply uploaded;
  const auto upload = stub().FactorStream(upload_context.get(), &uploaded);
  v1::FactorStreamRequest message;
  *message.mutable_header()->mutable_spec() = SpecOf(matrix_);
  message.mutable_header()->set_num_systems(1);
  const int64_t before = ReservedBytes();
  ASSERT_TRUE(upload->Write(message));
  ASSERT_TRUE(Eventually([&] { return ReservedBytes() > before; }));

  std::atomic<bool> drained{false};
  std::thread drain([&] { drained = server().Drain(); });
  EXPECT_TRUE(Eventually([&] { return Health() == 2; }));
  const v1::SolveRequest late = SolveRequestOf(handle);
  v1::SolveReply late_reply;
  EXPECT_TRUE(Eventually([&] {
    const auto context = NewContext();
    const grpc::Status status = stub().Solve(context.get(), late, &late_reply);
    const auto& trailing = context->GetServerTrailingMetadata();
    return status.error_code() == grpc::StatusCode::UNAVAILABLE &&
           DetailOf<v1::RetryAfter>(status) && trailing.count("grpc-retry-pushback-ms") == 1;
  }));
  EXPECT_EQ(FactorStatus(FactorRequestOf(matrix_)).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(idle_stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);

  v1::SystemData data = DataOf(matrix_);
  message.set_chunk(data.diagonal() + data.coupling());
  ASSERT_TRUE(upload->Write(message));
  upload->WritesDone();
  EXPECT_TRUE(IsOk(upload->Finish()));
  drain.join();
  EXPECT_TRUE(drained);
  ASSERT_TRUE(pending.done);
  ASSERT_TRUE(IsOk(pending.status));
  ExpectSolves(matrix_, ValuesOf(pending.reply.solution()), problem_.rhs);
}

TEST_F(DrainTest, WorkThatOutlastsTheTimeoutIsCancelled) {
  server::ServerOptions options = Options();
  options.drain_timeout = absl::Milliseconds(100);
  Start(options);
  const auto context = NewContext();
  v1::FactorReply reply;
  const auto upload = stub().FactorStream(context.get(), &reply);
  v1::FactorStreamRequest message;
  *message.mutable_header()->mutable_spec() = SpecOf(matrix_);
  message.mutable_header()->set_num_systems(1);
  ASSERT_TRUE(upload->Write(message));
  ASSERT_TRUE(Eventually([&] { return ReservedBytes() > 0; }));
  EXPECT_FALSE(server().Drain());
  EXPECT_FALSE(upload->Finish().ok());
  EXPECT_EQ(ReservedBytes(), 0);
}

TEST_F(DrainTest, AFullQueueIsUnavailableWithADelay) {
  server::ServerOptions options = Options();
  options.core.max_queued_requests = 2;
  options.core.max_batch_delay = absl::Seconds(3);
  options.core.max_batch_requests = 100;
  Start(options);
  const std::string handle = Factor(matrix_);
  PendingSolve waiting[2];
  for (PendingSolve& call : waiting) {
    call.request = SolveRequestOf(handle);
    stub().async()->Solve(&call.context, &call.request, &call.reply, [&call](grpc::Status status) {
      call.status = std::move(status);
      call.done = true;
    });
  }
  ASSERT_TRUE(Eventually([&] { return Metric("blockd_queue_requests") == 2; }));
  const auto context = NewContext();
  v1::SolveReply reply;
  const grpc::Status status = stub().Solve(context.get(), SolveRequestOf(handle), &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(DetailOf<v1::RetryAfter>(status));
  EXPECT_EQ(context->GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1u);
  for (PendingSolve& call : waiting) {
    EXPECT_TRUE(Eventually([&] { return call.done.load(); }));
    EXPECT_TRUE(IsOk(call.status));
  }
}

TEST_F(DrainTest, TooManyBytesInFlightAreUnavailable) {
  server::ServerOptions options = Options();
  options.core.max_batch_delay = absl::Seconds(4);
  const int64_t rhs_bytes = problem_.rows() * 8;
  options.max_inflight_request_bytes = 3 * rhs_bytes;  // one request and its solution
  Start(options);
  const problems::Problem small = problems::RandomSpd(2, 16, 1, 10);
  EXPECT_EQ(FactorStatus(FactorRequestOf(matrix_)).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);  // never fits
  const std::string held = Factor(HostMatrix(small, Scalar::kFloat64));
  PendingSolve waiting;
  waiting.request.set_handle(held);
  waiting.request.set_num_rhs(rhs_bytes / (small.rows() * 8));
  waiting.request.set_rhs(std::string(static_cast<size_t>(rhs_bytes), '\0'));
  Run(&waiting);
  ASSERT_TRUE(Eventually([&] { return Metric("blockd_queue_requests") == 1; }));
  const grpc::Status status = SolveStatus(waiting.request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_TRUE(DetailOf<v1::RetryAfter>(status));
  EXPECT_TRUE(Eventually([&] { return waiting.done.load(); }));
  EXPECT_TRUE(IsOk(waiting.status));
  // Its bytes are given back when the transport has done with its answer, which the caller may
  // have before.
  EXPECT_TRUE(Eventually([&] { return SolveStatus(waiting.request).ok(); }));
}

TEST_F(DrainTest, ACancelledRequestInTheQueueIsDropped) {
  server::ServerOptions options = Options();
  options.core.max_batch_delay = absl::Seconds(1);
  Start(options);
  const std::string handle = Factor(matrix_);
  PendingSolve cancelled;
  StartSolve(handle, &cancelled);
  ASSERT_TRUE(Eventually([&] { return Metric("blockd_queue_requests") > 0; }));
  cancelled.context.TryCancel();
  EXPECT_TRUE(Eventually([&] { return cancelled.done.load(); }));
  EXPECT_EQ(cancelled.status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return Metric("blockd_queue_requests") == 0; }));
  EXPECT_TRUE(IsOk(SolveStatus(SolveRequestOf(handle))));
}

TEST_F(DrainTest, ADeadlineThatPassesInTheQueueIsSaid) {
  server::ServerOptions options = Options();
  options.device.memory_bytes = int64_t{512} << 20;
  Start(options);
  const std::string handle = Factor(matrix_);
  // Keeps the device busy for far longer than the deadline below.
  const v1::FactorRequest busy =
      FactorRequestOf(HostMatrix(problems::Poisson(40, 300), Scalar::kFloat64));
  grpc::ClientContext context;
  v1::FactorReply reply;
  std::atomic<bool> done{false};
  stub().async()->Factor(&context, &busy, &reply, [&](grpc::Status) { done = true; });
  ASSERT_TRUE(Eventually([&] { return Metric("blockd_budget_reserved_bytes") > 40e6; }));
  PendingSolve late;
  late.context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(5));
  StartSolve(handle, &late);
  EXPECT_TRUE(Eventually([&] { return late.done.load(); }));
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Eventually([&] { return done.load(); }));
  EXPECT_TRUE(Eventually([&] { return Metric("blockd_queue_requests") == 0; }));
  EXPECT_TRUE(IsOk(SolveStatus(SolveRequestOf(handle))));
}

TEST_F(DrainTest, ACancelledFactorStopsAndGivesItsMemoryBack) {
  server::ServerOptions options = Options();
  options.device.memory_bytes = int64_t{256} << 20;
  Start(options);
  const HostMatrix large(problems::Poisson(300, 120), Scalar::kFloat64);
  for (int i = 0; i < 3; ++i) {
    const v1::FactorRequest request = FactorRequestOf(large);
    grpc::ClientContext context;
    v1::FactorReply reply;
    std::atomic<bool> done{false};
    stub().async()->Factor(&context, &request, &reply, [&](grpc::Status) { done = true; });
    ASSERT_TRUE(Eventually([&] { return done || ReservedBytes() > 0; }));
    context.TryCancel();
    ASSERT_TRUE(Eventually([&] { return done.load(); }));
    // Whether the cancellation came in time or not, nothing stays that nobody knows of.
    ASSERT_TRUE(Eventually([&] {
      return ReservedBytes() == static_cast<int64_t>(Metric("blockd_factorization_bytes"));
    }));
  }
  ExpectServes();
}

}  // namespace
}  // namespace blockd::test
