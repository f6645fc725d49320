// Draining: accepted work finishes, new work is sent away, and nothing waits for ever.
#include <atomic>
#include <thread>

#include "tests/integration/calls/pending_solve.h"
#include "tests/integration/fixture.h"

namespace blockd::test {
namespace {

class DrainTest : public IntegrationTest {
 protected:
  void TearDown() override {
    gate_->Open();
    if (drain_.joinable()) drain_.join();
    IntegrationTest::TearDown();
  }

  // No call is accepted any more, as the end of an idle stream says too. The port stays open.
  void StartDrain() {
    const auto context = NewContext();
    const auto idle = stub().SolveStream(context.get());
    idle->WaitForInitialMetadata();
    server().StartDrain();
    EXPECT_TRUE(IsDraining(idle->Finish()));
    EXPECT_EQ(Health(), 2);
  }
  // On a thread of its own: the connection goes away, what is accepted goes on.
  void FinishDrain() {
    drain_ = std::thread([this] {
      drained_in_time_ = server().Drain();
      drained_ = true;
    });
    EXPECT_TRUE(Eventually([&] { return channel_->GetState(false) != GRPC_CHANNEL_READY; }));
  }
  // As a full queue, but told from it.
  template <typename Status>
  ::testing::AssertionResult IsDraining(const Status& status) {
    const auto detail = DetailOf<v1::ServerDraining>(status);
    if (!detail || detail->server_name() != "solver-7") {
      return ::testing::AssertionFailure() << "no ServerDraining of solver-7";
    }
    return IsRetryLater(status);
  }
  static server::ServerOptions Named() {
    server::ServerOptions options = Options();
    options.server_name = "solver-7";
    return options;
  }
  v1::FactorStreamRequest Header() const {
    v1::FactorStreamRequest message;
    *message.mutable_header()->mutable_spec() = SpecOf(matrix_);
    message.mutable_header()->set_num_systems(1);
    return message;
  }

  static v1::FactorStreamRequest Chunk(const std::string& bytes) {
    v1::FactorStreamRequest message;
    message.set_chunk(bytes);
    return message;
  }

  const problems::Problem problem_ = problems::RandomSpd(16, 4, 1, 100);
  const HostMatrix matrix_{problem_, Scalar::kFloat64};
  std::thread drain_;
  std::atomic<bool> drained_{false}, drained_in_time_{false};
};

TEST_F(DrainTest, AcceptedWorkFinishesBeforeTheDrainReturns) {
  StartGated(Named());
  const std::string handle = Factor(matrix_);
  EXPECT_EQ(Health(), 1);
  gate_->Close();
  PendingSolve running(stub(), SolveRequestOf(handle, problem_.rhs));
  gate_->WaitForDevice();
  PendingSolve queued(stub(), SolveRequestOf(handle, problem_.rhs));
  ASSERT_TRUE(Eventually([&] { return Metric("blockd_queue_requests") == 1; }));
  // An upload that has begun is accepted work too.
  const auto upload_context = NewContext();
  v1::FactorReply uploaded;
  const auto upload = stub().FactorStream(upload_context.get(), &uploaded);
  const v1::SystemData data = DataOf(matrix_);
  ASSERT_TRUE(upload->Write(Header()));
  ASSERT_TRUE(upload->Write(Chunk(data.diagonal())));
  const auto bytes = static_cast<int64_t>(data.diagonal().size());
  ASSERT_TRUE(Eventually([&] { return HostBytes() >= bytes; }));

  StartDrain();
  FinishDrain();
  ASSERT_TRUE(upload->Write(Chunk(data.coupling())));
  upload->WritesDone();
  EXPECT_FALSE(drained_);
  gate_->Open();
  EXPECT_TRUE(IsOk(upload->Finish()));
  EXPECT_TRUE(IsOk(running.Wait()));
  EXPECT_TRUE(IsOk(queued.Wait()));
  ExpectSolves(matrix_, ValuesOf(running.reply().solution()), problem_.rhs);
  ExpectSolves(matrix_, ValuesOf(queued.reply().solution()), problem_.rhs);
  drain_.join();
  EXPECT_TRUE(drained_in_time_);
  EXPECT_EQ(Ended("Solve", "OK"), 2);
  EXPECT_EQ(Ended("FactorStream", "OK"), 1);
}

TEST_F(DrainTest, NewWorkIsSentAwayWithADelay) {
  server::ServerOptions options = Named();
  options.core.retry_delay = absl::Milliseconds(1700);
  StartGated(options);
  const std::string handle = Factor(matrix_);
  gate_->Close();
  PendingSolve running(stub(), SolveRequestOf(handle, problem_.rhs));
  gate_->WaitForDevice();
  StartDrain();

  const auto context = NewContext();
  v1::SolveReply solved;
  const grpc::Status late =
      stub().Solve(context.get(), SolveRequestOf(handle, problem_.rhs), &solved);
  EXPECT_TRUE(IsDraining(late));
  const auto delay = DetailOf<v1::RetryAfter>(late);
  ASSERT_TRUE(delay);
  EXPECT_EQ(delay->delay().seconds(), 1);
  EXPECT_EQ(delay->delay().nanos(), 700'000'000);
  const auto& trailing = context->GetServerTrailingMetadata();
  ASSERT_EQ(trailing.count("grpc-retry-pushback-ms"), 1u);
  EXPECT_EQ(trailing.find("grpc-retry-pushback-ms")->second, "1700");

  EXPECT_TRUE(IsDraining(FactorStatus(FactorRequestOf(matrix_))));
  v1::FactorSolveRequest both;
  *both.mutable_spec() = SpecOf(matrix_);
  *both.mutable_system() = DataOf(matrix_);
  both.set_num_rhs(1);
  both.set_rhs(BytesOf(problem_.rhs));
  v1::FactorSolveReply both_reply;
  EXPECT_TRUE(IsDraining(stub().FactorSolve(NewContext().get(), both, &both_reply)));
  const auto upload_context = NewContext();
  v1::FactorReply uploaded;
  EXPECT_TRUE(IsDraining(stub().FactorStream(upload_context.get(), &uploaded)->Finish()));
  const auto stream_context = NewContext();
  EXPECT_TRUE(IsDraining(stub().SolveStream(stream_context.get())->Finish()));
  // Calls that need no device are still answered.
  v1::ServerInfo info;
  EXPECT_TRUE(IsOk(stub().GetServerInfo(NewContext().get(), {}, &info)));
  for (const char* method : {"Solve", "Factor", "FactorSolve", "FactorStream"}) {
    EXPECT_TRUE(Eventually([&] { return Ended(method, "UNAVAILABLE") == 1; })) << method;
  }
  EXPECT_TRUE(Eventually([&] { return Ended("SolveStream", "UNAVAILABLE") == 2; }));
  gate_->Open();
  EXPECT_TRUE(IsOk(running.Wait()));
}

TEST_F(DrainTest, AStreamEndsOnceWhatItSentIsAnswered) {
  StartGated(Named());
  v1::SolveStreamRequest request;
  request.set_id(1);
  *request.mutable_request() = SolveRequestOf(Factor(matrix_), problem_.rhs);
  const auto busy_context = NewContext(), closed_context = NewContext();
  gate_->Close();
  const auto busy = stub().SolveStream(busy_context.get());
  ASSERT_TRUE(busy->Write(request));
  gate_->WaitForDevice();
  const auto closed = stub().SolveStream(closed_context.get());
  ASSERT_TRUE(closed->Write(request));
  closed->WritesDone();
  ASSERT_TRUE(Eventually([&] { return Metric("blockd_queue_requests") == 1; }));

  StartDrain();
  request.set_id(2);
  ASSERT_TRUE(busy->Write(request));
  v1::SolveStreamReply reply;
  ASSERT_TRUE(busy->Read(&reply));
  EXPECT_EQ(reply.id(), 2u);
  EXPECT_TRUE(IsDraining(reply.status()));
  gate_->Open();
  ASSERT_TRUE(busy->Read(&reply));
  EXPECT_EQ(reply.id(), 1u);
  ExpectSolves(matrix_, ValuesOf(reply.reply().solution()), problem_.rhs);
  EXPECT_FALSE(busy->Read(&reply));
  EXPECT_TRUE(IsDraining(busy->Finish()));
  // One whose caller had ended it ends as if nothing were.
  ASSERT_TRUE(closed->Read(&reply));
  ExpectSolves(matrix_, ValuesOf(reply.reply().solution()), problem_.rhs);
  EXPECT_FALSE(closed->Read(&reply));
  EXPECT_TRUE(IsOk(closed->Finish()));
}

TEST_F(DrainTest, WorkThatOutlastsTheTimeoutIsCancelled) {
  server::ServerOptions options = Options();
  options.drain_timeout = absl::Milliseconds(100);
  Start(options);
  const auto context = NewContext();
  v1::FactorReply reply;
  const auto upload = stub().FactorStream(context.get(), &reply);
  ASSERT_TRUE(upload->Write(Header()));
  ASSERT_TRUE(upload->Write(Chunk("12345678")));
  ASSERT_TRUE(Eventually([&] { return HostBytes() == 8; }));
  EXPECT_FALSE(server().Drain());
  EXPECT_FALSE(server().Drain());  // says the same again
  EXPECT_FALSE(upload->Finish().ok());
  EXPECT_EQ(Ended("FactorStream", "CANCELLED"), 1);
  EXPECT_EQ(ReservedBytes(), 0);
}

TEST_F(DrainTest, WorkThatNeverEndsDoesNotHoldUpTheProgram) {
  server::ServerOptions options = Options();
  options.drain_timeout = absl::Milliseconds(50);
  StartGated(options);
  const std::string handle = Factor(matrix_);
  gate_->Close();
  PendingSolve stuck(stub(), SolveRequestOf(handle, problem_.rhs));
  gate_->WaitForDevice();
  absl::Notification over;
  std::thread ending([&] {
    server().Drain();
    over.Notify();
  });
  EXPECT_FALSE(over.WaitForNotificationWithTimeout(absl::Milliseconds(200)));
  gate_->Open();
  ending.join();
  EXPECT_FALSE(stuck.Wait().ok());
}

}  // namespace
}  // namespace blockd::test
