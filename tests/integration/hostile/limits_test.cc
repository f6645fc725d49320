// Requests beyond a limit are told by how much, and requests just within it are taken.
#include <atomic>
#include <limits>

#include "server/transport/wire/raw_message.h"
#include "server/transport/wire/wire_scan.h"
#include "tests/integration/calls/pending_solve.h"
#include "tests/integration/fixture.h"

namespace blockd::test {
namespace {

constexpr int64_t kMessageLimit = 1 << 20;

class LimitsTest : public IntegrationTest {
 protected:
  static server::ServerOptions WithMessageLimit() {
    server::ServerOptions options = Options();
    options.max_message_bytes = kMessageLimit;
    return options;
  }
  // A message of so many bytes: one unknown field, the number 100.
  static std::string MessageOf(int64_t bytes) {
    std::string body(static_cast<size_t>(bytes), 'x');
    std::string head = "\xa2\x06";
    for (int64_t length = bytes - 5; length > 0; length >>= 7) {
      head.push_back(static_cast<char>((length & 0x7f) | (length > 0x7f ? 0x80 : 0)));
    }
    return body.replace(0, head.size(), head);
  }

  // The bytes of the host's memory that the parsed message takes.
  template <typename Message>
  static int64_t ParsedBytesOf(const Message& message) {
    return server::ParsedBytes(server::SerializeMessage(message), message, {}, kNoEnd).value();
  }
  static constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();

  const problems::Problem problem_ = problems::RandomSpd(16, 4, 1, 100);
  const HostMatrix matrix_{problem_, Scalar::kFloat64};
};

TEST_F(LimitsTest, EveryCallSaysWhichLimitItsMessageExceedsAndByHowMuch) {
  Start(WithMessageLimit());
  for (const char* method :
       {"Factor", "FactorStream", "Solve", "SolveStream", "FactorSolve", "FactorSolveMany",
        "Release", "GetFactorization", "ListFactorizations", "GetServerInfo", "GetPlan",
        "SolveMany", "SelectedInverse", "Sample", "Smooth"}) {
    SCOPED_TRACE(method);
    const std::string path = std::string("/blockd.v1.Solver/") + method;
    for (const int64_t bytes : {kMessageLimit + 1, 5 * kMessageLimit}) {
      const grpc::Status status = RawCall(path, MessageOf(bytes));
      EXPECT_TRUE(IsOverLimit(status, "max_message_bytes", bytes, kMessageLimit));
      EXPECT_EQ(status.error_message(), "the message has " + std::to_string(bytes) +
                                            " bytes; max_message_bytes is 1048576 bytes");
    }
    EXPECT_TRUE(Eventually([&] { return Ended(method, "RESOURCE_EXHAUSTED") == 2; }));
    const grpc::Status allowed = RawCall(path, MessageOf(kMessageLimit));
    EXPECT_NE(allowed.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  ExpectServes();
}

TEST_F(LimitsTest, AChunkBeyondTheLimitEndsTheUploadAndGivesItsMemoryBack) {
  Start(WithMessageLimit());
  const HostMatrix large(problems::Poisson(100, 80), Scalar::kFloat64);
  const v1::SystemData data = DataOf(large);
  const std::string bytes = data.diagonal() + data.coupling();
  ASSERT_GT(static_cast<int64_t>(bytes.size()), 2 * kMessageLimit);
  const auto context = NewContext();
  v1::FactorReply reply;
  const auto upload = stub().FactorStream(context.get(), &reply);
  v1::FactorStreamRequest message;
  *message.mutable_header()->mutable_spec() = SpecOf(large);
  message.mutable_header()->set_num_systems(1);
  ASSERT_TRUE(upload->Write(message));
  message.set_chunk(bytes.substr(0, 1000));
  ASSERT_TRUE(upload->Write(message));
  message.set_chunk(bytes.substr(0, kMessageLimit));  // its field's head is beyond
  const auto size = static_cast<int64_t>(message.ByteSizeLong());
  upload->Write(message);
  EXPECT_TRUE(IsOverLimit(upload->Finish(), "max_message_bytes", size, kMessageLimit));
  EXPECT_TRUE(Eventually([&] { return ReservedBytes() == 0; }));
}

TEST_F(LimitsTest, ARequestOfAStreamBeyondTheLimitEndsTheStream) {
  Start(WithMessageLimit());
  const auto context = NewContext();
  const auto stream = stub().SolveStream(context.get());
  v1::SolveStreamRequest message;
  message.set_id(1);
  message.mutable_request()->set_rhs(std::string(kMessageLimit, 'x'));
  stream->Write(message);
  EXPECT_TRUE(IsOverLimit(stream->Finish(), "max_message_bytes",
                          static_cast<int64_t>(message.ByteSizeLong()), kMessageLimit));
}

TEST_F(LimitsTest, ARequestThatFillsTheHostsShareExactlyIsTaken) {
  const std::vector<double> rhs = problems::RandomColumns(problem_.rows(), 100, 1);
  v1::FactorSolveRequest both;
  *both.mutable_spec() = SpecOf(matrix_);
  *both.mutable_system() = DataOf(matrix_);
  both.set_num_rhs(100);
  both.set_rhs(BytesOf(rhs));
  // The message once it is parsed, and the solution.
  const int64_t needed = ParsedBytesOf(both) + static_cast<int64_t>(both.rhs().size());
  for (const int64_t missing : {0, 1}) {
    server::ServerOptions options = Options();
    options.core.max_inflight_request_bytes = needed - missing;
    Start(options);
    v1::FactorSolveReply reply;
    const grpc::Status status = stub().FactorSolve(NewContext().get(), both, &reply);
    if (missing == 0) {
      ASSERT_TRUE(IsOk(status));
      ExpectSolves(matrix_, ValuesOf(reply.solution()), rhs);
    } else {
      EXPECT_TRUE(IsOverLimit(status, "max_inflight_request_bytes", needed, needed - 1));
    }
  }
}

// Waiting would never help, so it must not be said.
TEST_F(LimitsTest, ASolveThatCanNeverFitIsNotToldToWait) {
  Start();
  v1::SolveRequest request =
      SolveRequestOf(Factor(matrix_), problems::RandomColumns(problem_.rows(), 100, 1), 100);
  // The solution takes the place of the right-hand sides; the rest of the message is not counted,
  // because it is short.
  const int64_t needed = static_cast<int64_t>(request.rhs().size());
  server::ServerOptions options = Options();
  options.core.max_inflight_request_bytes = needed - 1;
  Start(options);
  request.set_handle(Factor(matrix_));
  EXPECT_TRUE(IsOverLimit(SolveStatus(request), "max_inflight_request_bytes", needed, needed - 1));
  // A smaller one fits even while that one's bytes are not given back yet.
  request.mutable_rhs()->resize(request.rhs().size() / 5);
  request.set_num_rhs(20);
  EXPECT_TRUE(IsOk(SolveStatus(request)));
}

TEST_F(LimitsTest, AConnectionHasSoManyCallsAtOnce) {
  server::ServerOptions options = Options();
  options.max_connection_streams = 1;
  Start(options);
  const auto context = NewContext();
  const auto stream = stub().SolveStream(context.get());
  stream->WaitForInitialMetadata();
  const auto waiting_context = NewContext();
  v1::ServerInfo info;
  std::atomic<bool> done{false};
  const v1::GetServerInfoRequest request;
  stub().async()->GetServerInfo(waiting_context.get(), &request, &info,
                                [&done](const grpc::Status& status) {
                                  EXPECT_TRUE(IsOk(status));
                                  done = true;
                                });
  // Other connections are served meanwhile.
  const auto other = v1::Solver::NewStub(NewChannel());
  for (int i = 0; i < 20; ++i) {
    v1::ServerInfo unused;
    EXPECT_TRUE(IsOk(other->GetServerInfo(NewContext().get(), {}, &unused)));
  }
  EXPECT_FALSE(done);
  stream->WritesDone();
  EXPECT_TRUE(IsOk(stream->Finish()));
  EXPECT_TRUE(Eventually([&] { return done.load(); }));
}

}  // namespace
}  // namespace blockd::test
