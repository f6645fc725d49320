// A SolveSession against a scripted server: what is sent, and what of the server's is believed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/client/calls_fixture.h"
#include "tests/support/eventually.h"

namespace blockd::client {
namespace {

using ::testing::HasSubstr;

class StreamContractTest : public CallsTest {
 protected:
  // The server reads one request, does this, and then reads to the end.
  void Script(const std::function<void(uint64_t id, FakeSolver::SolvePipe*)>& answer) {
    fake_.on_solve_stream = [answer](FakeSolver::SolvePipe* pipe) {
      v1::SolveStreamRequest request;
      if (pipe->Read(&request)) answer(request.id(), pipe);
      while (pipe->Read(&request)) {
      }
      return grpc::Status::OK;
    };
  }
  static void Write(FakeSolver::SolvePipe* pipe, uint64_t id,
                    const std::function<void(v1::SolveStreamReply*)>& fill) {
    v1::SolveStreamReply reply;
    reply.set_id(id);
    fill(&reply);
    pipe->Write(reply);
  }
  // One request of two numbers.
  absl::Status Ask() {
    SolveSession session = Connect().OpenSession();
    const auto id = session.Send(kHandle, b_, x_);
    return id.ok() ? session.Await(*id).status() : id.status();
  }

  const std::vector<double> b_ = {1, 2};
  std::vector<double> x_ = {0, 0};
};

TEST_F(StreamContractTest, IdsCountFromOne) {
  SolveSession session = Connect().OpenSession();
  std::vector<double> y(2);
  EXPECT_EQ(*session.Send(kHandle, b_, x_), 1);
  EXPECT_EQ(*session.Send(kHandle, b_, y), 2);
}

TEST_F(StreamContractTest, LongRightHandSidesFollowTheirHeaderInChunks) {
  Shared<std::vector<v1::SolveStreamRequest>> requests;
  fake_.on_solve_stream = [&](FakeSolver::SolvePipe* pipe) {
    v1::SolveStreamRequest request;
    while (pipe->Read(&request) && requests.Append(request) < 5) {
    }
    for (const auto& [id, bytes] : std::vector<std::pair<uint64_t, size_t>>{{1, 40}, {2, 16}}) {
      Write(pipe, id, [bytes = bytes](v1::SolveStreamReply* reply) {
        reply->mutable_reply()->set_solution(std::string(bytes, '\0'));
      });
    }
    return grpc::Status::OK;
  };
  const Factorization handle{"h", 5, 1, Scalar::kFloat64};
  const std::vector<double> five = {1, 2, 3, 4, 5};
  std::vector<double> y(5);
  // 16 bytes are a chunk: what is no longer goes with its request.
  SolveSession session = Connect({.chunk_bytes = 16}).OpenSession();
  ASSERT_TRUE(session.Send(handle, five, y).ok());
  ASSERT_TRUE(session.Send(kHandle, b_, x_).ok());
  EXPECT_TRUE(session.Next()->result.ok());
  EXPECT_TRUE(session.Next()->result.ok());
  const std::vector<v1::SolveStreamRequest> came = requests.Get();
  ASSERT_EQ(came.size(), 5);
  EXPECT_TRUE(came[0].has_request());
  EXPECT_EQ(came[0].request().num_rhs(), 1);
  EXPECT_EQ(came[0].request().rhs(), "");
  EXPECT_EQ(came[1].chunk() + came[2].chunk() + came[3].chunk(), TextOf(five));
  for (int k = 0; k < 4; ++k) EXPECT_EQ(came[k].id(), 1);
  for (int k = 1; k < 4; ++k) EXPECT_LE(came[k].chunk().size(), 16);
  EXPECT_EQ(came[4].id(), 2);
  EXPECT_EQ(came[4].request().rhs(), TextOf(b_));
}

TEST_F(StreamContractTest, AFailureIsItsRequestsOwnAndTheStreamGoesOn) {
  fake_.on_solve_stream = [](FakeSolver::SolvePipe* pipe) {
    v1::SolveStreamRequest request;
    while (pipe->Read(&request)) {
      Write(pipe, request.id(), [&](v1::SolveStreamReply* reply) {
        if (request.id() == 1) {
          reply->mutable_status()->set_code(grpc::StatusCode::ABORTED);
          reply->mutable_status()->set_message("this one");
        } else {
          reply->mutable_reply()->set_solution(request.request().rhs());
        }
      });
    }
    return grpc::Status::OK;
  };
  SolveSession session = Connect().OpenSession();
  const auto first = session.Send(kHandle, b_, x_);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(session.Await(*first).status(), absl::AbortedError("this one"));
  const auto second = session.Send(kHandle, b_, x_);
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(session.Await(*second).ok());
  EXPECT_EQ(x_, b_);
}

TEST_F(StreamContractTest, WhatBreaksTheContractEndsTheStreamAndIsSaid) {
  using Reply = v1::SolveStreamReply;
  struct Case {
    std::function<void(uint64_t id, FakeSolver::SolvePipe*)> answer;
    const char* says;
  };
  const std::string two(16, '\0');
  const auto announce = [](Reply* reply) {
    reply->mutable_reply();
    reply->set_solution_bytes(16);
  };
  for (const Case& each : std::vector<Case>{
           {[](uint64_t id, auto*pipe) {
              Write(pipe, id + 1, [](Reply* r) { r->mutable_reply(); });
            },
            "does not belong to any request (id 2)"},
           {[](uint64_t id, auto*pipe) { Write(pipe, id, [](Reply* r) { r->mutable_status(); }); },
            "a failure with the code OK"},
           {[](uint64_t id, auto*pipe) { Write(pipe, id, [](Reply*) {}); },
            "a reply without a part"},
           {[](uint64_t id, auto*pipe) {
              Write(pipe, id, [](Reply* r) { r->mutable_reply()->set_solution("short"); });
            },
            "a solution of 5 + 0 bytes, expected 16"},
           {[](uint64_t id, auto*pipe) {
              Write(pipe, id, [](Reply* r) {
                r->mutable_reply();
                r->set_solution_bytes(24);
              });
            },
            "a solution of 0 + 24 bytes, expected 16"},
           // A chunk before its reply, and one byte more than was announced.
           {[&](uint64_t id, auto*pipe) { Write(pipe, id, [&](Reply* r) { r->set_chunk(two); }); },
            "does not belong to any request (id 1)"},
           {[&](uint64_t id, auto*pipe) {
              Write(pipe, id, announce);
              Write(pipe, id, [&](Reply* r) { r->set_chunk(two.substr(1)); });
              Write(pipe, id, [&](Reply* r) { r->set_chunk("ab"); });
            },
            "does not belong to any request (id 1)"},
           {[&](uint64_t id, auto*pipe) {
              Write(pipe, id, announce);
              Write(pipe, id, announce);
            },
            "a reply without a part"}}) {
    Script(each.answer);
    const absl::Status status = Ask();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(status.ToString(), HasSubstr(std::string("the server sent ")));
    EXPECT_THAT(status.ToString(), HasSubstr(each.says));
  }
}

TEST_F(StreamContractTest, AnAnswerThatNobodyAskedForEndsTheStreamEvenAfterTheRightOne) {
  Script([](uint64_t id, FakeSolver::SolvePipe* pipe) {
    for (int k = 0; k < 2; ++k) {
      Write(pipe, id, [](v1::SolveStreamReply* reply) {
        reply->mutable_reply()->set_solution(std::string(16, '\0'));
      });
    }
  });
  SolveSession session = Connect().OpenSession();
  const auto id = session.Send(kHandle, b_, x_);
  ASSERT_TRUE(id.ok());
  EXPECT_TRUE(session.Await(*id).ok());
  absl::Status status;
  while (status.ok()) {  // until the end is heard of
    const auto next = session.Send(kHandle, b_, x_);
    status = next.ok() ? session.Await(*next).status() : next.status();
  }
  EXPECT_THAT(status.ToString(), ::testing::AnyOf(HasSubstr("(id 1)"), HasSubstr("has ended")));
}

TEST_F(StreamContractTest, ChunksOfTwoSolutionsMayInterleave) {
  fake_.on_solve_stream = [](FakeSolver::SolvePipe* pipe) {
    v1::SolveStreamRequest request;
    std::vector<std::string> rhs(3);
    for (int k = 0; k < 2; ++k) {
      EXPECT_TRUE(pipe->Read(&request));
      rhs[request.id()] = request.request().rhs();
      Write(pipe, request.id(), [&](v1::SolveStreamReply* reply) {
        reply->mutable_reply()->set_refinements(static_cast<int>(request.id()));
        reply->set_solution_bytes(16);
      });
    }
    for (int part = 0; part < 2; ++part) {
      for (const uint64_t id : {2, 1}) {
        Write(pipe, id, [&](v1::SolveStreamReply* reply) {
          reply->set_chunk(part == 0 ? rhs[id].substr(0, 5) : rhs[id].substr(5));
        });
      }
    }
    while (pipe->Read(&request)) {
    }
    return grpc::Status::OK;
  };
  SolveSession session = Connect().OpenSession();
  const std::vector<double> c = {3, 4};
  std::vector<double> y(2);
  const auto first = session.Send(kHandle, b_, x_);
  const auto second = session.Send(kHandle, c, y);
  ASSERT_TRUE(first.ok() && second.ok());
  // In the order of their ends.
  const auto earlier = session.Next();
  ASSERT_TRUE(earlier.ok() && earlier->result.ok());
  EXPECT_EQ(earlier->id, *second);
  EXPECT_EQ(earlier->result->refinements, 2);
  EXPECT_EQ(session.outstanding(), 1);
  const auto later = session.Next();
  ASSERT_TRUE(later.ok() && later->result.ok());
  EXPECT_EQ(later->id, *first);
  EXPECT_EQ(later->result->refinements, 1);
  EXPECT_EQ(x_, b_);
  EXPECT_EQ(y, c);
}

TEST_F(StreamContractTest, TheStreamsEndIsTheAnswerToWhatIsUnanswered) {
  for (const auto& [sent, expected] : std::vector<std::pair<grpc::Status, absl::StatusCode>>{
           {grpc::Status::OK, absl::StatusCode::kUnavailable},
           {{grpc::StatusCode::RESOURCE_EXHAUSTED, "enough"},
            absl::StatusCode::kResourceExhausted}}) {
    fake_.on_solve_stream = [status = sent](FakeSolver::SolvePipe* pipe) {
      v1::SolveStreamRequest request;
      pipe->Read(&request);
      return status;
    };
    EXPECT_EQ(Ask().code(), expected);
  }
}

TEST_F(StreamContractTest, ASilentServerHoldsNobody) {
  Script([](uint64_t, FakeSolver::SolvePipe*) {});
  SolveSession session = Connect().OpenSession();
  const auto id = session.Send(kHandle, b_, x_);
  ASSERT_TRUE(id.ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(session.Await(*id, absl::Milliseconds(1)).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(session.Next(absl::Milliseconds(1)).status()));
  EXPECT_TRUE(absl::IsNotFound(session.Await(*id + 1).status()));
  EXPECT_EQ(session.outstanding(), 1);
  // The destructor ends the stream, and returns.
}

TEST_F(StreamContractTest, ASessionThatIsReplacedEnds) {
  absl::Notification first_ended;
  std::atomic<int> streams{0};
  fake_.on_solve_stream = [&](FakeSolver::SolvePipe* pipe) {
    const bool first = ++streams == 1;
    v1::SolveStreamRequest request;
    while (pipe->Read(&request)) {
      if (first) continue;
      Write(pipe, request.id(), [&](v1::SolveStreamReply* reply) {
        reply->mutable_reply()->set_solution(request.request().rhs());
      });
    }
    if (first) first_ended.Notify();
    return grpc::Status::OK;
  };
  const SolverClient client = Connect();
  SolveSession session = client.OpenSession();
  ASSERT_TRUE(session.Send(kHandle, b_, x_).ok());
  ASSERT_TRUE(absl::IsDeadlineExceeded(session.Next(absl::Milliseconds(200)).status()));
  session = client.OpenSession();
  first_ended.WaitForNotification();
  EXPECT_EQ(session.outstanding(), 0);
  SolveSession moved = std::move(session);
  std::vector<double> y(2);
  const auto id = moved.Send(kHandle, b_, y);
  ASSERT_TRUE(id.ok());
  EXPECT_TRUE(moved.Await(*id).ok());
  EXPECT_EQ(y, b_);
}

TEST_F(StreamContractTest, WhatCouldNotBeSentIsNotOutstanding) {
  fake_.on_solve_stream = [](FakeSolver::SolvePipe*) {
    return grpc::Status(grpc::StatusCode::ABORTED, "no");
  };
  SolveSession session = Connect().OpenSession();
  int64_t sent = 0;
  ASSERT_TRUE(test::Eventually([&] {
    const auto id = session.Send(kHandle, b_, x_);
    sent += id.ok() ? 1 : 0;
    return !id.ok();
  }));
  EXPECT_EQ(session.outstanding(), sent);
}

TEST_F(StreamContractTest, WhatAStreamsEndLeavesUnansweredFailsInOrder) {
  constexpr uint64_t kRequests = 8;
  fake_.on_solve_stream = [](FakeSolver::SolvePipe* pipe) {
    v1::SolveStreamRequest request;
    for (uint64_t i = 0; i < kRequests; ++i) pipe->Read(&request);
    return grpc::Status(grpc::StatusCode::ABORTED, "no");
  };
  SolveSession session = Connect().OpenSession();
  for (uint64_t i = 0; i < kRequests; ++i) ASSERT_TRUE(session.Send(kHandle, b_, x_).ok());
  for (uint64_t id = 1; id <= kRequests; ++id) {
    const auto answer = session.Next();
    ASSERT_TRUE(answer.ok());
    EXPECT_EQ(answer->id, id);
    EXPECT_TRUE(absl::IsAborted(answer->result.status()));
  }
}

TEST_F(StreamContractTest, OfTwoWhoWaitForAnAnswerOneGetsIt) {
  absl::Notification answer;
  fake_.on_solve_stream = [&](FakeSolver::SolvePipe* pipe) {
    v1::SolveStreamRequest request;
    pipe->Read(&request);
    answer.WaitForNotification();
    Write(pipe, request.id(), [&](v1::SolveStreamReply* reply) {
      reply->mutable_reply()->set_solution(request.request().rhs());
    });
    return grpc::Status::OK;
  };
  SolveSession session = Connect().OpenSession();
  const uint64_t id = *session.Send(kHandle, b_, x_);
  std::atomic<int> taken{0}, missed{0};
  const auto wait = [&] {
    const absl::Status status = session.Await(id, test::kGenerous).status();
    taken += status.ok();
    missed += absl::IsNotFound(status);
  };
  std::thread first(wait), second(wait);
  answer.Notify();
  first.join();
  second.join();
  EXPECT_EQ(taken, 1);
  EXPECT_EQ(missed, 1);
}

TEST_F(StreamContractTest, AnAnswerIsTakenOnce) {
  SolveSession session = Connect().OpenSession();
  std::vector<double> y(2), z(2);
  const uint64_t first = *session.Send(kHandle, b_, x_);
  const uint64_t second = *session.Send(kHandle, b_, y);
  const uint64_t third = *session.Send(kHandle, b_, z);
  ASSERT_TRUE(session.Await(third).ok());
  ASSERT_TRUE(session.Await(first).ok());
  const auto left = session.Next();
  ASSERT_TRUE(left.ok());
  EXPECT_EQ(left->id, second);
  EXPECT_EQ(session.outstanding(), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(session.Next().status()));
  EXPECT_TRUE(absl::IsNotFound(session.Await(second).status()));
}

}  // namespace
}  // namespace blockd::client
