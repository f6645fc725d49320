// Deadlines, cancellation and replacement of single requests of a session, against a scripted
// server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <list>
#include <set>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "blockd/client/solver_client.h"
#include "tests/client/fake_solver.h"
#include "tests/client/heal_fixture.h"

namespace blockd::client {
namespace {

using ::testing::ElementsAre;

const Factorization kOne{"one", 1, 1, Scalar::kFloat64};

v1::SolveStreamReply Echo(const v1::SolveStreamRequest& request) {
  v1::SolveStreamReply reply;
  reply.set_id(request.id());
  reply.mutable_reply()->set_solution(request.request().rhs());
  return reply;
}

v1::SolveStreamReply Refusal(uint64_t id, grpc::StatusCode code) {
  v1::SolveStreamReply reply;
  reply.set_id(id);
  reply.mutable_status()->set_code(code);
  return reply;
}

class SessionControlTest : public ::testing::Test {
 protected:
  // Keeps what comes, and answers nothing but what `answer` does.
  void Serve(std::function<void(const v1::SolveStreamRequest&, FakeSolver::SolvePipe*)> answer) {
    fake_.on_solve_stream = [this, answer](FakeSolver::SolvePipe* pipe) {
      v1::SolveStreamRequest request;
      while (pipe->Read(&request)) {
        came_.Append(request);
        answer(request, pipe);
      }
      return grpc::Status::OK;
    };
  }
  static void Silence(const v1::SolveStreamRequest&, FakeSolver::SolvePipe*) {}
  SolverClient Connect(const ClientOptions& options = {}) const {
    return *SolverClient::Connect(fake_.target(), options);
  }

  Shared<std::vector<v1::SolveStreamRequest>> came_;
  const std::vector<double> b_ = {21};
  std::vector<double> x_ = {0}, y_ = {0};
  FakeSolver fake_;
};

TEST_F(SessionControlTest, ARequestCarriesItsTimeoutPriorityAndReplacement) {
  Serve([](const v1::SolveStreamRequest& request, FakeSolver::SolvePipe* pipe) {
    pipe->Write(Echo(request));
  });
  SolveSession session = Connect({.timeout = absl::Seconds(1000)}).OpenSession();
  const auto send = [&](const SolveOptions& options) {
    const auto id = session.Send(kOne, b_, x_, options);
    ASSERT_TRUE(id.ok() && session.Await(*id).ok());
  };
  send({});
  send({.priority = Priority::kRealtime, .replace_last = true, .timeout = absl::Seconds(100)});
  send({.priority = Priority::kBulk, .timeout = absl::InfiniteDuration()});
  const auto came = came_.Get();
  ASSERT_EQ(came.size(), 3);
  EXPECT_GT(came[0].timeout().seconds(), 500);
  EXPECT_LT(came[0].timeout().seconds(), 1000);
  EXPECT_FALSE(came[0].replace_last());
  EXPECT_EQ(came[0].request().options().priority(), v1::INTERACTIVE);
  EXPECT_GT(came[1].timeout().seconds(), 50);
  EXPECT_LT(came[1].timeout().seconds(), 100);
  EXPECT_TRUE(came[1].replace_last());
  EXPECT_EQ(came[1].request().options().priority(), v1::REALTIME);
  EXPECT_FALSE(came[2].has_timeout());
  EXPECT_EQ(came[2].request().options().priority(), v1::BULK);
}

TEST_F(SessionControlTest, EverySessionHasAConnectionOfItsOwn) {
  Serve([](const v1::SolveStreamRequest& request, FakeSolver::SolvePipe* pipe) {
    pipe->Write(Echo(request));
  });
  Shared<std::vector<std::string>> peers;
  fake_.on_call = [&](const std::string&, const grpc::ServerContext& context) {
    peers.Append(context.peer());
  };
  const SolverClient client = Connect({.stream_threshold_bytes = 0});
  EXPECT_TRUE(client.Solve(kOne, b_, x_).ok());  // on the connection for large transfers
  for (int k = 0; k < 2; ++k) {
    SolveSession session = client.OpenSession();
    const auto id = session.Send(kOne, b_, x_);
    ASSERT_TRUE(id.ok() && session.Await(*id).ok());
  }
  const auto seen = peers.Get();
  EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), 3);
  fake_.on_call = nullptr;
}

TEST_F(SessionControlTest, ARequestEndsWithItsTimeoutWhateverTheServerDoes) {
  Serve([](const v1::SolveStreamRequest& request, FakeSolver::SolvePipe* pipe) {
    if (request.request().handle() == "one") pipe->Write(Echo(request));
  });
  SolveSession session = Connect().OpenSession();
  Factorization silent = kOne;
  silent.handle = "silent";
  const auto id = session.Send(silent, b_, x_, {.timeout = absl::Milliseconds(500)});
  ASSERT_TRUE(id.ok()) << id.status();
  const absl::Status late = session.Await(*id).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_EQ(session.outstanding(), 0);
  EXPECT_TRUE(absl::IsNotFound(session.Await(*id).status()));
  // The others are not concerned.
  const auto other = session.Send(kOne, b_, y_);
  ASSERT_TRUE(other.ok());
  EXPECT_TRUE(session.Await(*other).ok());
  EXPECT_EQ(y_[0], 21);
}

TEST_F(SessionControlTest, NextEndsWhatIsLateInTheOrderOfItsDeadlines) {
  Serve(Silence);
  SolveSession session = Connect().OpenSession();
  std::vector<uint64_t> ids;
  for (const int ms : {1200, 400, 800}) {
    ids.push_back(*session.Send(kOne, b_, x_, {.timeout = absl::Milliseconds(ms)}));
  }
  const uint64_t forever = *session.Send(kOne, b_, x_, {.timeout = absl::InfiniteDuration()});
  for (const size_t k : {1, 2, 0}) {
    const auto answer = session.Next();
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->id, ids[k]);
    EXPECT_TRUE(absl::IsDeadlineExceeded(answer->result.status()));
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(session.Next(absl::Milliseconds(1)).status()));
  EXPECT_EQ(session.outstanding(), 1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(session.Await(forever, absl::Milliseconds(1)).status()));
  EXPECT_EQ(session.outstanding(), 1);
}

TEST_F(SessionControlTest, ATimeoutThatIsOverIsNotSent) {
  Serve(Silence);
  SolveSession session = Connect().OpenSession();
  const auto id = session.Send(kOne, b_, x_, {.timeout = -absl::Seconds(1)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(id.status())) << id.status();
  EXPECT_EQ(session.outstanding(), 0);
}

// Nobody writes to the solution of a request once it is answered, be the answer in time or late.
TEST_F(SessionControlTest, LateAnswersAreDropped) {
  constexpr int kRequests = 300, kNumbers = 64;
  Serve([](const v1::SolveStreamRequest& request, FakeSolver::SolvePipe* pipe) {
    v1::SolveStreamReply reply;
    reply.set_id(request.id());
    if (request.id() % 3 == 0) {
      pipe->Write(Refusal(request.id(), grpc::StatusCode::DEADLINE_EXCEEDED));
      return;
    }
    if (request.id() % 3 == 1) {
      pipe->Write(Echo(request));
      return;
    }
    reply.mutable_reply();
    reply.set_solution_bytes(8 * kNumbers);
    pipe->Write(reply);
    for (int k = 0; k < kNumbers; ++k) {
      reply.set_chunk(request.request().rhs().substr(8 * k, 8));
      reply.clear_solution_bytes();
      pipe->Write(reply);
    }
  });
  const Factorization handle{"h", kNumbers, 1, Scalar::kFloat64};
  const std::vector<double> b(kNumbers, 3);
  std::list<std::vector<double>> solutions;
  {
    SolveSession session = Connect().OpenSession();
    for (int k = 0; k < kRequests; ++k) {
      std::vector<double>& x = solutions.emplace_back(kNumbers, 7);
      const auto id = session.Send(handle, b, x, {.timeout = absl::Microseconds(100 + 3 * k)});
      if (!id.ok()) {
        EXPECT_TRUE(absl::IsDeadlineExceeded(id.status())) << id.status();
        continue;
      }
      const auto solved = session.Await(*id);
      if (solved.ok()) {
        EXPECT_EQ(x, b);
      } else {
        EXPECT_TRUE(absl::IsDeadlineExceeded(solved.status())) << solved.status();
      }
      std::fill(x.begin(), x.end(), 7);
    }
    // All that was late has been read before this one.
    std::vector<double> x(kNumbers);
    const auto last = session.Send(handle, b, x);
    ASSERT_TRUE(last.ok()) << last.status();
    const absl::Status status = session.Await(*last).status();
    EXPECT_TRUE(status.ok() || absl::IsDeadlineExceeded(status)) << status;
  }
  for (const std::vector<double>& x : solutions) EXPECT_EQ(x, std::vector<double>(kNumbers, 7));
}

TEST_F(SessionControlTest, ACancelledRequestIsAnsweredByTheServer) {
  Serve([](const v1::SolveStreamRequest& request, FakeSolver::SolvePipe* pipe) {
    if (request.has_cancel()) pipe->Write(Refusal(request.id(), grpc::StatusCode::CANCELLED));
  });
  SolveSession session = Connect().OpenSession();
  const auto first = session.Send(kOne, b_, x_);
  const auto second = session.Send(kOne, b_, y_);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(session.Await(*second, absl::ZeroDuration()).status()));
  EXPECT_TRUE(session.Cancel(*second).ok());
  const absl::Status status = session.Await(*second).status();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_TRUE(absl::IsNotFound(session.Cancel(*second)));
  EXPECT_TRUE(absl::IsNotFound(session.Cancel(77)));
  EXPECT_EQ(session.outstanding(), 1);
  EXPECT_TRUE(session.Cancel(*first).ok());
  EXPECT_TRUE(absl::IsCancelled(session.Await(*first).status()));
}

TEST_F(SessionControlTest, AnAnswerThatWasFasterThanItsCancellationCounts) {
  Serve([](const v1::SolveStreamRequest& request, FakeSolver::SolvePipe* pipe) {
    if (request.has_request()) pipe->Write(Echo(request));
  });
  SolveSession session = Connect().OpenSession();
  const auto id = session.Send(kOne, b_, x_);
  ASSERT_TRUE(id.ok());
  const auto other = session.Send(kOne, b_, y_);
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(session.Await(*other).ok());  // so that the answer to the one before is here too
  EXPECT_TRUE(session.Cancel(*id).ok());
  EXPECT_TRUE(session.Await(*id).ok());
  EXPECT_EQ(x_[0], 21);
}

TEST_F(SessionControlTest, ARequestThatIsReplacedIsAnsweredAsCancelled) {
  uint64_t last = 0;
  Serve([last](const v1::SolveStreamRequest& request, FakeSolver::SolvePipe* pipe) mutable {
    if (request.replace_last()) pipe->Write(Refusal(last, grpc::StatusCode::CANCELLED));
    if (request.request().num_rhs() == 2) pipe->Write(Echo(request));
    last = request.id();
  });
  SolveSession session = Connect().OpenSession();
  const std::vector<double> two = {1, 2};
  std::vector<double> z(2);
  const auto old = session.Send(kOne, b_, x_, {.replace_last = false});
  const auto newer = session.Send(kOne, two, z, {.replace_last = true});
  ASSERT_TRUE(old.ok() && newer.ok());
  EXPECT_TRUE(session.Await(*newer).ok());
  EXPECT_EQ(z, two);
  EXPECT_TRUE(absl::IsCancelled(session.Await(*old).status()));
}

// The server reads nothing: what is on its way fills the window, and the rest waits here.
TEST_F(SessionControlTest, WhatIsNotSentIsTakenBack) {
  absl::Notification read;
  fake_.on_solve_stream = [&](FakeSolver::SolvePipe* pipe) {
    read.WaitForNotification();
    v1::SolveStreamRequest request;
    while (pipe->Read(&request)) {
      came_.Append(request);
      if (request.has_cancel()) pipe->Write(Refusal(request.id(), grpc::StatusCode::CANCELLED));
    }
    return grpc::Status::OK;
  };
  constexpr int kNumbers = 2 << 20;
  const Factorization large{"large", kNumbers, 1, Scalar::kFloat64};
  const std::vector<double> b(kNumbers, 1);
  std::vector<double> x(kNumbers);
  SolveSession session = Connect({.chunk_bytes = 1 << 20}).OpenSession();
  const auto first = session.Send(large, b, x);
  const auto second = session.Send(kOne, b_, x_);
  const auto third = session.Send(kOne, b_, y_, {.timeout = absl::Milliseconds(500)});
  ASSERT_TRUE(first.ok() && second.ok() && third.ok());
  EXPECT_TRUE(session.Cancel(*second).ok());
  EXPECT_TRUE(absl::IsCancelled(session.Await(*second).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(session.Await(*third).status()));
  EXPECT_TRUE(session.Cancel(*first).ok());
  read.Notify();
  EXPECT_TRUE(absl::IsCancelled(session.Await(*first).status()));
  const auto came = came_.Get();
  size_t bytes = 0;
  for (const v1::SolveStreamRequest& request : came) {
    EXPECT_EQ(request.id(), *first);
    bytes += request.chunk().size();
  }
  EXPECT_LT(bytes, 8 * b.size());
  EXPECT_TRUE(came.back().has_cancel());
}

TEST_F(SessionControlTest, ASessionMayEndWithAbandonedRequests) {
  Serve(Silence);
  std::vector<double> x = {7};
  {
    SolveSession session = Connect().OpenSession();
    const auto id = session.Send(kOne, b_, x, {.timeout = absl::Milliseconds(1)});
    const absl::Status status = id.ok() ? session.Await(*id).status() : id.status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  }
  EXPECT_EQ(x[0], 7);
}

class HealingControlTest : public HealTest {
 protected:
  // Until `go`, no Factor is answered after the first.
  void HoldFactors() {
    auto factor = fake_.on_factor.Get();
    fake_.on_factor = [this, factor](const v1::FactorRequest& request, v1::FactorReply* reply) {
      go_.WaitForNotification();
      return factor(request, reply);
    };
  }
  absl::Notification go_;
  const std::vector<double> b_ = {8};
};

TEST_F(HealingControlTest, ATimeoutAndACancellationEndTheWaitForARestoration) {
  const SolverClient client = Connect();
  const FactorHandle handle = Factor(client, {.keep_copy = true});
  Lose(v1::HandleNotFound::EVICTED);
  HoldFactors();
  std::vector<double> x = {7}, y = {7}, z = {7};
  SolveSession session = client.OpenSession();
  const auto late = session.Send(handle, b_, x, {.timeout = absl::Seconds(3)});
  const auto cancelled = session.Send(handle, b_, y);
  const auto healed = session.Send(handle, b_, z);
  ASSERT_TRUE(late.ok() && cancelled.ok() && healed.ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(session.Await(*late).status()));
  while (handle.restore_counters().waited < 3) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(session.Cancel(*cancelled).ok());
  EXPECT_TRUE(absl::IsCancelled(session.Await(*cancelled).status()));
  go_.Notify();
  const auto solved = session.Await(*healed);
  EXPECT_TRUE(solved.ok()) << solved.status();
  EXPECT_EQ(z[0], 4);
  EXPECT_EQ(x[0], 7);
  EXPECT_EQ(y[0], 7);
}

TEST_F(HealingControlTest, WhatIsSentAgainReplacesNothing) {
  Shared<std::vector<bool>> replaces;
  const SolverClient client = Connect();
  const FactorHandle handle = Factor(client, {.keep_copy = true});
  Lose(v1::HandleNotFound::EVICTED);
  fake_.on_solve_stream = [&](FakeSolver::SolvePipe* pipe) {
    v1::SolveStreamRequest request;
    while (pipe->Read(&request)) {
      replaces.Append(request.replace_last());
      v1::SolveStreamReply reply;
      reply.set_id(request.id());
      const grpc::Status status = Answer(request.request(), reply.mutable_reply());
      if (!status.ok()) reply.mutable_status()->ParseFromString(status.error_details());
      pipe->Write(reply);
    }
    return grpc::Status::OK;
  };
  std::vector<double> x(1);
  SolveSession session = client.OpenSession();
  const auto id = session.Send(handle, b_, x, {.replace_last = true});
  ASSERT_TRUE(id.ok());
  EXPECT_TRUE(session.Await(*id).ok());
  EXPECT_THAT(replaces.Get(), ElementsAre(true, false));
}

}  // namespace
}  // namespace blockd::client
