// FactorSolve with a handle, and FactorSolveMany, over a real socket.
#include <string>
#include <vector>

#include "tests/integration/calls/refactor_requests.h"
#include "tests/support/eventually.h"

namespace blockd::test {
namespace {

using problems::RandomColumns;
using problems::RandomSpd;

class RefactorSolveTest : public IntegrationTest {
 protected:
  void SetUp() override { Start(); }

  static HostMatrix Matrix(int seed, int64_t blocks = 12, int64_t size = 4) {
    return HostMatrix(RandomSpd(blocks, size, seed, 100), Scalar::kFloat64);
  }
  static std::vector<double> Rhs(int seed, int64_t num_rhs = 1) {
    return RandomColumns(48, num_rhs, seed);
  }
  static v1::FactorSolveRequest Step(const std::string& handle, const HostMatrix& matrix,
                                     const std::vector<double>& rhs) {
    v1::FactorSolveRequest request;
    *request.mutable_spec() = SpecOf(matrix);
    *request.mutable_system() = DataOf(matrix);
    request.set_num_rhs(static_cast<int64_t>(rhs.size()) / 48);
    request.set_rhs(BytesOf(rhs));
    request.set_handle(handle);
    return request;
  }
  grpc::Status Call(const v1::FactorSolveRequest& request, v1::FactorSolveReply* reply = nullptr,
                    const std::string& caller = "") {
    v1::FactorSolveReply unused;
    return stub().FactorSolve(NewContext(caller).get(), request, reply ? reply : &unused);
  }
  grpc::Status CallMany(const v1::FactorSolveManyRequest& request,
                        v1::SolveManyReply* reply = nullptr, const std::string& caller = "") {
    v1::SolveManyReply unused;
    return stub().FactorSolveMany(NewContext(caller).get(), request, reply ? reply : &unused);
  }
  // Checks that a Solve with the handle now uses `matrix`.
  void ExpectHolds(const std::string& handle, const HostMatrix& matrix) {
    ExpectSolves(matrix, Solve(handle, Rhs(9)), Rhs(9));
  }
};

TEST_F(RefactorSolveTest, NewValuesAndASolutionInOneCall) {
  const HostMatrix before = Matrix(1), after = Matrix(2);
  const std::string fused = Factor(before), apart = Factor(before);
  v1::FactorSolveRequest request = Step(fused, after, Rhs(3, 2));
  request.mutable_options()->set_residual(true);
  request.set_log_determinant(true);
  request.set_keep_matrix(true);
  v1::FactorSolveReply reply;
  ASSERT_TRUE(IsOk(Call(request, &reply)));
  EXPECT_TRUE(reply.matrix_kept());
  EXPECT_LT(reply.backward_error(), 1e-14);
  EXPECT_TRUE(reply.has_log_determinant());
  EXPECT_GT(reply.growth(), 0);
  EXPECT_EQ(reply.cost().batch_items(), 1);
  v1::FactorRequest refactor = FactorRequestOf(after);
  refactor.mutable_options()->add_handle(apart);
  Factor(refactor);
  EXPECT_EQ(reply.solution(), BytesOf(Solve(apart, Rhs(3, 2), 2)));
  EXPECT_EQ(Solve(fused, Rhs(4)), Solve(apart, Rhs(4)));
  EXPECT_EQ(Metric("blockd_factorizations"), 2);
  EXPECT_TRUE(Eventually([&] { return Ended("FactorSolve", "OK") == 1; }));
}

TEST_F(RefactorSolveTest, AFailureLeavesTheOldFactors) {
  const HostMatrix before = Matrix(1), other = Matrix(2, 6, 8);
  HostMatrix bad = Matrix(3);
  bad.SetDiagonal(7, 0, 0, -1);
  const std::string handle = Factor(before);
  EXPECT_TRUE(DetailOf<v1::NotPositiveDefinite>(Call(Step(handle, bad, Rhs(1)))));
  EXPECT_TRUE(IsInvalid(Call(Step(handle, other, Rhs(1))), "spec"));
  EXPECT_TRUE(IsInvalid(Call(Step("short", before, Rhs(1))), "handle"));
  EXPECT_TRUE(IsNotFound(Call(Step(handle, Matrix(4), Rhs(1)), nullptr, "mallory"),
                         v1::HandleNotFound::NEVER_EXISTED));
  ExpectHolds(handle, before);
  v1::FactorSolveRequest overwrite = Step(handle, bad, Rhs(1));
  overwrite.set_overwrite(true);
  EXPECT_TRUE(DetailOf<v1::NotPositiveDefinite>(Call(overwrite)));
  EXPECT_TRUE(IsNotFound(Call(Step(handle, before, Rhs(1))), v1::HandleNotFound::FAILED_REFACTOR));
  EXPECT_TRUE(Eventually([&] { return ReservedBytes() == 0; }));
}

TEST_F(RefactorSolveTest, ManyHaveTheBitsOfARefactorOfAllAndOfSolves) {
  std::vector<std::string> fused, apart;
  const std::vector<HostMatrix> matrices = {Matrix(11), Matrix(12), Matrix(13)};
  for (size_t i = 0; i < matrices.size(); ++i) {
    fused.push_back(Factor(Matrix(1)));
    apart.push_back(Factor(Matrix(1)));
  }
  v1::SolveManyReply reply;
  ASSERT_TRUE(IsOk(CallMany(FactorSolveManyOf(fused, matrices, 2), &reply)));
  EXPECT_EQ(reply.failure_size(), 0);
  EXPECT_EQ(reply.growth_size(), 3);
  EXPECT_EQ(reply.matrix_kept_size(), 0);
  EXPECT_EQ(reply.cost().batch_items(), 3);
  v1::FactorRequest refactor = FactorRequestOf(matrices[0]);
  refactor.clear_system();
  for (size_t i = 0; i < matrices.size(); ++i) {
    *refactor.add_system() = DataOf(matrices[i]);
    refactor.mutable_options()->add_handle(apart[i]);
  }
  Factor(refactor);
  std::string solutions;
  for (size_t i = 0; i < matrices.size(); ++i) {
    solutions += BytesOf(Solve(apart[i], Rhs(static_cast<int>(i), 2), 2));
    ExpectHolds(fused[i], matrices[i]);
  }
  EXPECT_TRUE(reply.solution() == solutions);
  EXPECT_TRUE(Eventually([&] { return Ended("FactorSolveMany", "OK") == 1; }));
  // Its phases have its own name, too.
  EXPECT_GE(Metric("blockd_request_seconds_count", "method=\"FactorSolveMany\",phase=\"compute\""),
            1);
}

// Time-invariant systems: each sends its few distinct blocks, whatever N is.
TEST_F(RefactorSolveTest, ManyMaySharePositionsOfAPalette) {
  const auto matrix = [](uint64_t seed) {
    return HostMatrix(
        problems::KalmanPalette({.states = 4, .observations = 8, .steps = 12, .seed = seed}),
        Scalar::kFloat64, {.palette = true});
  };
  const std::vector<HostMatrix> matrices = {matrix(1), matrix(2)};
  const std::vector<std::string> handles = {Factor(Matrix(1)), Factor(Matrix(2))};
  const v1::FactorSolveManyRequest request = FactorSolveManyOf(handles, matrices);
  ASSERT_TRUE(request.spec().has_palette());
  v1::SolveManyReply reply;
  ASSERT_TRUE(IsOk(CallMany(request, &reply)));
  ASSERT_EQ(reply.failure_size(), 0) << reply.ShortDebugString();
  const size_t bytes = 48 * sizeof(double);
  for (size_t i = 0; i < 2; ++i) {
    ExpectSolves(matrices[i], ValuesOf(reply.solution().substr(i * bytes, bytes)),
                 Rhs(static_cast<int>(i)));
    ExpectHolds(handles[i], matrices[i]);
  }
}

TEST_F(RefactorSolveTest, OfManyEachFailsByItself) {
  const HostMatrix before = Matrix(1);
  HostMatrix bad = Matrix(3);
  bad.SetDiagonal(7, 0, 0, -1);
  const std::vector<std::string> handles = {Factor(before), Factor(before), Factor(before)};
  ASSERT_TRUE(IsOk(ReleaseStatus({handles[2]})));
  v1::SolveManyReply reply;
  ASSERT_TRUE(IsOk(CallMany(FactorSolveManyOf(handles, {Matrix(5), bad, Matrix(6)}), &reply)));
  ASSERT_EQ(reply.failure_size(), 2) << reply.ShortDebugString();
  EXPECT_EQ(reply.failure(0).solve(), 1);
  const auto where = DetailOf<v1::NotPositiveDefinite>(reply.failure(0).status());
  ASSERT_TRUE(where);
  EXPECT_EQ(where->system(), 1);
  EXPECT_EQ(reply.failure(1).solve(), 2);
  EXPECT_TRUE(DetailOf<v1::HandleNotFound>(reply.failure(1).status()));
  const size_t bytes = 48 * sizeof(double);
  EXPECT_EQ(reply.solution().substr(bytes), std::string(2 * bytes, '\0'));
  EXPECT_EQ(reply.growth(1), 0);
  ExpectHolds(handles[0], Matrix(5));
  ExpectHolds(handles[1], before);
}

TEST_F(RefactorSolveTest, ManyThatDoNotAgreeAreRefusedAndTheFieldIsNamed) {
  const std::vector<std::string> handles = {Factor(Matrix(1)), Factor(Matrix(1))};
  const v1::FactorSolveManyRequest good = FactorSolveManyOf(handles, {Matrix(2), Matrix(3)});
  v1::FactorSolveManyRequest wrong = good;
  wrong.clear_handle();
  EXPECT_TRUE(IsInvalid(CallMany(wrong), "handle"));
  wrong = good;
  wrong.set_handle(1, handles[0]);
  EXPECT_TRUE(IsInvalid(CallMany(wrong), "handle"));
  wrong.set_handle(1, "short");
  EXPECT_TRUE(IsInvalid(CallMany(wrong), "handle[1]"));
  wrong = good;
  wrong.mutable_matrix()->pop_back();
  EXPECT_TRUE(IsInvalid(CallMany(wrong), "matrix"));
  wrong = good;
  wrong.set_num_rhs(2);
  EXPECT_TRUE(IsInvalid(CallMany(wrong), "rhs"));
  wrong.set_num_rhs(-1);
  EXPECT_TRUE(IsInvalid(CallMany(wrong), "num_rhs"));
  wrong.set_num_rhs(int64_t{1} << 60);
  EXPECT_TRUE(IsInvalid(CallMany(wrong), "num_rhs"));
  wrong = good;
  wrong.mutable_spec()->set_num_blocks(int64_t{1} << 36);
  EXPECT_FALSE(CallMany(wrong).ok());
  wrong = good;
  wrong.set_accuracy(static_cast<v1::Accuracy>(9));
  EXPECT_TRUE(IsInvalid(CallMany(wrong), "accuracy"));
  wrong = good;
  wrong.mutable_options()->set_priority(v1::REALTIME);
  EXPECT_TRUE(IsOk(CallMany(wrong)));  // the call has a deadline
  for (const std::string& handle : handles) EXPECT_EQ(Solve(handle, Rhs(1)).size(), 48u);
  EXPECT_TRUE(Eventually([&] { return HostBytes() == 0; }));
}

TEST_F(RefactorSolveTest, RefusesMoreSystemsThanARequestMayHave) {
  TearDown();
  server::ServerOptions options = Options();
  options.core.max_systems = 1;
  Start(options);
  const std::vector<std::string> handles = {Factor(Matrix(1)), Factor(Matrix(1))};
  EXPECT_FALSE(CallMany(FactorSolveManyOf(handles, {Matrix(2), Matrix(3)})).ok());
  ExpectHolds(handles[0], Matrix(1));
}

}  // namespace
}  // namespace blockd::test
