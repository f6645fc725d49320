// A client's control over a request of a stream: it may cancel the request after it has sent it,
// replace it, and give it a timeout of its own.
#include "tests/integration/stream/solve_stream_fixture.h"

namespace blockd::test {
namespace {

class StreamControlTest : public SolveStreamTest {
 protected:
  void SetUp() override { Open(Options(), /*gated=*/true); }

  static v1::SolveStreamRequest Cancel(uint64_t id) {
    v1::SolveStreamRequest message;
    message.set_id(id);
    message.mutable_cancel();
    return message;
  }
  v1::SolveStreamRequest Timed(v1::SolveStreamRequest message, absl::Duration timeout) const {
    message.mutable_timeout()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(timeout)));
    return message;
  }
  v1::SolveStreamRequest Replacing(v1::SolveStreamRequest message) const {
    message.set_replace_last(true);
    return message;
  }
  // One that holds the device.
  void Hold(uint64_t id) {
    gate_->Close();
    ASSERT_TRUE(stream_->Write(Whole(id, problem_.rhs)));
    gate_->WaitForDevice();
  }
  bool QueueHolds(int requests) {
    return Eventually([&] { return Metric("blockd_queue_requests") == requests; });
  }
  int CodeOf(uint64_t id) { return answers_[id].complete ? answers_[id].status.code() : -1; }
};

TEST_F(StreamControlTest, ACancelledRequestInTheQueueNeverRuns) {
  Hold(1);
  ASSERT_TRUE(stream_->Write(Whole(2, problem_.rhs)));
  ASSERT_TRUE(QueueHolds(1));
  ASSERT_TRUE(stream_->Write(Cancel(2)));
  Read(1);  // while the device still holds the first
  EXPECT_EQ(CodeOf(2), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(QueueHolds(0));
  gate_->Open();
  Read(1);
  ExpectAnswer(1, problem_.rhs);
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(StreamControlTest, ACancelledRequestThatIsArrivingIsAnsweredAndItsChunksAreDropped) {
  ASSERT_TRUE(stream_->Write(Header(1, 2)));
  ASSERT_TRUE(stream_->Write(Chunk(1, "some")));
  ASSERT_TRUE(stream_->Write(Cancel(1)));
  Read(1);
  EXPECT_EQ(CodeOf(1), grpc::StatusCode::CANCELLED);
  answers_.clear();
  ASSERT_TRUE(stream_->Write(Chunk(1, "more")));
  ASSERT_TRUE(stream_->Write(Whole(1, problem_.rhs)));  // the id is free
  Read(1);
  ExpectAnswer(1, problem_.rhs);
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(StreamControlTest, MoreCancellationsThanTheServerRemembersDoNotEndTheStream) {
  for (uint64_t id = 1; id <= 1500; ++id) {
    ASSERT_TRUE(stream_->Write(Header(id)));
    ASSERT_TRUE(stream_->Write(Cancel(id)));
    Read(1);
    EXPECT_EQ(CodeOf(id), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(StreamControlTest, ToCancelWhatIsNotOutstandingSaysNothing) {
  ASSERT_TRUE(stream_->Write(Cancel(1)));
  ASSERT_TRUE(stream_->Write(Whole(1, problem_.rhs)));
  Read(1);
  ExpectAnswer(1, problem_.rhs);
  ASSERT_TRUE(stream_->Write(Cancel(1)));
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(StreamControlTest, ARequestReplacesTheLastOneOfItsHandleAlone) {
  const std::string other = Factor(matrix_);
  Hold(1);
  ASSERT_TRUE(stream_->Write(Whole(2, problem_.rhs)));
  v1::SolveStreamRequest of_other = Whole(3, problem_.rhs);
  of_other.mutable_request()->set_handle(other);
  ASSERT_TRUE(stream_->Write(of_other));
  ASSERT_TRUE(QueueHolds(2));
  ASSERT_TRUE(stream_->Write(Replacing(Whole(4, problem_.rhs))));
  Read(1);
  EXPECT_EQ(CodeOf(2), grpc::StatusCode::CANCELLED);
  gate_->Open();
  Read(3);
  for (const uint64_t id : {1, 3, 4}) ExpectAnswer(id, problem_.rhs);
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(StreamControlTest, ARequestReplacesOneThatIsArriving) {
  ASSERT_TRUE(stream_->Write(Header(5)));
  ASSERT_TRUE(stream_->Write(Replacing(Header(6))));
  Read(1);
  EXPECT_EQ(CodeOf(5), grpc::StatusCode::CANCELLED);
  ASSERT_TRUE(stream_->Write(Chunk(6, BytesOf(problem_.rhs))));
  Read(1);
  ExpectAnswer(6, problem_.rhs);
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(StreamControlTest, WithoutAnythingToReplaceARequestIsLikeAnyOther) {
  for (uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(stream_->Write(Replacing(Whole(id, problem_.rhs))));
    Read(1);
    ExpectAnswer(id, problem_.rhs);
  }
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(StreamControlTest, ATimeoutEndsOneRequestInTheQueueOrArriving) {
  Hold(1);
  ASSERT_TRUE(stream_->Write(Timed(Whole(2, problem_.rhs), absl::Milliseconds(50))));
  ASSERT_TRUE(stream_->Write(Timed(Header(3), absl::Milliseconds(50))));
  Read(2);
  EXPECT_EQ(CodeOf(2), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(CodeOf(3), grpc::StatusCode::DEADLINE_EXCEEDED);
  gate_->Open();
  Read(1);
  ExpectAnswer(1, problem_.rhs);
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(StreamControlTest, ATimeoutOfNothingIsRefused) {
  ASSERT_TRUE(stream_->Write(Timed(Whole(1, problem_.rhs), absl::ZeroDuration())));
  Read(1);
  const auto invalid = DetailOf<v1::InvalidField>(answers_[1].status);
  ASSERT_TRUE(invalid.has_value());
  EXPECT_EQ(invalid->field(), "timeout");
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(StreamControlTest, TheCancellationOfAStreamIsThatOfItsRequests) {
  Hold(1);
  ASSERT_TRUE(stream_->Write(Whole(2, problem_.rhs)));
  ASSERT_TRUE(QueueHolds(1));
  context_->TryCancel();
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return Ended("SolveStream", "CANCELLED") >= 1; }));
  gate_->Open();
  EXPECT_TRUE(QueueHolds(0));
  EXPECT_TRUE(Eventually([&] { return Ended("SolveStream", "CANCELLED") >= 2; }));
}

}  // namespace
}  // namespace blockd::test
