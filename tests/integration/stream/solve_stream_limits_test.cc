// The limits of a SolveStream's memory and time: each at its edge, and the memory that comes back.
#include <thread>

#include "tests/integration/stream/solve_stream_fixture.h"

namespace blockd::test {
namespace {

class SolveStreamLimitsTest : public SolveStreamTest {
 protected:
  void SetUp() override {}  // each test opens with its own limits

  int64_t ColumnBytes() const { return problem_.rows() * 8; }

  // More than the request that the fixture has sent, whose bytes may be given back after its
  // answer.
  static constexpr int64_t kFactorBytes = 170'000;
};

// One request is all that the stream and the host may hold: what stalled holds nothing any more.
TEST_F(SolveStreamLimitsTest, ARequestThatStallsFailsAndGivesItsBytesBack) {
  constexpr int64_t kColumns = 60;
  server::ServerOptions options = Options();
  options.stream_idle_timeout = absl::Milliseconds(100);
  options.max_stream_requests = 1;
  options.max_stream_bytes = kColumns * ColumnBytes();
  options.core.max_inflight_request_bytes = options.max_stream_bytes + kFactorBytes;
  Open(options);
  for (const uint64_t id : {1, 2}) {
    ASSERT_TRUE(stream_->Write(Header(id, kColumns)));
    ASSERT_TRUE(stream_->Write(Chunk(id, "1234")));
    Read(1);
    EXPECT_EQ(answers_[id].status.code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    EXPECT_NE(answers_[id].status.message().find("--stream_idle_timeout"), std::string::npos)
        << answers_[id].status.message();
  }
  ASSERT_TRUE(stream_->Write(Chunk(1, "a late chunk of what has failed is dropped")));
  const std::vector<double> rhs = problems::RandomColumns(problem_.rows(), kColumns, 3);
  ASSERT_TRUE(stream_->Write(Whole(3, rhs)));
  Read(1);
  ExpectAnswer(3, rhs);
  EXPECT_TRUE(IsOk(Close()));
  EXPECT_EQ(Ended("SolveStream", "DEADLINE_EXCEEDED"), 2);
  EXPECT_EQ(Ended("SolveStream", "OK"), 1);
}

TEST_F(SolveStreamLimitsTest, AnIdThatStalledMayBeUsedAgain) {
  server::ServerOptions options = Options();
  options.stream_idle_timeout = absl::Milliseconds(100);
  Open(options);
  ASSERT_TRUE(stream_->Write(Header(7)));
  Read(1);
  EXPECT_EQ(answers_[7].status.code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  answers_.clear();
  ASSERT_TRUE(stream_->Write(Whole(7, problem_.rhs)));
  Read(1);
  ExpectAnswer(7, problem_.rhs);
  EXPECT_TRUE(IsOk(Close()));
}

// Only what is still arriving can be late. That the timer fires is seen by what stalls beside.
TEST_F(SolveStreamLimitsTest, ARequestThatIsWholeAndASilentStreamDoNotStall) {
  server::ServerOptions options = Options();
  options.stream_idle_timeout = absl::Milliseconds(50);
  Open(options, /*gated=*/true);
  const auto silent_context = NewContext();
  const auto silent = stub().SolveStream(silent_context.get());
  silent->WaitForInitialMetadata();
  gate_->Close();
  ASSERT_TRUE(stream_->Write(Whole(1, problem_.rhs)));
  gate_->WaitForDevice();
  for (uint64_t id = 2; id < 5; ++id) {  // each takes the timeout at least
    ASSERT_TRUE(stream_->Write(Header(id)));
    Read(1);
    EXPECT_EQ(answers_[id].status.code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  gate_->Open();
  Read(1);
  ExpectAnswer(1, problem_.rhs);
  EXPECT_TRUE(IsOk(Close()));
  silent->WritesDone();
  EXPECT_TRUE(IsOk(silent->Finish()));
}

TEST_F(SolveStreamLimitsTest, MoreRequestsThanTheLimitWaitAndAreAnswered) {
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

TEST_F(SolveStreamLimitsTest, RequestsThatAreStillArrivingCannotFillTheStream) {
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

TEST_F(SolveStreamLimitsTest, MoreBytesThanTheLimitWaitAndAreAnswered) {
  server::ServerOptions options = Options();
  options.max_stream_bytes = 2 * ColumnBytes();
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

// The server itself does not read while it waits for the device: the caller is not to blame.
TEST_F(SolveStreamLimitsTest, ARequestWhoseChunksAreNotReadDoesNotStall) {
  server::ServerOptions options = Options();
  options.stream_idle_timeout = absl::Seconds(1);
  options.max_stream_requests = 2;
  Open(options, /*gated=*/true);
  gate_->Close();
  ASSERT_TRUE(stream_->Write(Header(1)));
  ASSERT_TRUE(stream_->Write(Whole(2, problem_.rhs)));
  gate_->WaitForDevice();
  ASSERT_TRUE(stream_->Write(Chunk(1, BytesOf(problem_.rhs))));
  for (int i = 0; i < 2; ++i) {  // each takes the timeout at least
    const auto context = NewContext();
    v1::FactorReply reply;
    EXPECT_EQ(stub().FactorStream(context.get(), &reply)->Finish().error_code(),
              grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  gate_->Open();
  Read(2);
  ExpectAnswer(1, problem_.rhs);
  ExpectAnswer(2, problem_.rhs);
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(SolveStreamLimitsTest, BytesThatAreStillArrivingCannotFillTheStream) {
  server::ServerOptions options = Options();
  options.max_stream_bytes = 3 * ColumnBytes();
  Open(options);
  ASSERT_TRUE(stream_->Write(Header(1, 2)));
  ASSERT_TRUE(stream_->Write(Header(2, 2)));
  Read(1);
  EXPECT_TRUE(IsRetryLater(answers_[2].status));
  ASSERT_TRUE(stream_->Write(Header(3, 1)));  // this one just fits
  ASSERT_TRUE(stream_->Write(Chunk(3, BytesOf(problem_.rhs))));
  Read(1);
  ExpectAnswer(3, problem_.rhs);
  const std::vector<double> rhs = problems::RandomColumns(problem_.rows(), 2, 3);
  ASSERT_TRUE(stream_->Write(Chunk(1, BytesOf(rhs))));
  Read(1);
  ExpectAnswer(1, rhs);
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(SolveStreamLimitsTest, ARequestOfAllBytesIsTakenAndALargerOneToldByHowMuch) {
  server::ServerOptions options = Options();
  options.max_stream_bytes = 2 * ColumnBytes();
  Open(options);
  for (const bool whole : {false, true}) {
    const uint64_t id = whole ? 1 : 2;
    const std::vector<double> three = problems::RandomColumns(problem_.rows(), 3, 1);
    ASSERT_TRUE(stream_->Write(whole ? Whole(id, three) : Header(id, 3)));
    Read(1);
    EXPECT_TRUE(
        IsOverLimit(answers_[id].status, "max_stream_bytes", 3 * ColumnBytes(), 2 * ColumnBytes()));
  }
  const std::vector<double> two = problems::RandomColumns(problem_.rows(), 2, 1);
  ASSERT_TRUE(stream_->Write(Whole(3, two)));
  Read(1);
  ExpectAnswer(3, two);
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(SolveStreamLimitsTest, ARequestBeyondTheHostsMemoryIsToldByHowMuch) {
  server::ServerOptions options = Options();
  options.core.max_inflight_request_bytes = 60 * ColumnBytes();
  Open(options);
  ASSERT_TRUE(stream_->Write(Header(1, 61)));
  Read(1);
  EXPECT_TRUE(IsOverLimit(answers_[1].status, "max_inflight_request_bytes", 61 * ColumnBytes(),
                          60 * ColumnBytes()));
  // A header takes nothing of it; what has come does. The fixture's request may still hold some.
  constexpr int64_t kColumns = 25;
  const std::string half(static_cast<size_t>(kColumns * ColumnBytes() / 2), '\0');
  ASSERT_TRUE(stream_->Write(Header(2, kColumns)));
  ASSERT_TRUE(stream_->Write(Header(3, 60 - kColumns / 2)));
  ASSERT_TRUE(stream_->Write(Chunk(2, half)));
  ASSERT_TRUE(stream_->Write(Chunk(3, std::string((60 - kColumns / 2) * ColumnBytes(), '\0'))));
  Read(1);
  EXPECT_TRUE(IsRetryLater(answers_[3].status));
  ASSERT_TRUE(stream_->Write(Chunk(2, half)));
  Read(1);
  ExpectAnswer(2, std::vector<double>(static_cast<size_t>(kColumns * problem_.rows())));
  EXPECT_TRUE(IsOk(Close()));
}

// As if it were larger than all that the host has, and by a request of each of four tenants.
TEST_F(SolveStreamLimitsTest, ABytesClaimTakesNothingFromOthers) {
  constexpr int64_t kColumns = 40;
  server::ServerOptions options = Options();
  options.core.max_inflight_request_bytes = 60 * ColumnBytes();
  Open(options);
  const std::string chunk(8, '\0');
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<Stream>> streams;
  for (const char* tenant : {"a", "b", "c", "d"}) {
    const auto claimed = static_cast<int64_t>(streams.size() * chunk.size());
    ASSERT_TRUE(Eventually([&] { return HostBytes() == claimed; }));
    v1::SolveStreamRequest header = Header(1, kColumns);
    header.mutable_request()->set_handle(
        IntegrationTest::Factor(FactorRequestOf(matrix_), tenant).system(0).handle());
    contexts.push_back(NewContext(tenant));
    streams.push_back(stub().SolveStream(contexts.back().get()));
    ASSERT_TRUE(streams.back()->Write(header));
    ASSERT_TRUE(streams.back()->Write(Chunk(1, chunk)));
  }
  ASSERT_TRUE(Eventually([&] { return HostBytes() == 4 * std::ssize(chunk); }));
  const std::vector<double> rhs = problems::RandomColumns(problem_.rows(), kColumns, 3);
  ASSERT_TRUE(stream_->Write(Whole(2, rhs)));
  Read(1);
  ExpectAnswer(2, rhs);
  for (const auto& context : contexts) context->TryCancel();
  EXPECT_TRUE(IsOk(Close()));
}

// Whose requests begin and never end has no more than his share, and others still find some.
TEST_F(SolveStreamLimitsTest, OneCallerDoesNotFillTheHostsMemory) {
  server::ServerOptions options = Options();
  options.core.tenant_share = 0.5;
  options.core.max_inflight_request_bytes = 400'000;
  Open(options);
  const std::string handle =
      IntegrationTest::Factor(FactorRequestOf(matrix_), "hog").system(0).handle();
  ASSERT_TRUE(Eventually([&] { return HostBytes() == 0; }));
  const auto context = NewContext("hog");
  const auto hog = stub().SolveStream(context.get());
  const int64_t columns = 150'000 / ColumnBytes();
  const std::string half(static_cast<size_t>(columns * ColumnBytes() / 2), '\0');
  v1::SolveStreamRequest header = Header(1, columns);
  header.mutable_request()->set_handle(handle);
  ASSERT_TRUE(hog->Write(header));
  ASSERT_TRUE(hog->Write(Chunk(1, half)));
  for (uint64_t id = 2; id <= 3; ++id) {
    header.set_id(id);
    ASSERT_TRUE(hog->Write(header));
    ASSERT_TRUE(hog->Write(Chunk(id, half)));
  }
  v1::SolveStreamReply refused;
  ASSERT_TRUE(hog->Read(&refused));
  EXPECT_EQ(refused.id(), 3u);
  EXPECT_EQ(refused.status().code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  // Another one has what he could have had alone, of what is left: here all that he asks for.
  ASSERT_TRUE(stream_->Write(Whole(1, problem_.rhs)));
  Read(1);
  ExpectAnswer(1, problem_.rhs);
  context->TryCancel();
  EXPECT_TRUE(IsOk(Close()));
}

TEST_F(SolveStreamLimitsTest, ASolutionComesInChunksOnlyBeyondTheLimit) {
  server::ServerOptions options = Options();
  options.stream_chunk_bytes = ColumnBytes();
  Open(options);
  for (const int64_t columns : {1, 2, 3}) {
    const auto id = static_cast<uint64_t>(columns);
    const std::vector<double> rhs = problems::RandomColumns(problem_.rows(), columns, 1);
    ASSERT_TRUE(stream_->Write(Whole(id, rhs)));
    Read(1);
    ExpectAnswer(id, rhs);
    EXPECT_EQ(answers_[id].chunks, columns == 1 ? 0 : columns);
    EXPECT_EQ(expected_[id], columns == 1 ? 0u : static_cast<size_t>(columns * ColumnBytes()));
    EXPECT_EQ(answers_[id].reply.solution().empty(), columns > 1);
    EXPECT_GE(answers_[id].reply.cost().batch_requests(), 1);
  }
  EXPECT_TRUE(IsOk(Close()));
}

// Headers that are refused cost the server an id each until their chunks have come by: 1024 at
// most.
TEST_F(SolveStreamLimitsTest, AStreamOfRefusedHeadersEndsBeforeItFillsTheServer) {
  Open(Options());
  uint64_t id = 1;
  for (; id <= 1024; ++id) {
    ASSERT_TRUE(stream_->Write(Header(id, 0)));
    Read(1);
    EXPECT_EQ(DetailOf<v1::InvalidField>(answers_[id].status)->field(), "request.num_rhs");
  }
  // One that has its right-hand sides with it is not waited for.
  v1::SolveStreamRequest whole = Whole(id, problem_.rhs);
  whole.mutable_request()->set_num_rhs(2);
  ASSERT_TRUE(stream_->Write(whole));
  Read(1);
  EXPECT_EQ(DetailOf<v1::InvalidField>(answers_[id].status)->field(), "request.rhs");
  stream_->Write(Header(++id, 0));
  EXPECT_TRUE(IsInvalid(stream_->Finish(), "request.num_rhs"));
}

// So do requests whose chunks are.
TEST_F(SolveStreamLimitsTest, AStreamOfRefusedChunksEndsBeforeItFillsTheServer) {
  constexpr int64_t kColumns = 60;
  const int64_t bytes = kColumns * problem_.rows() * 8;
  server::ServerOptions options = Options();
  constexpr int64_t kLeft = 20'000;
  options.core.max_inflight_request_bytes = bytes + kLeft;
  options.core.tenant_share = 1;
  Open(options);
  ASSERT_TRUE(stream_->Write(Header(1, kColumns)));
  ASSERT_TRUE(stream_->Write(Chunk(1, std::string(static_cast<size_t>(bytes - 8), '\0'))));
  ASSERT_TRUE(Eventually([&] { return HostBytes() == bytes - 8; }));
  const std::string chunk(kLeft + 100, '\0');
  uint64_t id = 2;
  for (; id <= 1025; ++id) {
    ASSERT_TRUE(stream_->Write(Header(id, kColumns)));
    ASSERT_TRUE(stream_->Write(Chunk(id, chunk)));
    Read(1);
    EXPECT_EQ(answers_[id].status.code(), grpc::StatusCode::UNAVAILABLE);
  }
  stream_->Write(Header(id, kColumns));
  stream_->Write(Chunk(id, chunk));
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace blockd::test
