#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "blockd/client/solver_client.h"
#include "tests/client/fake_solver.h"

namespace blockd::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kOneScalar[] = {1.0};
const SystemView kSystem = MakeSystemView(1, 1, kOneScalar, kOneScalar);
const Factorization kHandle{"handle", 1, 1, Scalar::kFloat64};

class RetryTest : public ::testing::Test {
 protected:
  RetryTest() {
    fake_.on_release = [](const v1::ReleaseRequest&, v1::ReleaseReply*) {
      return grpc::Status::OK;
    };
  }
  SolverClient Connect(ClientOptions options = {}) {
    options.retry.initial_delay = absl::Milliseconds(1);
    return *SolverClient::Connect(fake_.target(), options);
  }
  // Solves x = 2 b.
  static grpc::Status Double(const v1::SolveRequest& request, v1::SolveReply* reply) {
    double b;
    std::memcpy(&b, request.rhs().data(), sizeof(b));
    b *= 2;
    reply->set_solution(&b, sizeof(b));
    return grpc::Status::OK;
  }

  FakeSolver fake_;
  std::vector<double> x_ = {0};
  const std::vector<double> b_ = {21};
};

TEST_F(RetryTest, AFactorIsTriedAgainWithTheSameKey) {
  std::atomic<int> calls{0};
  Shared<std::vector<std::string>> keys;
  fake_.on_factor = [&](const v1::FactorRequest& request, v1::FactorReply* reply) {
    keys.Append(request.options().idempotency_key());
    return ++calls < 3 ? UnavailableFor(absl::Milliseconds(1)) : AnswerWith("h", reply);
  };
  const auto result = Connect().Factor(kSystem);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->handle.get().handle, "h");
  EXPECT_EQ(calls, 3);
  const std::vector<std::string> sent = keys.Get();
  EXPECT_EQ(sent, std::vector<std::string>(3, sent.at(0)));
  EXPECT_EQ(sent[0].size(), 16);
}

TEST_F(RetryTest, AnAttemptCutShortSaysWhatTheOneBeforeItHeard) {
  std::atomic<int> calls{0};
  fake_.on_factor = [&](const v1::FactorRequest&, v1::FactorReply*) {
    return ++calls == 1 ? UnavailableFor(absl::Milliseconds(1))
                        : grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "too late");
  };
  const absl::Status status = Connect().Factor(kSystem).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(status.message(), AllOf(HasSubstr("too late"), HasSubstr("UNAVAILABLE")));
}

TEST_F(RetryTest, AUsersKeyIsSent) {
  Shared<std::string> key;
  fake_.on_factor = [&](const v1::FactorRequest& request, v1::FactorReply* reply) {
    key = request.options().idempotency_key();
    return AnswerWith("h", reply);
  };
  ASSERT_TRUE(Connect().Factor(kSystem, {.idempotency_key = "mine"}).ok());
  EXPECT_EQ(key.Get(), "mine");
}

TEST_F(RetryTest, AnUploadIsTriedAgainFromItsBeginning) {
  std::atomic<int> calls{0};
  Shared<std::vector<std::string>> keys;
  fake_.on_factor_stream = [&](FakeSolver::FactorReader* reader, v1::FactorReply* reply) {
    v1::FactorStreamRequest request;
    EXPECT_TRUE(reader->Read(&request));
    keys.Append(request.header().options().idempotency_key());
    int64_t bytes = 0;
    while (reader->Read(&request)) bytes += static_cast<int64_t>(request.chunk().size());
    EXPECT_EQ(bytes, 8);
    return ++calls < 2 ? UnavailableFor(absl::Milliseconds(1)) : AnswerWith("h", reply);
  };
  ASSERT_TRUE(Connect({.stream_threshold_bytes = 0}).Factor(kSystem).ok());
  const std::vector<std::string> sent = keys.Get();
  ASSERT_EQ(sent.size(), 2);
  EXPECT_EQ(sent[0], sent[1]);
}

TEST_F(RetryTest, OtherFailuresAreFinal) {
  std::atomic<int> calls{0};
  fake_.on_solve = [&](grpc::ServerContext*, const v1::SolveRequest&, v1::SolveReply*) {
    ++calls;
    return grpc::Status(grpc::StatusCode::INTERNAL, "the device failed");
  };
  EXPECT_EQ(Connect().Solve(kHandle, b_, x_).status(), absl::InternalError("the device failed"));
  EXPECT_EQ(calls, 1);
}

TEST_F(RetryTest, AttemptsAreLimited) {
  std::atomic<int> calls{0};
  fake_.on_solve = [&](grpc::ServerContext*, const v1::SolveRequest&, v1::SolveReply*) {
    ++calls;
    return UnavailableFor(absl::Milliseconds(1));
  };
  const absl::Status status =
      Connect({.retry = {.max_attempts = 3}}).Solve(kHandle, b_, x_).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(GetRetryAfter(status), absl::Milliseconds(1));
  EXPECT_EQ(calls, 3);
}

TEST_F(RetryTest, ADelayBeyondTheTimeoutIsNotWaitedFor) {
  fake_.on_solve = [&](grpc::ServerContext*, const v1::SolveRequest&, v1::SolveReply*) {
    return UnavailableFor(absl::Hours(1));
  };
  EXPECT_TRUE(absl::IsUnavailable(Connect().Solve(kHandle, b_, x_).status()));
}

TEST_F(RetryTest, TheTimeoutEndsACallThatHangs) {
  fake_.on_solve = [&](grpc::ServerContext* context, const v1::SolveRequest&, v1::SolveReply*) {
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    return grpc::Status::CANCELLED;
  };
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      Connect().Solve(kHandle, b_, x_, {.timeout = absl::Milliseconds(50)}).status()));
}

TEST_F(RetryTest, AQuotaIsWaitedForWhereWaitingHelps) {
  std::atomic<int> calls{0};
  fake_.on_solve = [&](grpc::ServerContext*, const v1::SolveRequest& request,
                       v1::SolveReply* reply) {
    return ++calls < 3 ? OverQuota("requests_per_second", absl::Milliseconds(1))
                       : Double(request, reply);
  };
  const SolverClient client = Connect();
  const auto solved = client.Solve(kHandle, b_, x_);
  EXPECT_TRUE(solved.ok()) << solved.status();
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(client.retry_counters().retries, 2);
  EXPECT_EQ(client.retry_counters().over_budget, 0);
}

TEST_F(RetryTest, AQuotaThatNoWaitingFreesIsFinal) {
  std::atomic<int> calls{0};
  fake_.on_factor = [&](const v1::FactorRequest&, v1::FactorReply*) {
    ++calls;
    return OverQuota("handles", absl::InfiniteDuration());
  };
  const absl::Status status = Connect().Factor(kSystem).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  ASSERT_TRUE(GetQuotaExceeded(status).has_value());
  EXPECT_EQ(GetQuotaExceeded(status)->quota(), "handles");
  EXPECT_EQ(calls, 1);
}

TEST_F(RetryTest, AllCallsOfAClientShareABudget) {
  std::atomic<int> calls{0};
  fake_.on_solve = [&](grpc::ServerContext*, const v1::SolveRequest&, v1::SolveReply*) {
    ++calls;
    return UnavailableFor(absl::Milliseconds(1));
  };
  const SolverClient client = Connect({.retry = {.budget_ratio = 0, .budget_burst = 5}});
  for (int k = 0; k < 10; ++k) {
    EXPECT_TRUE(absl::IsUnavailable(client.Solve(kHandle, b_, x_).status()));
  }
  for (int k = 0; k < 10; ++k) {
    absl::Notification done;
    client.SolveAsync(kHandle, b_, x_, {}, [&](absl::StatusOr<SolveResult> result) {
      EXPECT_TRUE(absl::IsUnavailable(result.status()));
      done.Notify();
    });
    done.WaitForNotification();
  }
  EXPECT_EQ(calls, 20 + 5);
  EXPECT_EQ(client.retry_counters().retries, 5);
  EXPECT_EQ(client.retry_counters().over_budget, 19);  // the first call made 4 retries of its own
}

TEST_F(RetryTest, AnAsynchronousSolveIsTriedAgain) {
  std::atomic<int> calls{0};
  fake_.on_solve = [&](grpc::ServerContext*, const v1::SolveRequest& request,
                       v1::SolveReply* reply) {
    return ++calls < 3 ? UnavailableFor(absl::Milliseconds(1)) : Double(request, reply);
  };
  const SolverClient client = Connect();
  absl::Notification done;
  absl::Status status;
  client.SolveAsync(kHandle, b_, x_, {}, [&](absl::StatusOr<SolveResult> result) {
    status = result.status();
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(x_[0], 42);
  EXPECT_EQ(calls, 3);
}

TEST_F(RetryTest, AReleaseWhoseAnswerWasLostSucceeds) {
  std::atomic<int> calls{0};
  fake_.on_release = [&](const v1::ReleaseRequest& request, v1::ReleaseReply*) {
    if (++calls == 1) return UnavailableFor(absl::Milliseconds(1));
    return NotFound(request.handle(0), v1::HandleNotFound::RELEASED);
  };
  const std::string handles[] = {"h"};
  EXPECT_TRUE(Connect().Release(handles).ok());
  EXPECT_TRUE(absl::IsNotFound(Connect().Release(handles).status()));  // at the first attempt
}

TEST_F(RetryTest, AWrongReplyIsInternal) {
  fake_.on_solve = [&](grpc::ServerContext*, const v1::SolveRequest&, v1::SolveReply* reply) {
    reply->set_solution("short");
    return grpc::Status::OK;
  };
  fake_.on_factor = [&](const v1::FactorRequest&, v1::FactorReply*) { return grpc::Status::OK; };
  EXPECT_TRUE(absl::IsInternal(Connect().Solve(kHandle, b_, x_).status()));
  EXPECT_TRUE(absl::IsInternal(Connect().Factor(kSystem).status()));
}

TEST(NoServerTest, SaysUnavailable) {
  const SolverClient client = *SolverClient::Connect("127.0.0.1:1", {.retry = {.max_attempts = 2}});
  EXPECT_TRUE(absl::IsUnavailable(client.ServerInfo().status()));
  EXPECT_TRUE(absl::IsUnavailable(client.CheckHealth()));
  EXPECT_FALSE(client.WaitUntilConnected(absl::Milliseconds(10)));
  std::vector<double> b(1 << 20), x(1 << 20);
  const Factorization large{"h", 1 << 20, 1, Scalar::kFloat64};
  EXPECT_TRUE(absl::IsUnavailable(client.Solve(large, b, x).status()));
  EXPECT_TRUE(
      absl::IsUnavailable(client.Factor(MakeSystemView(1 << 20, 1, b.data(), x.data())).status()));
}

TEST(OptionsTest, ThoseThatCannotWorkAreRefused) {
  EXPECT_FALSE(SolverClient::Connect("").ok());
  EXPECT_FALSE(SolverClient::Connect("a:1", {.timeout = absl::ZeroDuration()}).ok());
  EXPECT_FALSE(SolverClient::Connect("a:1", {.chunk_bytes = 0}).ok());
  EXPECT_FALSE(SolverClient::Connect("a:1", {.retry = {.max_attempts = 0}}).ok());
  EXPECT_FALSE(SolverClient::Connect("a:1", {.retry = {.budget_ratio = -1}}).ok());
  EXPECT_FALSE(SolverClient::Connect("a:1", {.retry = {.budget_burst = -1}}).ok());
  EXPECT_TRUE(SolverClient::Connect("a:1", {.retry = {.budget_burst = 0}}).ok());
}

}  // namespace
}  // namespace blockd::client
