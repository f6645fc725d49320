// Memory that the host does not have: the call that wanted it says so, and all that it had comes
// back.
#include <thread>

#include "server/transport/wire/raw_message.h"
#include "tests/integration/calls/pending_solve.h"
#include "tests/integration/calls/refactor_requests.h"
#include "tests/integration/stream/solve_stream_fixture.h"
#include "tests/support/hooks/heap_hook.h"

namespace blockd::test {
namespace {

constexpr int64_t kRefusedBytes = int64_t{1} << 20;

class AllocationFailureTest : public SolveStreamTest {
 protected:
  static constexpr int64_t kColumns = 250;  // 1.28 MB

  void SetUp() override {
    server::ServerOptions options = Options();
    // One large request with its solution, and a little.
    options.core.max_inflight_request_bytes = 3 * kRefusedBytes;
    options.device.host_memory_bytes = 0;  // a GPU's, which is no heap
    Open(options);
    rhs_ = problems::RandomColumns(problem_.rows(), kColumns, 1);
  }
  void TearDown() override {
    // Nothing is under way, and nothing is missing.
    if (stream_ != nullptr) {
      EXPECT_TRUE(IsOk(Close()));
    }
    EXPECT_TRUE(Eventually([&] { return SolveStatus(Large()).ok(); }));
    ExpectServes();
    EXPECT_TRUE(server().Drain());
    IntegrationTest::TearDown();
  }
  v1::SolveRequest Large() const { return SolveRequestOf(handle_, rhs_, kColumns); }
  static bool IsOutOfMemory(const grpc::Status& status) {
    return status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED &&
           status.error_details().find("LimitExceeded") == std::string::npos;
  }

  std::vector<double> rhs_;
};

TEST_F(AllocationFailureTest, ARequestThatCannotBeParsedEndsItsCall) {
  const v1::SolveRequest large = Large();
  v1::FactorSolveRequest both;
  *both.mutable_spec() = SpecOf(matrix_);
  *both.mutable_system() = DataOf(matrix_);
  both.set_num_rhs(kColumns);
  both.set_rhs(large.rhs());
  // A call gives its memory back a little after its answer, and there is room for one call only.
  const auto is_back = [this] { return HostBytes() == 0; };
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Eventually(is_back));
    const FailingHeap heap(kRefusedBytes);
    EXPECT_TRUE(IsOutOfMemory(SolveStatus(large)));
    ASSERT_TRUE(Eventually(is_back));
    v1::FactorSolveReply reply;
    EXPECT_TRUE(IsOutOfMemory(stub().FactorSolve(NewContext().get(), both, &reply)));
    EXPECT_GT(heap.refused(), 0);
  }
  EXPECT_TRUE(Eventually([&] { return Ended("Solve", "RESOURCE_EXHAUSTED") == 3; }));
}

TEST_F(AllocationFailureTest, AHandlerThatRunsOutOfMemoryEndsItsCall) {
  v1::ReleaseRequest release;
  for (int i = 0; i < 10'000; ++i) release.add_handle(handle_);
  v1::ReleaseReply reply;
  {
    const FailingHeap heap(200'000);  // parsing asks for less at once, the handler for more
    EXPECT_TRUE(IsOutOfMemory(stub().Release(NewContext().get(), release, &reply)));
    EXPECT_GT(heap.refused(), 0);
  }
  v1::GetFactorizationRequest get;
  get.set_handle(handle_);
  v1::FactorizationInfo info;
  EXPECT_TRUE(IsOk(stub().GetFactorization(NewContext().get(), get, &info)));
}

TEST_F(AllocationFailureTest, ARequestOfAStreamFailsAndTheStreamGoesOn) {
  const v1::SolveStreamRequest whole = Whole(1, rhs_), header = Header(2, kColumns);
  {
    const FailingHeap heap(kRefusedBytes);
    ASSERT_TRUE(stream_->Write(whole));
    ASSERT_TRUE(stream_->Write(header));
    ASSERT_TRUE(stream_->Write(Chunk(2, std::string(8, '\0'))));  // takes room for all
    Read(2);
    EXPECT_EQ(heap.refused(), 2);
  }
  for (const uint64_t id : {1, 2}) {
    EXPECT_EQ(answers_[id].status.code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  ASSERT_TRUE(stream_->Write(Whole(3, rhs_)));
  Read(1);
  ExpectAnswer(3, rhs_);
}

TEST_F(AllocationFailureTest, AFrameOfRefactorsFailsAndTheStreamGoesOn) {
  v1::SolveStreamRequest frame;
  frame.set_id(1);
  *frame.mutable_refactor() = FactorSolveManyOf({handle_}, {matrix_}, kColumns);
  {
    const FailingHeap heap(kRefusedBytes);
    ASSERT_TRUE(stream_->Write(frame));
    Read(1);
    EXPECT_GT(heap.refused(), 0);
  }
  EXPECT_EQ(answers_[1].status.code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  ASSERT_TRUE(stream_->Write(frame));
  std::map<uint64_t, FrameAnswer> answers;
  EXPECT_EQ(Next(answers), 1u);
  EXPECT_EQ(answers[1].solution.size(), frame.refactor().rhs().size());
}

TEST(PayloadTest, SaysThatTheHostHasNoSuchPiece) {
  const FailingHeap heap(kRefusedBytes);
  std::thread other([] {
    EXPECT_TRUE(server::Payload::Allocate(kRefusedBytes - 1).ok());
    EXPECT_TRUE(absl::IsResourceExhausted(server::Payload::Allocate(kRefusedBytes).status()));
  });
  other.join();
  EXPECT_EQ(heap.refused(), 1);
}

}  // namespace
}  // namespace blockd::test
