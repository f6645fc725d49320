// SolveStream over a real socket: replies by id, interleaved chunks, limits, and failures that end
// one request or the stream.
#include <algorithm>
#include <map>
#include <thread>

#include "tests/integration/fixture.h"

namespace blockd::test {
namespace {

using problems::RandomColumns;

class SolveStreamTest : public IntegrationTest {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::SolveStreamRequest, v1::SolveStreamReply>;

  void SetUp() override { Open(Options()); }

  void Open(const server::ServerOptions& options) {
    Start(options);
    handle_ = Factor(matrix_);
    OpenStream();
  }
  void OpenStream() {
    context_ = NewContext();
    stream_ = stub().SolveStream(context_.get());
  }

  v1::SolveStreamRequest Header(uint64_t id, int64_t num_rhs = 1) const {
    v1::SolveStreamRequest message;
    message.set_id(id);
    message.mutable_request()->set_handle(handle_);
    message.mutable_request()->set_num_rhs(num_rhs);
    return message;
  }
  v1::SolveStreamRequest Whole(uint64_t id, const std::vector<double>& rhs) const {
    v1::SolveStreamRequest message = Header(id, static_cast<int64_t>(rhs.size()) / problem_.rows());
    message.mutable_request()->set_rhs(BytesOf(rhs));
    return message;
  }
  static v1::SolveStreamRequest Chunk(uint64_t id, const std::string& bytes) {
    v1::SolveStreamRequest message;
    message.set_id(id);
    message.set_chunk(bytes);
    return message;
  }

  struct Answer {
    std::string solution;
    v1::SolveReply reply;
    v1::RpcStatus status;
    int chunks = 0;
    bool complete = false;
  };
  // Reads until `count` more requests are answered, or the stream ends.
  void Read(size_t count) {
    v1::SolveStreamReply message;
    while (count > 0 && stream_->Read(&message)) {
      Answer& answer = answers_[message.id()];
      if (message.has_status()) {
        answer.status = message.status();
        answer.complete = true;
      } else if (message.has_reply()) {
        answer.reply = message.reply();
        answer.solution = message.reply().solution();
        expected_[message.id()] = static_cast<size_t>(message.solution_bytes());
        answer.complete = message.solution_bytes() == 0;
      } else {
        answer.solution += message.chunk();
        ++answer.chunks;
        answer.complete = answer.solution.size() == expected_[message.id()];
      }
      if (answer.complete) --count;
    }
    EXPECT_EQ(count, 0u);
  }
  void ExpectAnswer(uint64_t id, const std::vector<double>& rhs) {
    SCOPED_TRACE(id);
    ASSERT_TRUE(answers_.contains(id));
    EXPECT_EQ(answers_[id].status.code(), 0) << answers_[id].status.message();
    ExpectSolves(matrix_, ValuesOf(answers_[id].solution), rhs);
  }
  grpc::Status Close() {
    stream_->WritesDone();
    Read(0);
    return stream_->Finish();
  }

  const problems::Problem problem_ = problems::RandomSpd(40, 16, 1, 100);
  const HostMatrix matrix_{problem_, Scalar::kFloat64};
  std::string handle_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<Stream> stream_;
  std::map<uint64_t, Answer> answers_;
  std::map<uint64_t, size_t> expected_;
};

TEST_F(SolveStreamTest, RequestsAreAnsweredByTheirId) {
  std::map<uint64_t, std::vector<double>> sent;
  for (uint64_t id = 0; id < 20; ++id) {
    sent[id * 1000] = RandomColumns(problem_.rows(), 1 + static_cast<int64_t>(id % 3), id);
    ASSERT_TRUE(stream_->Write(Whole(id * 1000, sent[id * 1000])));
  }
  stream_->WritesDone();
  Read(20);
  for (const auto& [id, rhs] : sent) ExpectAnswer(id, rhs);
  EXPECT_TRUE(IsOk(stream_->Finish()));
  EXPECT_EQ(Metric("blockd_requests_total", "method=\"SolveStream\""), 20);
}

TEST_F(SolveStreamTest, AnIdMayBeUsedAgainOnceItIsAnswered) {
  for (int round = 0; round < 3; ++round) {
    const std::vector<double> rhs = RandomColumns(problem_.rows(), 2, round);
    ASSERT_TRUE(stream_->Write(Whole(7, rhs)));
    Read(1);
    ExpectAnswer(7, rhs);
  }
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(SolveStreamTest, ChunksOfSeveralIdsInterleaveAndLargeSolutionsComeInChunks) {
  server_->Drain();
  server::ServerOptions options = Options();
  options.stream_chunk_bytes = 4096;
  Open(options);
  std::map<uint64_t, std::vector<double>> sent;
  std::map<uint64_t, std::string> left;
  for (uint64_t id = 1; id <= 5; ++id) {
    sent[id] = RandomColumns(problem_.rows(), 2 + static_cast<int64_t>(id), id);
    left[id] = BytesOf(sent[id]);
    ASSERT_TRUE(stream_->Write(Header(id, 2 + static_cast<int64_t>(id))));
  }
  for (size_t size = 777; !left.empty(); size = size * 5 % 9001 + 1) {
    auto at = left.begin();
    std::advance(at, size % left.size());
    ASSERT_TRUE(stream_->Write(Chunk(at->first, at->second.substr(0, size))));
    at->second.erase(0, size);
    if (at->second.empty()) left.erase(at);
  }
  Read(5);
  for (const auto& [id, rhs] : sent) {
    ExpectAnswer(id, rhs);
    EXPECT_EQ(answers_[id].chunks, static_cast<int>((rhs.size() * 8 + 4095) / 4096));
  }
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(SolveStreamTest, AFailedRequestDoesNotEndTheStream) {
  v1::SolveStreamRequest bad = Whole(1, problem_.rhs);
  bad.mutable_request()->set_handle(std::string(24, 'x'));
  ASSERT_TRUE(stream_->Write(bad));
  bad = Whole(2, problem_.rhs);
  bad.mutable_request()->mutable_rhs()->pop_back();
  ASSERT_TRUE(stream_->Write(bad));
  bad = Whole(3, problem_.rhs);
  bad.mutable_request()->mutable_options()->set_residual(true);  // the matrix was not kept
  ASSERT_TRUE(stream_->Write(bad));
  bad = Header(4, std::numeric_limits<int64_t>::max());
  ASSERT_TRUE(stream_->Write(bad));
  ASSERT_TRUE(stream_->Write(Chunk(4, "on its way before the refusal came")));
  bad = Header(5, 0);
  ASSERT_TRUE(stream_->Write(bad));
  ASSERT_TRUE(stream_->Write(Whole(6, problem_.rhs)));
  Read(6);
  EXPECT_TRUE(DetailOf<v1::HandleNotFound>(answers_[1].status));
  EXPECT_EQ(DetailOf<v1::InvalidField>(answers_[2].status)->field(), "request.rhs");
  EXPECT_EQ(answers_[3].status.code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(DetailOf<v1::InvalidField>(answers_[4].status)->field(), "request.num_rhs");
  EXPECT_EQ(DetailOf<v1::InvalidField>(answers_[5].status)->field(), "request.num_rhs");
  ExpectAnswer(6, problem_.rhs);
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(SolveStreamTest, WhatBreaksTheProtocolEndsTheStream) {
  ASSERT_TRUE(stream_->Write(Chunk(1, "nobody asked")));
  EXPECT_TRUE(IsInvalid(stream_->Finish(), "id"));
  OpenStream();
  stream_->Write(v1::SolveStreamRequest());
  EXPECT_TRUE(IsInvalid(stream_->Finish(), "part"));
  OpenStream();
  stream_->Write(Header(1));
  stream_->Write(Header(1));
  EXPECT_TRUE(IsInvalid(stream_->Finish(), "id"));
  OpenStream();
  stream_->Write(Header(1));
  stream_->Write(Chunk(1, std::string(static_cast<size_t>(problem_.rows()) * 8 + 1, 'x')));
  EXPECT_TRUE(IsInvalid(stream_->Finish(), "chunk"));
  ExpectServes();
}

TEST_F(SolveStreamTest, AnEndBeforeTheLastChunkIsSaid) {
  ASSERT_TRUE(stream_->Write(Header(1)));
  ASSERT_TRUE(stream_->Write(Chunk(1, "1234")));
  stream_->WritesDone();
  Read(1);
  EXPECT_EQ(DetailOf<v1::InvalidField>(answers_[1].status)->field(), "chunk");
  EXPECT_TRUE(IsOk(stream_->Finish()));
}

TEST_F(SolveStreamTest, ARequestThatStallsFailsAndTheStreamGoesOn) {
  server_->Drain();
  server::ServerOptions options = Options();
  options.stream_idle_timeout = absl::Milliseconds(100);
  Open(options);
  ASSERT_TRUE(stream_->Write(Header(1)));
  Read(1);
  EXPECT_EQ(answers_[1].status.code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ASSERT_TRUE(stream_->Write(Whole(2, problem_.rhs)));
  Read(1);
  ExpectAnswer(2, problem_.rhs);
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(SolveStreamTest, MoreRequestsThanTheLimitWaitAndAreAnswered) {
  server_->Drain();
  server::ServerOptions options = Options();
  options.max_stream_requests = 2;
  options.max_stream_bytes = 3 * problem_.rows() * 8;
  Open(options);
  std::thread writer([&] {
    for (uint64_t id = 0; id < 50; ++id) EXPECT_TRUE(stream_->Write(Whole(id, problem_.rhs)));
    stream_->WritesDone();
  });
  Read(50);
  writer.join();
  for (uint64_t id = 0; id < 50; ++id) ExpectAnswer(id, problem_.rhs);
  EXPECT_TRUE(IsOk(stream_->Finish()));
}

TEST_F(SolveStreamTest, RequestsThatAreStillArrivingCannotFillTheStream) {
  server_->Drain();
  server::ServerOptions options = Options();
  options.max_stream_requests = 2;
  Open(options);
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(stream_->Write(Header(id)));
  Read(1);  // the third is refused, with a delay
  EXPECT_EQ(answers_[3].status.code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(DetailOf<v1::RetryAfter>(answers_[3].status));
  for (uint64_t id = 1; id <= 2; ++id) {
    ASSERT_TRUE(stream_->Write(Chunk(id, BytesOf(problem_.rhs))));
  }
  Read(2);
  ExpectAnswer(1, problem_.rhs);
  ExpectAnswer(2, problem_.rhs);
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(SolveStreamTest, ARequestLargerThanTheStreamMayHoldIsRefused) {
  server_->Drain();
  server::ServerOptions options = Options();
  options.max_stream_bytes = 8 * problem_.rows();
  Open(options);
  ASSERT_TRUE(stream_->Write(Header(1, 2)));
  Read(1);
  EXPECT_EQ(answers_[1].status.code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(SolveStreamTest, ACancelledStreamLeavesNothingBehind) {
  for (uint64_t id = 0; id < 30; ++id) stream_->Write(Whole(id, problem_.rhs));
  stream_->Write(Header(100));
  context_->TryCancel();
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(IsOk(ReleaseStatus({handle_})));
  EXPECT_TRUE(Eventually([&] { return ReservedBytes() == 0; }));
  ExpectServes();
}

}  // namespace
}  // namespace blockd::test
