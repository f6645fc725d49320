// The guarantees to a caller, over a real socket: forms, batches, options, costs.
#include <cmath>
#include <thread>

#include "absl/time/clock.h"
#include "tests/integration/fixture.h"

namespace blockd::test {
namespace {

class SolveTest : public IntegrationTest {
 protected:
  void SetUp() override { Start(); }
};

using problems::RandomColumns;
using problems::RandomSpd;

TEST_F(SolveTest, EveryFormAndScalarSolves) {
  const problems::Problem problem =
      problems::KalmanPalette({.states = 6, .observations = 8, .steps = 12, .num_rhs = 3});
  for (const Scalar scalar : {Scalar::kFloat64, Scalar::kFloat32}) {
    for (const DiagonalForm diagonal : {DiagonalForm::kFull, DiagonalForm::kPackedLower}) {
      for (const CouplingForm coupling :
           {CouplingForm::kSubdiagonal, CouplingForm::kSuperdiagonal}) {
        for (const bool palette : {false, true}) {
          const HostMatrix matrix(problem, scalar, {diagonal, coupling, palette});
          SCOPED_TRACE(SpecOf(matrix).ShortDebugString());
          const std::string handle = Factor(matrix);
          const std::vector<double> b = ValuesOf(BytesOf(problem.rhs, scalar), scalar);
          ExpectSolves(matrix, Solve(handle, b, 3, scalar), b);
        }
      }
    }
  }
}

TEST_F(SolveTest, ShapesAtTheEdgesSolve) {
  for (const auto& [blocks, size] :
       {std::pair{1, 1}, {1, 40}, {2, 1}, {3, 7}, {257, 2}, {40, 33}}) {
    SCOPED_TRACE(std::to_string(blocks) + " x " + std::to_string(size));
    const problems::Problem problem = RandomSpd(blocks, size, 5, 1e3);
    const HostMatrix matrix(problem, Scalar::kFloat64);
    for (const int64_t d : {1, 5}) {
      const std::vector<double> b = RandomColumns(problem.rows(), d, 7);
      ExpectSolves(matrix, Solve(Factor(matrix), b, d), b);
    }
  }
}

TEST_F(SolveTest, OnePaletteServesABatchOfSystems) {
  const problems::Problem problem =
      problems::KalmanPalette({.states = 4, .observations = 4, .steps = 9});
  HostMatrix first(problem, Scalar::kFloat64, {.palette = true});
  HostMatrix second = first;
  second.SetDiagonal(0, 0, 0, second.Diagonal(0, 0, 0) + 1);
  v1::FactorRequest request = FactorRequestOf(first);
  *request.add_system() = DataOf(second);
  const v1::FactorReply reply = Factor(request);
  ASSERT_EQ(reply.system_size(), 2);
  ExpectSolves(first, Solve(reply.system(0).handle(), problem.rhs), problem.rhs);
  ExpectSolves(second, Solve(reply.system(1).handle(), problem.rhs), problem.rhs);
  EXPECT_GT(reply.factor_bytes(), 0);
}

TEST_F(SolveTest, ASystemThatIsNotPositiveDefiniteFailsAloneInItsBatch) {
  const problems::Problem problem = RandomSpd(9, 4, 3, 100);
  const HostMatrix good(problem, Scalar::kFloat64);
  HostMatrix bad = good;
  bad.SetDiagonal(5, 2, 2, -1e3);
  v1::FactorRequest request = FactorRequestOf(good);
  *request.add_system() = DataOf(bad);
  *request.add_system() = DataOf(good);
  const v1::FactorReply reply = Factor(request);
  ASSERT_EQ(reply.system_size(), 3);
  ExpectSolves(good, Solve(reply.system(0).handle(), problem.rhs), problem.rhs);
  ExpectSolves(good, Solve(reply.system(2).handle(), problem.rhs), problem.rhs);
  EXPECT_TRUE(reply.system(1).handle().empty());
  EXPECT_EQ(reply.system(1).status().code(), grpc::StatusCode::INVALID_ARGUMENT);
  const auto where = DetailOf<v1::NotPositiveDefinite>(reply.system(1).status());
  ASSERT_TRUE(where);
  EXPECT_EQ(where->system(), 1);
  EXPECT_EQ(where->minor(), DenseCholesky(bad.view()).minor);
  EXPECT_EQ(where->minor(), where->block() * 4 + where->row() + 1);
  EXPECT_EQ(Metric("blockd_not_positive_definite_total"), 1);
}

TEST_F(SolveTest, OneSystemThatIsNotPositiveDefiniteFailsTheCall) {
  HostMatrix bad(RandomSpd(3, 4, 3, 100), Scalar::kFloat64);
  bad.SetDiagonal(0, 1, 1, -1);
  const grpc::Status status = FactorStatus(FactorRequestOf(bad));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const auto where = DetailOf<v1::NotPositiveDefinite>(status);
  ASSERT_TRUE(where);
  EXPECT_EQ(where->minor(), 2);
  EXPECT_TRUE(Eventually([&] { return ReservedBytes() == 0; }));
}

TEST_F(SolveTest, ResidualRefinementAndLogDeterminantOnRequest) {
  const problems::Problem problem = RandomSpd(11, 6, 3, 1e6);
  const HostMatrix matrix(problem, Scalar::kFloat64);
  v1::FactorRequest factor = FactorRequestOf(matrix);
  factor.mutable_options()->set_keep_matrix(true);
  factor.mutable_options()->set_log_determinant(true);
  const v1::FactorReply factored = Factor(factor);
  ASSERT_TRUE(factored.system(0).has_log_determinant());
  EXPECT_NEAR(factored.system(0).log_determinant(), DenseCholesky(matrix.view()).LogDeterminant(),
              1e-8);
  v1::SolveRequest request;
  request.set_handle(factored.system(0).handle());
  request.set_num_rhs(1);
  request.set_rhs(BytesOf(problem.rhs));
  request.mutable_options()->set_residual(true);
  request.mutable_options()->set_max_refinements(2);
  v1::SolveReply reply;
  ASSERT_TRUE(IsOk(SolveStatus(request, &reply)));
  const double error = BackwardError(matrix.view(), ValuesOf(reply.solution()), problem.rhs);
  EXPECT_LT(reply.backward_error(), 1e-14);
  EXPECT_LT(error, 1e-14);
  EXPECT_LE(reply.refinements(), 2);

  request.set_handle(Factor(matrix));  // without its matrix
  EXPECT_EQ(SolveStatus(request).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(SolveTest, AccuracyIsSaidAndGuaranteedOnRequest) {
  // [1 r; r 1] with r = 1 - 1e-8: a growth of some 7000.
  problems::Problem problem = RandomSpd(1, 2, 3, 10);
  problem.diagonal = {1, 1 - 1e-8, 1 - 1e-8, 1};
  const HostMatrix matrix(problem, Scalar::kFloat64);
  v1::FactorRequest factor = FactorRequestOf(matrix);
  factor.mutable_options()->set_condition_estimate(true);
  const v1::FactorReply plain = Factor(factor);
  EXPECT_NEAR(plain.system(0).growth(), std::sqrt(1 / 2e-8), 1);
  EXPECT_NEAR(plain.system(0).condition_estimate(), 2e8, 1e5);
  EXPECT_FALSE(plain.system(0).matrix_kept());
  factor.mutable_options()->set_condition_estimate(false);
  factor.mutable_options()->set_accuracy(v1::ACCURACY_GUARANTEED);
  const v1::FactorReply guaranteed = Factor(factor);
  EXPECT_TRUE(guaranteed.system(0).matrix_kept());
  EXPECT_FALSE(guaranteed.system(0).has_condition_estimate());

  v1::SolveRequest request;
  request.set_num_rhs(1);
  const std::vector<double> rhs = {2 - 1e-8, 2 - 1e-8};
  request.set_rhs(BytesOf(rhs));
  for (const v1::FactorReply* reply : {&plain, &guaranteed}) {
    const v1::FactoredSystem& system = reply->system(0);
    request.set_handle(system.handle());
    v1::SolveReply solved;
    ASSERT_TRUE(IsOk(SolveStatus(request, &solved)));
    EXPECT_EQ(solved.has_backward_error(), reply == &guaranteed);
    const double error = BackwardError(matrix.view(), ValuesOf(solved.solution()), rhs);
    EXPECT_LE(error, solved.backward_error_bound());
    const double goal = 4 * 2 * 0x1p-52;
    if (reply == &guaranteed) {
      EXPECT_LE(solved.backward_error_bound(), goal);
    } else {
      EXPECT_GT(solved.backward_error_bound(), 20 * goal);
    }
  }

  factor.mutable_options()->set_accuracy(static_cast<v1::Accuracy>(7));
  const auto field = DetailOf<v1::InvalidField>(FactorStatus(factor));
  ASSERT_TRUE(field);
  EXPECT_EQ(field->field(), "options.accuracy");
}

TEST_F(SolveTest, FactorSolveKeepsNothing) {
  const problems::Problem problem = problems::Mpc(20, 6, 1);
  const HostMatrix matrix(problem, Scalar::kFloat64);
  v1::FactorSolveRequest request;
  *request.mutable_spec() = SpecOf(matrix);
  *request.mutable_system() = DataOf(matrix);
  request.set_num_rhs(1);
  request.set_rhs(BytesOf(problem.rhs));
  request.mutable_options()->set_residual(true);
  request.mutable_options()->set_max_refinements(1);
  request.set_log_determinant(true);
  v1::FactorSolveReply reply;
  ASSERT_TRUE(IsOk(stub().FactorSolve(NewContext().get(), request, &reply)));
  ExpectSolves(matrix, ValuesOf(reply.solution()), problem.rhs);
  EXPECT_NEAR(reply.log_determinant(), DenseCholesky(matrix.view()).LogDeterminant(), 1e-6);
  EXPECT_LT(reply.backward_error(), 1e-13);
  request.set_log_determinant(false);
  ASSERT_TRUE(IsOk(stub().FactorSolve(NewContext().get(), request, &reply)));
  EXPECT_FALSE(reply.has_log_determinant());
  EXPECT_EQ(Metric("blockd_factorizations"), 0);
  EXPECT_TRUE(Eventually([&] { return ReservedBytes() == 0; }));
}

TEST_F(SolveTest, FactorSolveNamesTheMinorThatIsNotPositive) {
  const problems::Problem problem = RandomSpd(4, 3, 1, 10);
  HostMatrix bad(problem, Scalar::kFloat64);
  bad.SetDiagonal(0, 0, 0, -1);
  v1::FactorSolveRequest request;
  *request.mutable_spec() = SpecOf(bad);
  *request.mutable_system() = DataOf(bad);
  request.set_num_rhs(1);
  request.set_rhs(BytesOf(problem.rhs));
  v1::FactorSolveReply reply;
  const grpc::Status status = stub().FactorSolve(NewContext().get(), request, &reply);
  const auto where = DetailOf<v1::NotPositiveDefinite>(status);
  ASSERT_TRUE(where) << status.error_message();
  EXPECT_EQ(where->minor(), 1);
}

TEST_F(SolveTest, EveryReplySaysWhatItCost) {
  const problems::Problem problem = RandomSpd(30, 20, 3, 100);
  const HostMatrix matrix(problem, Scalar::kFloat64);
  const v1::FactorReply factored = Factor(FactorRequestOf(matrix, 2));
  EXPECT_GE(factored.cost().batch_requests(), 1);
  EXPECT_GE(factored.cost().batch_items(), 2);
  EXPECT_GT(factored.cost().compute_seconds(), 0);
  EXPECT_GE(factored.cost().queue_seconds(), 0);
  v1::SolveRequest request;
  request.set_handle(factored.system(0).handle());
  request.set_num_rhs(3);
  request.set_rhs(BytesOf(RandomColumns(problem.rows(), 3, 1)));
  v1::SolveReply reply;
  ASSERT_TRUE(IsOk(SolveStatus(request, &reply)));
  EXPECT_GE(reply.cost().batch_items(), 3);
  EXPECT_GT(reply.cost().compute_seconds(), 0);
}

TEST_F(SolveTest, RefactorKeepsTheHandleAndAFailedOneLeavesTheOldFactor) {
  const problems::Problem one = RandomSpd(8, 5, 1, 50), two = RandomSpd(8, 5, 2, 50);
  const HostMatrix first(one, Scalar::kFloat64), second(two, Scalar::kFloat64);
  const std::string handle = Factor(first);
  HostMatrix bad = first;
  bad.SetDiagonal(3, 0, 0, -1);
  v1::FactorRequest request = FactorRequestOf(bad);
  request.mutable_options()->add_handle(handle);
  EXPECT_TRUE(DetailOf<v1::NotPositiveDefinite>(FactorStatus(request)));
  ExpectSolves(first, Solve(handle, one.rhs), one.rhs);

  for (const bool overwrite : {false, true}) {
    request = FactorRequestOf(overwrite ? first : second);
    request.mutable_options()->add_handle(handle);
    request.mutable_options()->set_overwrite(overwrite);
    EXPECT_EQ(Factor(request).system(0).handle(), handle);
    ExpectSolves(overwrite ? first : second, Solve(handle, two.rhs), two.rhs);
  }

  request = FactorRequestOf(bad);
  request.mutable_options()->add_handle(handle);
  request.mutable_options()->set_overwrite(true);
  EXPECT_TRUE(DetailOf<v1::NotPositiveDefinite>(FactorStatus(request)));
  v1::SolveRequest solve;
  solve.set_handle(handle);
  solve.set_num_rhs(1);
  solve.set_rhs(BytesOf(one.rhs));
  EXPECT_TRUE(IsNotFound(SolveStatus(solve), v1::HandleNotFound::FAILED_REFACTOR));
}

TEST_F(SolveTest, TheSameIdempotencyKeyFactorsOnce) {
  const HostMatrix matrix(RandomSpd(8, 5, 1, 50), Scalar::kFloat64);
  v1::FactorRequest request = FactorRequestOf(matrix, 2);
  request.mutable_options()->set_idempotency_key("model 7");
  const v1::FactorReply first = Factor(request), again = Factor(request);
  EXPECT_FALSE(first.found());
  EXPECT_TRUE(again.found());
  ASSERT_EQ(again.system_size(), 2);
  EXPECT_EQ(again.system(0).handle(), first.system(0).handle());
  EXPECT_EQ(again.system(1).handle(), first.system(1).handle());
  EXPECT_EQ(Metric("blockd_factorizations"), 2);
  EXPECT_FALSE(Factor(request, "somebody else").found());

  // The second call's own options count: it gets a log-determinant, and is refused a matrix that
  // was not kept.
  EXPECT_FALSE(again.system(0).has_log_determinant());
  request.mutable_options()->set_log_determinant(true);
  EXPECT_NEAR(Factor(request).system(1).log_determinant(),
              DenseCholesky(matrix.view()).LogDeterminant(), 1e-8);
  request.mutable_options()->set_keep_matrix(true);
  const auto refused = DetailOf<v1::InvalidField>(FactorStatus(request));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->field(), "options.keep_matrix");
}

TEST_F(SolveTest, ManyCallersOfOneHandleAllGetTheirOwnAnswers) {
  const problems::Problem problem = RandomSpd(40, 16, 1, 100);
  const HostMatrix matrix(problem, Scalar::kFloat64);
  const std::string handle = Factor(matrix);
  constexpr int kCalls = 64;
  struct Call {
    grpc::ClientContext context;
    v1::SolveRequest request;
    v1::SolveReply reply;
    std::vector<double> rhs;
    grpc::Status status;
  };
  std::vector<Call> calls(kCalls);
  std::atomic<int> finished{0};
  for (int i = 0; i < kCalls; ++i) {
    calls[i].rhs = RandomColumns(problem.rows(), 1 + i % 3, i);
    calls[i].request.set_handle(handle);
    calls[i].request.set_num_rhs(1 + i % 3);
    calls[i].request.set_rhs(BytesOf(calls[i].rhs));
    stub().async()->Solve(&calls[i].context, &calls[i].request, &calls[i].reply,
                          [&, i](grpc::Status status) {
                            calls[i].status = std::move(status);
                            ++finished;
                          });
  }
  ASSERT_TRUE(Eventually([&] { return finished == kCalls; }));
  for (const Call& call : calls) {
    ASSERT_TRUE(IsOk(call.status));
    ExpectSolves(matrix, ValuesOf(call.reply.solution()), call.rhs);
  }
}

class ServingQueuesTest : public IntegrationTest {};

// Connections go to the queues in turn: one of them, of one thread, and another of two, are not
// less.
TEST_F(ServingQueuesTest, EachServesItsConnectionsAndAllDrain) {
  server::ServerOptions options = Options();
  options.serving_threads = 3;
  options.serving_queues = 2;
  Start(options);
  const problems::Problem problem = RandomSpd(40, 16, 1, 100);
  const HostMatrix matrix(problem, Scalar::kFloat64);
  const std::string handle = Factor(matrix);
  const std::vector<double> expected = Solve(handle, problem.rhs);
  constexpr int kConnections = 6, kCalls = 50;
  std::vector<std::thread> callers;
  for (int i = 0; i < kConnections; ++i) {
    callers.emplace_back([&] {
      const auto own = v1::Solver::NewStub(NewChannel());
      for (int call = 0; call < kCalls; ++call) {
        v1::SolveReply reply;
        v1::SolveRequest request;
        request.set_handle(handle);
        request.set_num_rhs(1);
        request.set_rhs(BytesOf(problem.rhs));
        ASSERT_TRUE(IsOk(own->Solve(NewContext().get(), request, &reply)));
        EXPECT_EQ(ValuesOf(reply.solution()), expected);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(server().Drain());
}

}  // namespace
}  // namespace blockd::test
