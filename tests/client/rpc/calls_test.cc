// The messages of Factor, Solve and FactorSolve, field by field, and what they make of the reply.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/client/calls_fixture.h"

namespace blockd::client {
namespace {

using ::testing::ElementsAre;

void ExpectSent(const v1::FactorOptions& sent) {
  EXPECT_TRUE(sent.keep_matrix());
  EXPECT_FALSE(sent.check_finite());
  EXPECT_TRUE(sent.pin());
  EXPECT_FALSE(sent.log_determinant());
  EXPECT_EQ(sent.lease().seconds(), 90);
  EXPECT_EQ(sent.idempotency_key(), "key");
  EXPECT_EQ(sent.handle_size(), 0);
  EXPECT_EQ(sent.accuracy(), v1::ACCURACY_STANDARD);
  EXPECT_FALSE(sent.condition_estimate());
}

TEST_F(CallsTest, AFactorSendsItsOptions) {
  const FactorOptions options{
      .keep_matrix = true, .pin = true, .lease = absl::Seconds(90), .idempotency_key = "key"};
  for (const int64_t threshold : {int64_t{1} << 20, int64_t{0}}) {
    const auto factored = Connect({.stream_threshold_bytes = threshold}).Factor(kSystem, options);
    ASSERT_TRUE(factored.ok()) << factored.status();
    EXPECT_EQ(factored->handle.get().handle, "h0");
    EXPECT_EQ(factored->handle.get().num_blocks, 2);
    EXPECT_EQ(factored->handle.get().block_size, 1);
    EXPECT_EQ(factored->handle.get().scalar, Scalar::kFloat64);
    EXPECT_EQ(factored->log_determinant, 10.5);
    ExpectConditioning(factored->conditioning, 0);
    EXPECT_EQ(factored->factor_bytes, 123);
    EXPECT_FALSE(factored->found);
    EXPECT_TRUE(IsSomeCost(factored->cost));
  }
  ExpectSent(factor_.Get().options());
  ExpectSent(header_.Get().options());
  EXPECT_EQ(factor_.Get().spec().num_blocks(), 2);
  EXPECT_EQ(factor_.Get().system(0).diagonal(), TextOf({4, 5}));
  EXPECT_EQ(factor_.Get().system(0).coupling(), TextOf({1}));
  ASSERT_TRUE(Connect().Factor(kSystem, {.check_finite = true, .log_determinant = true}).ok());
  EXPECT_TRUE(factor_.Get().options().check_finite());
  EXPECT_TRUE(factor_.Get().options().log_determinant());
  EXPECT_FALSE(factor_.Get().options().keep_matrix());
  EXPECT_FALSE(factor_.Get().options().pin());
  EXPECT_FALSE(factor_.Get().options().has_lease());  // zero: the server's
  ASSERT_TRUE(Connect()
                  .Factor(kSystem, {.accuracy = Accuracy::kGuaranteed, .condition_estimate = true})
                  .ok());
  EXPECT_EQ(factor_.Get().options().accuracy(), v1::ACCURACY_GUARANTEED);
  EXPECT_TRUE(factor_.Get().options().condition_estimate());
}

TEST_F(CallsTest, ABatchGivesEachSystemItsOwn) {
  fake_.on_factor = [&](const v1::FactorRequest& request, v1::FactorReply* reply) {
    factor_ = request;
    AnswerFactor(3, reply);
    reply->set_found(true);
    reply->mutable_system(0)->clear_log_determinant();
    v1::FactoredSystem& bad = *reply->mutable_system(1);
    bad.Clear();
    bad.mutable_status()->set_code(grpc::StatusCode::INVALID_ARGUMENT);
    bad.mutable_status()->set_message("not this one");
    return grpc::Status::OK;
  };
  const SystemView systems[] = {kSystem, MakeSystemView(2, 1, kDiagonal + 1, kCoupling + 1),
                                MakeSystemView(2, 1, kDiagonal + 2, kCoupling + 2)};
  const SolverClient client = Connect();
  {
    const auto batch = client.FactorBatch(systems, {.log_determinant = true});
    ASSERT_TRUE(batch.ok()) << batch.status();
    EXPECT_EQ(factor_.Get().system(1).diagonal(), TextOf({5, 6}));
    EXPECT_EQ(factor_.Get().system(2).coupling(), TextOf({3}));
    ASSERT_EQ(batch->systems.size(), 3);
    EXPECT_EQ(batch->systems[0].handle.get().handle, "h0");
    EXPECT_EQ(batch->systems[1].status, absl::InvalidArgumentError("not this one"));
    EXPECT_TRUE(batch->systems[1].handle.empty());
    EXPECT_EQ(batch->systems[2].handle.get().handle, "h2");
    EXPECT_EQ(batch->systems[0].log_determinant, std::nullopt);
    EXPECT_EQ(batch->systems[2].log_determinant, 12.5);
    ExpectConditioning(batch->systems[0].conditioning, 0);
    ExpectConditioning(batch->systems[2].conditioning, 2);
    EXPECT_EQ(batch->factor_bytes, 123);
    EXPECT_TRUE(batch->found);
    EXPECT_TRUE(IsSomeCost(batch->cost));
  }
  EXPECT_TRUE(client.AwaitReleases(absl::Seconds(60)));
  EXPECT_THAT(released_.Get(), ::testing::UnorderedElementsAre("h0", "h2"));
}

TEST_F(CallsTest, TheThresholdCountsEverySystemOfABatch) {
  const SystemView systems[] = {kSystem, kSystem};  // 24 bytes each
  ASSERT_TRUE(Connect({.stream_threshold_bytes = 48}).FactorBatch(systems).ok());
  EXPECT_EQ(factor_.Get().system_size(), 2);
  EXPECT_EQ(header_.Get().num_systems(), 0);
  ASSERT_TRUE(Connect({.stream_threshold_bytes = 47}).FactorBatch(systems).ok());
  EXPECT_EQ(header_.Get().num_systems(), 2);
}

TEST_F(CallsTest, ARefactorNamesItsHandlesInOrder) {
  fake_.on_factor = [&](const v1::FactorRequest& request, v1::FactorReply* reply) {
    factor_ = request;
    AnswerFactor(2, reply);
    reply->mutable_system(1)->mutable_status()->set_code(grpc::StatusCode::ABORTED);
    return grpc::Status::OK;
  };
  const Factorization handles[] = {kHandle, {"other", 2, 1, Scalar::kFloat64}};
  const SystemView systems[] = {kSystem, kSystem};
  const auto result = Connect().RefactorBatch(handles, systems, {.overwrite = true});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(factor_.Get().options().handle(), ElementsAre("handle", "other"));
  EXPECT_TRUE(factor_.Get().options().overwrite());
  EXPECT_EQ(factor_.Get().options().idempotency_key(), "");
  ASSERT_EQ(result->systems.size(), 2);
  EXPECT_TRUE(result->systems[0].ok());
  EXPECT_TRUE(absl::IsAborted(result->systems[1]));
  EXPECT_THAT(result->log_determinants, ElementsAre(10.5, 11.5));
  ASSERT_EQ(result->conditioning.size(), 2);
  for (int k = 0; k < 2; ++k) ExpectConditioning(result->conditioning[k], k);
  EXPECT_TRUE(IsSomeCost(result->cost));

  const auto refused = [&](std::span<const Factorization> given, const FactorOptions& options) {
    const auto detail = GetInvalidField(Connect().RefactorBatch(given, systems, options).status());
    return detail.has_value() ? detail->field() : "";
  };
  EXPECT_EQ(refused({}, {}), "options.handle");
  EXPECT_EQ(refused({handles, 1}, {}), "options.handle");
  EXPECT_EQ(refused(handles, {.idempotency_key = "k"}), "options.idempotency_key");
}

TEST_F(CallsTest, ARefactorThatFailsIsAnError) {
  fake_.on_factor = [](const v1::FactorRequest&, v1::FactorReply* reply) {
    AnswerFactor(1, reply);
    reply->mutable_system(0)->mutable_status()->set_code(grpc::StatusCode::ABORTED);
    return grpc::Status::OK;
  };
  EXPECT_TRUE(absl::IsAborted(Connect().Refactor(kHandle, kSystem).status()));
  EXPECT_TRUE(absl::IsAborted(Connect().Factor(kSystem).status()));
}

// All three ways of a Solve.
TEST_F(CallsTest, ASolveSendsItsOptionsAndReadsItsResult) {
  const std::vector<double> b = {1, 2, 3, 4};
  const SolveOptions all{.residual = true, .max_refinements = 7, .check_finite = true};
  const auto check = [&](const absl::StatusOr<SolveResult>& result, const std::vector<double>& x) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(x, b);
    EXPECT_EQ(result->backward_error, 0.125);
    EXPECT_EQ(result->backward_error_bound, 0.5);
    EXPECT_EQ(result->refinements, 3);
    EXPECT_TRUE(IsSomeCost(result->cost));
    EXPECT_EQ(solve_.Get().handle(), "handle");
    EXPECT_EQ(solve_.Get().num_rhs(), 2);
    EXPECT_EQ(solve_.Get().rhs(), TextOf(b));
    EXPECT_TRUE(solve_.Get().options().residual());
    EXPECT_EQ(solve_.Get().options().max_refinements(), 7);
    EXPECT_TRUE(solve_.Get().options().check_finite());
    solve_ = v1::SolveRequest();
  };
  for (const int64_t threshold : {int64_t{1} << 20, int64_t{0}}) {
    const SolverClient client = Connect({.stream_threshold_bytes = threshold});
    std::vector<double> x(4), y(4), z(4);
    check(client.Solve(kHandle, b, x, all), x);
    absl::Notification done;
    absl::StatusOr<SolveResult> later;
    client.SolveAsync(kHandle, b, y, all, [&](absl::StatusOr<SolveResult> result) {
      later = std::move(result);
      done.Notify();
    });
    done.WaitForNotification();
    check(later, y);
    SolveSession session = client.OpenSession();
    const auto id = session.Send(kHandle, b, z, all);
    ASSERT_TRUE(id.ok()) << id.status();
    check(session.Await(*id), z);
  }
  std::vector<double> x(4);
  ASSERT_TRUE(Connect().Solve(kHandle, b, x, {.residual = true}).ok());
  EXPECT_TRUE(solve_.Get().options().residual());
  EXPECT_EQ(solve_.Get().options().max_refinements(), 0);
  EXPECT_FALSE(solve_.Get().options().check_finite());
  ASSERT_TRUE(Connect().Solve(kHandle, b, x, {.check_finite = true}).ok());
  EXPECT_FALSE(solve_.Get().options().residual());
  EXPECT_TRUE(solve_.Get().options().check_finite());
}

TEST_F(CallsTest, TheThresholdOfASolveIsItsRightHandSides) {
  const std::vector<double> b = {1, 2};
  std::vector<double> x(2);
  const auto solve_both_ways = [&](int64_t threshold) {
    ForgetCalls();
    const SolverClient client = Connect({.stream_threshold_bytes = threshold});
    ASSERT_TRUE(client.Solve(kHandle, b, x).ok());
    absl::Notification done;
    client.SolveAsync(kHandle, b, x, {}, [&](const auto& result) {
      EXPECT_TRUE(result.ok());
      done.Notify();
    });
    done.WaitForNotification();
  };
  solve_both_ways(16);
  EXPECT_NE(Last("Solve").peer, "");
  EXPECT_EQ(Last("SolveStream").peer, "");
  solve_both_ways(15);
  EXPECT_EQ(Last("Solve").peer, "");
  EXPECT_NE(Last("SolveStream").peer, "");
}

TEST_F(CallsTest, AnAsynchronousSolveThatCannotBeSentSaysSoOnce) {
  const std::vector<double> b = {1, 2};
  std::vector<double> x(1), y(2);
  int calls = 0;
  Connect().SolveAsync(kHandle, b, x, {}, [&](const absl::StatusOr<SolveResult>& result) {
    ++calls;
    EXPECT_TRUE(GetInvalidField(result.status()).has_value());
  });
  EXPECT_EQ(calls, 1);  // at once
  fake_.on_solve = [](grpc::ServerContext*, const v1::SolveRequest&, v1::SolveReply*) {
    return grpc::Status(grpc::StatusCode::INTERNAL, "the device failed");
  };
  for (const bool short_reply : {false, true}) {
    if (short_reply) {
      fake_.on_solve = [](grpc::ServerContext*, const v1::SolveRequest&, v1::SolveReply* reply) {
        reply->set_solution("short");
        return grpc::Status::OK;
      };
    }
    absl::Notification done;
    absl::Status status;
    Connect().SolveAsync(kHandle, b, y, {}, [&](const absl::StatusOr<SolveResult>& result) {
      status = result.status();
      done.Notify();
    });
    done.WaitForNotification();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
  }
}

TEST_F(CallsTest, AFactorSolveIsOneCall) {
  Shared<v1::FactorSolveRequest> sent;
  fake_.on_factor_solve = [&](const v1::FactorSolveRequest& request, v1::FactorSolveReply* reply) {
    sent = request;
    reply->set_solution(request.rhs());
    reply->set_backward_error(0.25);
    reply->set_backward_error_bound(0.75);
    reply->set_refinements(2);
    reply->set_log_determinant(9.5);
    *reply->mutable_cost() = SomeCost();
    return grpc::Status::OK;
  };
  const std::vector<double> b = {1, 2, 3, 4};  // 32 bytes, beside 24 of the matrix
  std::vector<double> x(4);
  const auto solved =
      Connect({.stream_threshold_bytes = 56})
          .FactorSolve(
              kSystem, b, x, {.residual = true, .max_refinements = 4},
              {.check_finite = true, .log_determinant = true, .accuracy = Accuracy::kGuaranteed});
  ASSERT_TRUE(solved.ok()) << solved.status();
  EXPECT_EQ(x, b);
  EXPECT_EQ(solved->backward_error, 0.25);
  EXPECT_EQ(solved->backward_error_bound, 0.75);
  EXPECT_EQ(solved->refinements, 2);
  EXPECT_EQ(solved->log_determinant, 9.5);
  EXPECT_TRUE(IsSomeCost(solved->cost));
  EXPECT_EQ(sent.Get().spec().num_blocks(), 2);
  EXPECT_EQ(sent.Get().system().diagonal(), TextOf({4, 5}));
  EXPECT_EQ(sent.Get().num_rhs(), 2);
  EXPECT_EQ(sent.Get().rhs(), TextOf(b));
  EXPECT_TRUE(sent.Get().options().residual());
  EXPECT_EQ(sent.Get().options().max_refinements(), 4);
  EXPECT_TRUE(sent.Get().check_finite());
  EXPECT_TRUE(sent.Get().log_determinant());
  EXPECT_EQ(sent.Get().accuracy(), v1::ACCURACY_GUARANTEED);
  ASSERT_TRUE(Connect().FactorSolve(kSystem, b, x, {.timeout = absl::Seconds(500)}).ok());
  EXPECT_FALSE(sent.Get().options().residual());
  EXPECT_FALSE(sent.Get().check_finite());
  EXPECT_FALSE(sent.Get().log_determinant());
  EXPECT_GT(Last("FactorSolve").remaining, absl::Seconds(60));  // which a client's own timeout is

  std::vector<double> wrong(3);
  EXPECT_TRUE(GetInvalidField(Connect().FactorSolve(kSystem, b, wrong).status()).has_value());
  EXPECT_TRUE(GetInvalidField(Connect().FactorSolve(SystemView(), b, x).status()).has_value());
  fake_.on_factor_solve = [](const v1::FactorSolveRequest&, v1::FactorSolveReply* reply) {
    reply->set_solution("short");
    return grpc::Status::OK;
  };
  EXPECT_TRUE(absl::IsInternal(Connect().FactorSolve(kSystem, b, x).status()));
  EXPECT_EQ(Last("Factor").peer, "");
}

// Above the threshold it is a Factor, a Solve and a Release.
TEST_F(CallsTest, ALargeFactorSolveKeepsTheMatrixWhereTheSolveNeedsIt) {
  const SolverClient client = Connect({.stream_threshold_bytes = 55});  // 24 and 32 are more
  const std::vector<double> b = {1, 2, 3, 4};
  std::vector<double> x(4);
  const auto solve = [&](const SolveOptions& options, const FactorOptions& factor) {
    const auto solved = client.FactorSolve(kSystem, b, x, options, factor);
    ASSERT_TRUE(solved.ok()) << solved.status();
    EXPECT_EQ(x, b);
    EXPECT_EQ(solved->backward_error, 0.125);
    EXPECT_EQ(solved->backward_error_bound, 0.5);
    EXPECT_EQ(solved->refinements, 3);
    EXPECT_EQ(solved->log_determinant, 10.5);
    EXPECT_TRUE(IsSomeCost(solved->cost));
    EXPECT_EQ(solve_.Get().handle(), "h0");
  };
  solve({}, {.keep_matrix = true, .pin = true});
  EXPECT_FALSE(factor_.Get().options().keep_matrix());
  EXPECT_FALSE(factor_.Get().options().pin());  // nobody would release it if this process ended now
  EXPECT_FALSE(factor_.Get().options().log_determinant());
  solve({.residual = true}, {.log_determinant = true});
  EXPECT_TRUE(factor_.Get().options().keep_matrix());
  EXPECT_TRUE(factor_.Get().options().log_determinant());
  EXPECT_TRUE(solve_.Get().options().residual());
  solve({.max_refinements = 2}, {});
  EXPECT_TRUE(factor_.Get().options().keep_matrix());
  EXPECT_EQ(solve_.Get().options().max_refinements(), 2);
  EXPECT_FALSE(solve_.Get().options().check_finite());
  solve({}, {.check_finite = true});
  EXPECT_TRUE(factor_.Get().options().check_finite());
  EXPECT_TRUE(solve_.Get().options().check_finite());
  solve({.check_finite = true}, {});
  EXPECT_FALSE(factor_.Get().options().check_finite());
  EXPECT_TRUE(solve_.Get().options().check_finite());
  EXPECT_TRUE(client.AwaitReleases(absl::Seconds(60)));
  EXPECT_EQ(released_.Get(), std::vector<std::string>(5, "h0"));
}

TEST_F(CallsTest, ALargeFactorSolveHasOneDeadlineForBoth) {
  // Three of forty seconds go into the Factor, so they are not left for the Solve. (gRPC sends
  // deadlines to within some percent.)
  Shared<absl::Duration> of_factor;
  fake_.on_factor = [&](const v1::FactorRequest&, v1::FactorReply* reply) {
    of_factor = Last("Factor").remaining;
    absl::SleepFor(absl::Seconds(3));
    return AnswerFactor(1, reply);
  };
  const std::vector<double> b = {1, 2};
  std::vector<double> x(2);
  ASSERT_TRUE(
      Connect({.timeout = absl::Seconds(5), .stream_threshold_bytes = 24})
          .FactorSolve(kSystem, b, x, {.timeout = absl::Seconds(40)}, {.timeout = absl::Seconds(5)})
          .ok());
  EXPECT_GT(of_factor.Get(), absl::Seconds(10));  // that of the Solve counts for both
  EXPECT_GT(Last("Solve").remaining, absl::Seconds(10));
  EXPECT_LT(Last("Solve").remaining, absl::Seconds(38.5));
}

TEST_F(CallsTest, TheLargeFactorSolvesFailuresAreItsOwn) {
  const SolverClient client = Connect({.stream_threshold_bytes = 24});
  const std::vector<double> b = {1, 2};
  std::vector<double> x(2);
  fake_.on_solve = [](grpc::ServerContext*, const v1::SolveRequest&, v1::SolveReply*) {
    return grpc::Status(grpc::StatusCode::ABORTED, "no");
  };
  EXPECT_TRUE(absl::IsAborted(client.FactorSolve(kSystem, b, x).status()));
  EXPECT_TRUE(client.AwaitReleases(absl::Seconds(60)));
  EXPECT_THAT(released_.Get(), ElementsAre("h0"));
  fake_.on_factor = [](const v1::FactorRequest&, v1::FactorReply*) {
    return grpc::Status(grpc::StatusCode::DATA_LOSS, "no");
  };
  EXPECT_TRUE(absl::IsDataLoss(client.FactorSolve(kSystem, b, x).status()));
}

}  // namespace
}  // namespace blockd::client
