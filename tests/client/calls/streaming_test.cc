#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "blockd/client/solver_client.h"
#include "tests/client/fake_solver.h"

namespace blockd::client {
namespace {

std::string TextOf(const std::vector<double>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)};
}

std::vector<double> Counting(size_t count, double start) {
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = start + static_cast<double>(i);
  return values;
}

class StreamingTest : public ::testing::Test {
 protected:
  StreamingTest() {
    fake_.on_factor = [this](const v1::FactorRequest& request, v1::FactorReply* reply) {
      ++unary_;
      for (int k = 0; k < request.system_size(); ++k) AnswerWith("h", reply);
      return grpc::Status::OK;
    };
    fake_.on_factor_stream = [this](FakeSolver::FactorReader* reader, v1::FactorReply* reply) {
      ++streams_;
      v1::FactorStreamRequest request;
      EXPECT_TRUE(reader->Read(&request));
      Upload upload{request.header(), "", 0};
      while (reader->Read(&request)) {
        upload.numbers += request.chunk();
        upload.largest_chunk = std::max(upload.largest_chunk, request.chunk().size());
      }
      for (int k = 0; k < upload.header.num_systems(); ++k) AnswerWith("h", reply);
      upload_ = upload;
      return grpc::Status::OK;
    };
    fake_.on_release = [](const v1::ReleaseRequest&, v1::ReleaseReply*) {
      return grpc::Status::OK;
    };
  }
  SolverClient Connect(const ClientOptions& options) {
    return *SolverClient::Connect(fake_.target(), options);
  }

  struct Upload {
    v1::FactorStreamHeader header;
    std::string numbers;
    size_t largest_chunk = 0;
  };

  std::atomic<int> unary_{0}, streams_{0};
  Shared<Upload> upload_;     // the last one
  absl::Notification ended_;  // the test has: what waits for that may begin later
  FakeSolver fake_;           // after what its calls use
};

TEST_F(StreamingTest, TheThresholdChooses) {
  const std::vector<double> numbers = Counting(100, 1);
  const SolverClient client = Connect({.stream_threshold_bytes = 80});
  ASSERT_TRUE(
      client.Factor(MakeSystemView<double>(10, 1, numbers.data(), nullptr)).status().code() ==
      absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(client.Factor(MakeSystemView<double>(5, 1, numbers.data(), numbers.data())).ok());
  EXPECT_EQ(unary_, 1);  // 72 bytes
  ASSERT_TRUE(client.Factor(MakeSystemView<double>(6, 1, numbers.data(), numbers.data())).ok());
  EXPECT_EQ(streams_, 1);  // 88 bytes
}

TEST_F(StreamingTest, TheServerReceivesTheSystemsOneAfterAnother) {
  // Blocks of 64 KiB and more are lent, others copied.
  const std::vector<double> diagonal0 = Counting(3 * 120 * 120, 1);
  const std::vector<double> coupling0 = Counting(2 * 120 * 120, 2);
  const std::vector<double> diagonal1 = Counting(3 * 120 * 120, 3);
  const std::vector<double> coupling1 = Counting(2 * 120 * 120, 4);
  const SystemView systems[] = {MakeSystemView(3, 120, diagonal0.data(), coupling0.data()),
                                MakeSystemView(3, 120, diagonal1.data(), coupling1.data())};
  std::vector<int64_t> progress;
  FactorOptions options;
  options.progress = [&](int64_t sent, int64_t total) {
    EXPECT_EQ(total, 10 * 120 * 120 * 8);
    progress.push_back(sent);
  };
  const auto result = Connect({.stream_threshold_bytes = 1000, .chunk_bytes = 100000})
                          .FactorBatch(systems, options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->systems.size(), 2);
  const Upload upload = upload_.Get();
  EXPECT_EQ(upload.header.num_systems(), 2);
  EXPECT_EQ(upload.header.spec().block_size(), 120);
  EXPECT_LE(upload.largest_chunk, 100000);
  EXPECT_EQ(upload.numbers,
            TextOf(diagonal0) + TextOf(coupling0) + TextOf(diagonal1) + TextOf(coupling1));
  EXPECT_TRUE(std::is_sorted(progress.begin(), progress.end()));
  EXPECT_EQ(progress.front(), 100000);
  EXPECT_EQ(progress.back(), 10 * 120 * 120 * 8);
}

TEST_F(StreamingTest, ARefusalBeforeTheChunksEndsTheUpload) {
  fake_.on_factor_stream = [](FakeSolver::FactorReader* reader, v1::FactorReply*) {
    v1::FactorStreamRequest request;
    reader->Read(&request);
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too large");
  };
  const std::vector<double> numbers(8 << 20);  // 64 MiB, more than any window
  const SystemView view = MakeSystemView<double>(4 << 20, 1, numbers.data(), numbers.data());
  EXPECT_EQ(Connect({}).Factor(view).status(), absl::ResourceExhaustedError("too large"));
}

TEST_F(StreamingTest, AnEarlyAnswerIsTaken) {
  fake_.on_factor_stream = [](FakeSolver::FactorReader* reader, v1::FactorReply* reply) {
    v1::FactorStreamRequest request;
    reader->Read(&request);
    reply->set_found(true);
    return AnswerWith("known", reply);
  };
  const std::vector<double> numbers(8 << 20);
  const auto result = Connect({}).Factor(
      MakeSystemView<double>(4 << 20, 1, numbers.data(), numbers.data()), {.idempotency_key = "k"});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->found);
  EXPECT_EQ(result->handle.get().handle, "known");
}

TEST_F(StreamingTest, AServerThatStopsReadingCannotHoldTheCallBeyondItsTimeout) {
  fake_.on_factor_stream = [this](FakeSolver::FactorReader*, v1::FactorReply*) {
    ended_.WaitForNotification();
    return grpc::Status::OK;
  };
  const std::vector<double> numbers(8 << 20);
  const auto result =
      Connect({}).Factor(MakeSystemView<double>(4 << 20, 1, numbers.data(), numbers.data()),
                         {.timeout = absl::Milliseconds(200)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(result.status())) << result.status();
  ended_.Notify();
}

TEST_F(StreamingTest, ALargeSolutionComesInChunks) {
  constexpr int64_t kRows = 100000;
  fake_.on_solve_stream = [&](FakeSolver::SolvePipe* pipe) {
    v1::SolveStreamRequest request;
    std::string rhs;
    EXPECT_TRUE(pipe->Read(&request));
    EXPECT_EQ(request.request().num_rhs(), 1);
    const uint64_t id = request.id();
    while (rhs.size() < kRows * 8 && pipe->Read(&request)) {
      EXPECT_EQ(request.id(), id);
      rhs += request.chunk();
    }
    v1::SolveStreamReply reply;
    reply.set_id(id);
    reply.set_solution_bytes(kRows * 8);
    reply.mutable_reply()->set_refinements(1);
    pipe->Write(reply);
    for (size_t at = 0; at < rhs.size(); at += 77777) {  // the solution is the right-hand side
      v1::SolveStreamReply chunk;
      chunk.set_id(id);
      chunk.set_chunk(rhs.substr(at, 77777));
      pipe->Write(chunk);
    }
    return grpc::Status::OK;
  };
  const std::vector<double> b = Counting(kRows, 5);
  std::vector<double> x(kRows);
  const Factorization handle{"h", kRows, 1, Scalar::kFloat64};
  const auto result =
      Connect({.stream_threshold_bytes = 1000, .chunk_bytes = 100000}).Solve(handle, b, x);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->refinements, 1);
  EXPECT_EQ(x, b);
}

TEST_F(StreamingTest, AServerThatBreaksTheContractIsCaught) {
  // `write` makes the server's reply, for the request's id or for another one.
  const auto run = [&](const std::function<void(v1::SolveStreamReply*)>& write) {
    fake_.on_solve_stream = [write](FakeSolver::SolvePipe* pipe) {
      v1::SolveStreamRequest request;
      pipe->Read(&request);
      v1::SolveStreamReply reply;
      reply.set_id(request.id());
      write(&reply);
      pipe->Write(reply);
      while (pipe->Read(&request)) {
      }
      return grpc::Status::OK;
    };
    std::vector<double> b(10), x(10);
    return Connect({.stream_threshold_bytes = 0})
        .Solve({"h", 10, 1, Scalar::kFloat64}, b, x)
        .status();
  };
  EXPECT_TRUE(absl::IsInternal(run([](v1::SolveStreamReply* r) { r->set_id(99); })));
  EXPECT_TRUE(absl::IsInternal(run([](v1::SolveStreamReply* r) { r->set_chunk("early"); })));
  EXPECT_TRUE(absl::IsInternal(
      run([](v1::SolveStreamReply* r) { r->mutable_reply()->set_solution("short"); })));
  EXPECT_TRUE(absl::IsInternal(run([](v1::SolveStreamReply*) {})));
  const absl::Status unanswered = run([](v1::SolveStreamReply* r) {
    r->mutable_reply();
    r->set_solution_bytes(80);
  });
  EXPECT_TRUE(absl::IsUnavailable(unanswered)) << unanswered;  // it ended without the chunks
}

}  // namespace
}  // namespace blockd::client
