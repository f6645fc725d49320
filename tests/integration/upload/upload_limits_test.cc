// An upload that is too slow holds nothing for long, however it keeps its stream busy.
#include <functional>

#include "absl/strings/match.h"
#include "tests/integration/calls/pending_solve.h"
#include "tests/integration/stream/solve_stream_fixture.h"

namespace blockd::test {
namespace {

class UploadLimitsTest : public SolveStreamTest {
 protected:
  void SetUp() override {}

  // Sends a header, then `chunk` again and again until the server ends the stream.
  grpc::Status Trickle(const std::string& chunk, absl::Duration pause) {
    const HostMatrix large(problems::Poisson(100, 80), Scalar::kFloat64);
    const auto context = NewContext();
    v1::FactorReply reply;
    const auto upload = stub().FactorStream(context.get(), &reply);
    v1::FactorStreamRequest message;
    *message.mutable_header()->mutable_spec() = SpecOf(large);
    message.mutable_header()->set_num_systems(1);
    EXPECT_TRUE(upload->Write(message));
    message.set_chunk(chunk);
    while (upload->Write(message)) absl::SleepFor(pause);
    const grpc::Status status = upload->Finish();
    EXPECT_TRUE(
        Eventually([&] { return Metric("blockd_factorizations") > 0 || ReservedBytes() == 0; }));
    return status;
  }
  static bool Names(int code, const std::string& message, const char* flag) {
    return code == grpc::StatusCode::DEADLINE_EXCEEDED && absl::StrContains(message, flag);
  }
};

TEST_F(UploadLimitsTest, EmptyChunksAreNoSignOfLife) {
  server::ServerOptions options = Options();
  options.stream_idle_timeout = absl::Milliseconds(200);
  Start(options);
  const grpc::Status status = Trickle("", absl::Milliseconds(10));
  EXPECT_TRUE(Names(status.error_code(), status.error_message(), "--stream_idle_timeout"))
      << status.error_message();
}

TEST_F(UploadLimitsTest, AnUploadHasALongestDuration) {
  server::ServerOptions options = Options();
  options.max_upload_duration = absl::Milliseconds(300);
  Start(options);
  const grpc::Status status = Trickle("x", absl::Milliseconds(5));
  EXPECT_TRUE(Names(status.error_code(), status.error_message(), "--max_upload_duration"))
      << status.error_message();
}

TEST_F(UploadLimitsTest, AnUploadHasALeastRateBeyondItsGrace) {
  Start();
  const grpc::Status status = Trickle("x", absl::Milliseconds(20));
  EXPECT_TRUE(Names(status.error_code(), status.error_message(), "--min_upload_bytes_per_second"))
      << status.error_message();
}

TEST_F(UploadLimitsTest, ARequestOfAStreamHasALongestDurationToo) {
  server::ServerOptions options = Options();
  options.max_upload_duration = absl::Milliseconds(200);
  Open(options);
  ASSERT_TRUE(stream_->Write(Header(1)));
  ASSERT_TRUE(stream_->Write(Chunk(1, "x")));
  ASSERT_TRUE(stream_->Write(Whole(2, problem_.rhs)));
  Read(2);
  ExpectAnswer(2, problem_.rhs);
  EXPECT_TRUE(
      Names(answers_[1].status.code(), answers_[1].status.message(), "--max_upload_duration"))
      << answers_[1].status.message();
  EXPECT_TRUE(IsOk(Close()));
}

// Requests that come whole do not keep one alive that does not, and are not taken for it while
// their bytes, many here, are being copied.
TEST_F(UploadLimitsTest, ARequestThatStallsIsRefusedWhileOthersOfItsStreamCome) {
  server::ServerOptions options = Options();
  options.stream_idle_timeout = absl::Milliseconds(200);
  Open(options);
  constexpr int64_t kColumns = 400;
  const std::vector<double> rhs = problems::RandomColumns(problem_.rows(), kColumns, 1);
  ASSERT_TRUE(stream_->Write(Header(1)));
  for (uint64_t id = 2; !answers_[1].complete; ++id) {
    ASSERT_TRUE(stream_->Write(Whole(id, rhs)));
    Read(1);
    if (answers_[1].complete && !answers_[id].complete) Read(1);
    EXPECT_EQ(answers_[id].status.code(), 0) << answers_[id].status.message();
    answers_.erase(id);
  }
  EXPECT_TRUE(
      Names(answers_[1].status.code(), answers_[1].status.message(), "--stream_idle_timeout"));
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(UploadLimitsTest, HeadersTakeNothingOfTheHostsMemory) {
  constexpr int64_t kColumns = 60;
  server::ServerOptions options = Options();
  const std::vector<double> rhs = problems::RandomColumns(problem_.rows(), kColumns, 1);
  const int64_t bytes = kColumns * problem_.rows() * 8;
  options.core.max_inflight_request_bytes = 2 * bytes + 10'000;  // one Solve with its solution
  Open(options);
  for (uint64_t id = 1; id <= 10; ++id) ASSERT_TRUE(stream_->Write(Header(id, kColumns)));
  ASSERT_TRUE(stream_->Write(Whole(11, problem_.rhs)));
  Read(1);
  ExpectAnswer(11, problem_.rhs);  // so the server has the headers
  EXPECT_TRUE(Eventually([&] { return SolveStatus(SolveRequestOf(handle_, rhs, kColumns)).ok(); }));
  context_->TryCancel();
  EXPECT_FALSE(stream_->Finish().ok());
}

}  // namespace
}  // namespace blockd::test
