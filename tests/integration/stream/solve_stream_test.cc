// SolveStream over a real socket: replies by id, interleaved chunks, limits, and failures that end
// one request or the stream.
#include <algorithm>
#include <map>
#include <thread>

#include "tests/integration/stream/solve_stream_fixture.h"

namespace blockd::test {
namespace {

using problems::RandomColumns;

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

TEST_F(SolveStreamTest, ASecondChunkMayBringWhatIsMissingAndNoByteMore) {
  const std::string bytes = BytesOf(problem_.rhs);
  ASSERT_TRUE(stream_->Write(Header(1)));
  ASSERT_TRUE(stream_->Write(Chunk(1, bytes.substr(0, 1000))));
  ASSERT_TRUE(stream_->Write(Chunk(1, bytes.substr(1000))));
  Read(1);
  ExpectAnswer(1, problem_.rhs);
  ASSERT_TRUE(stream_->Write(Header(2)));
  ASSERT_TRUE(stream_->Write(Chunk(2, bytes.substr(0, 1000))));
  stream_->Write(Chunk(2, bytes.substr(1000) + "x"));
  const grpc::Status status = stream_->Finish();
  EXPECT_TRUE(IsInvalid(status, "chunk"));
  EXPECT_EQ(
      status.error_message(),
      "chunk: came 4121 bytes for id 2, expected at most the 4120 that it still lacks of 5120");
  // The metrics count the error as that of the stream itself.
  EXPECT_TRUE(Eventually([&] { return Ended("SolveStream", "INVALID_ARGUMENT") == 1; }));
  ExpectServes();
}

// The error is the same before and after the answer, because the caller cannot know which it is.
TEST_F(SolveStreamTest, BytesForARequestThatIsWholeAreSurplus) {
  server_->Drain();
  Open(Options(), /*gated=*/true);
  for (const bool answered : {false, true}) {
    for (const bool in_chunks : {false, true}) {
      OpenStream();
      if (!answered) gate_->Close();
      if (in_chunks) {
        ASSERT_TRUE(stream_->Write(Header(1)));
        ASSERT_TRUE(stream_->Write(Chunk(1, BytesOf(problem_.rhs))));
      } else {
        ASSERT_TRUE(stream_->Write(Whole(1, problem_.rhs)));
      }
      if (answered) Read(1);
      stream_->Write(Chunk(1, "x"));
      const grpc::Status status = stream_->Finish();
      gate_->Open();
      EXPECT_TRUE(IsInvalid(status, "id"));
      EXPECT_EQ(status.error_message(),
                "id: came 1, expected the id of a request whose right-hand sides are not complete");
    }
  }
}

TEST_F(SolveStreamTest, AnEmptyChunkChangesNothingWheneverItComes) {
  server_->Drain();
  Open(Options(), /*gated=*/true);
  const std::string bytes = BytesOf(problem_.rhs);
  ASSERT_TRUE(stream_->Write(Chunk(1, "")));  // of nobody
  ASSERT_TRUE(stream_->Write(Header(1)));
  ASSERT_TRUE(stream_->Write(Chunk(1, "")));
  ASSERT_TRUE(stream_->Write(Chunk(1, bytes.substr(0, 8))));
  ASSERT_TRUE(stream_->Write(Chunk(1, "")));
  gate_->Close();
  ASSERT_TRUE(stream_->Write(Chunk(1, bytes.substr(8))));
  gate_->WaitForDevice();
  ASSERT_TRUE(stream_->Write(Chunk(1, "")));
  // The refusal of the next one says that the empty chunk was read.
  ASSERT_TRUE(stream_->Write(Header(2, 0)));
  Read(1);
  EXPECT_EQ(DetailOf<v1::InvalidField>(answers_[2].status)->field(), "request.num_rhs");
  gate_->Open();
  Read(1);
  ExpectAnswer(1, problem_.rhs);
  ASSERT_TRUE(stream_->Write(Chunk(1, "")));
  EXPECT_TRUE(IsOk(Close()));
  EXPECT_EQ(Ended("SolveStream", "OK"), 1);
  v1::GetFactorizationRequest get;
  get.set_handle(handle_);
  v1::FactorizationInfo info;
  ASSERT_TRUE(IsOk(stub().GetFactorization(NewContext().get(), get, &info)));
  EXPECT_EQ(info.times_solved(), 1);
}

TEST_F(SolveStreamTest, AnIdThatWasRefusedMayBeUsedAgainAndItsOldChunksAreDropped) {
  ASSERT_TRUE(stream_->Write(Header(1, 0)));
  ASSERT_TRUE(stream_->Write(Chunk(1, "of the request that was refused")));
  Read(1);
  EXPECT_EQ(DetailOf<v1::InvalidField>(answers_[1].status)->field(), "request.num_rhs");
  answers_.clear();
  ASSERT_TRUE(stream_->Write(Header(1)));
  ASSERT_TRUE(stream_->Write(Chunk(1, BytesOf(problem_.rhs))));
  Read(1);
  ExpectAnswer(1, problem_.rhs);
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(SolveStreamTest, AMessageHasOnePart) {
  const std::string chunk = Chunk(1, "12345678").SerializeAsString();
  for (const std::string& bytes : {chunk + Header(1).SerializeAsString(),
                                   Header(1).SerializeAsString() + chunk, chunk + chunk}) {
    const grpc::Status status = RawCall("/blockd.v1.Solver/SolveStream", bytes);
    EXPECT_TRUE(IsInvalid(status, "part"));
    EXPECT_EQ(status.error_message(),
              "part: came a chunk and something else, expected one part in a message");
  }
}

TEST_F(SolveStreamTest, ResidualAndRefinementAreOfTheirRequest) {
  v1::FactorRequest factor = FactorRequestOf(matrix_);
  factor.mutable_options()->set_keep_matrix(true);
  handle_ = Factor(factor).system(0).handle();
  v1::SolveStreamRequest request = Whole(1, problem_.rhs);
  ASSERT_TRUE(stream_->Write(request));
  request.set_id(2);
  request.mutable_request()->mutable_options()->set_residual(true);
  ASSERT_TRUE(stream_->Write(request));
  Read(2);
  ExpectAnswer(1, problem_.rhs);
  ExpectAnswer(2, problem_.rhs);
  EXPECT_FALSE(answers_[1].reply.has_backward_error());
  EXPECT_GT(answers_[2].reply.backward_error(), 0);
  EXPECT_LT(answers_[2].reply.backward_error(), 1e-14);
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(SolveStreamTest, TheDeadlineOfTheStreamEndsIt) {
  EXPECT_TRUE(IsOk(Close()));
  context_ = ContextWithServerTimeout(absl::Milliseconds(100));
  stream_ = stub().SolveStream(context_.get());
  stream_->Write(Header(1));  // it may be over already
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Eventually([&] { return Ended("SolveStream", "DEADLINE_EXCEEDED") == 1; }));
  EXPECT_EQ(Ended("SolveStream", "CANCELLED"), 0);
}

TEST_F(SolveStreamTest, AnEndBeforeTheLastChunkIsSaid) {
  ASSERT_TRUE(stream_->Write(Header(1)));
  ASSERT_TRUE(stream_->Write(Chunk(1, "1234")));
  stream_->WritesDone();
  Read(1);
  EXPECT_EQ(DetailOf<v1::InvalidField>(answers_[1].status)->field(), "chunk");
  EXPECT_TRUE(IsOk(stream_->Finish()));
}

TEST_F(SolveStreamTest, ACancelledStreamLeavesNothingBehind) {
  for (uint64_t id = 0; id < 30; ++id) stream_->Write(Whole(id, problem_.rhs));
  stream_->Write(Header(100));
  context_->TryCancel();
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return Ended("SolveStream", "CANCELLED") >= 1; }));
  EXPECT_TRUE(IsOk(ReleaseStatus({handle_})));
  EXPECT_TRUE(Eventually([&] { return ReservedBytes() == 0; }));
  ExpectServes();
}

}  // namespace
}  // namespace blockd::test
