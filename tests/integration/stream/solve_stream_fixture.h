// A server, a factorization on it, and an open SolveStream.
#ifndef BLOCKD_TESTS_INTEGRATION_STREAM_SOLVE_STREAM_FIXTURE_H_
#define BLOCKD_TESTS_INTEGRATION_STREAM_SOLVE_STREAM_FIXTURE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/fixture.h"

namespace blockd::test {

class SolveStreamTest : public IntegrationTest {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::SolveStreamRequest, v1::SolveStreamReply>;

  void SetUp() override { Open(Options()); }

  // `gated`: gate_ can hold the device.
  void Open(const server::ServerOptions& options, bool gated = false) {
    gated ? StartGated(options) : Start(options);
    handle_ = Factor(matrix_);
    // A call gives its memory back a little after its answer.
    ASSERT_TRUE(Eventually([this] { return HostBytes() == 0; }));
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
  struct FrameAnswer {
    v1::SolveManyReply reply;
    std::string solution;
    v1::RpcStatus status;
    int chunks = 0;
  };
  // The next answer that is complete; an unanswered one of a stream that ends has the id 0.
  uint64_t Next(std::map<uint64_t, FrameAnswer>& answers) {
    v1::SolveStreamReply message;
    std::map<uint64_t, int64_t> expected;
    while (stream_->Read(&message)) {
      FrameAnswer& answer = answers[message.id()];
      if (message.has_status()) {
        answer.status = message.status();
        return message.id();
      }
      if (message.has_many()) {
        answer.reply = message.many();
        answer.solution = message.many().solution();
        expected[message.id()] = message.solution_bytes();
        if (message.solution_bytes() == 0) return message.id();
      } else {
        answer.solution += message.chunk();
        ++answer.chunks;
        if (static_cast<int64_t>(answer.solution.size()) == expected[message.id()]) {
          return message.id();
        }
      }
    }
    return 0;
  }
  // Everything was answered: nothing else comes.
  grpc::Status Close() {
    stream_->WritesDone();
    v1::SolveStreamReply more;
    EXPECT_FALSE(stream_->Read(&more)) << more.ShortDebugString();
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

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_INTEGRATION_STREAM_SOLVE_STREAM_FIXTURE_H_
