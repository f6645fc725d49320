#include "blockd/client/solver_client.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/client/server_fixture.h"

namespace blockd::client {
namespace {

class SolverClientTest : public ServerTest {
 protected:
  void SetUp() override { StartServer(); }
};

std::vector<float> ToFloat(const std::vector<double>& from) { return {from.begin(), from.end()}; }

TEST_F(SolverClientTest, FactorsAndSolves) {
  const problems::Problem problem = problems::RandomSpd(20, 6, 1, 1000);
  const SolverClient client = Connect();
  const auto factored =
      client.Factor(View(problem), {.keep_matrix = true, .log_determinant = true});
  ASSERT_TRUE(factored.ok()) << factored.status();
  EXPECT_GT(factored->factor_bytes, 0);
  ASSERT_TRUE(factored->log_determinant.has_value());
  EXPECT_TRUE(std::isfinite(*factored->log_determinant));
  std::vector<double> once(problem.rhs.size());
  const auto both = client.FactorSolve(View(problem), problem.rhs, once, {}, {});
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_FALSE(both->log_determinant.has_value());
  std::vector<double> x(problem.rows());
  const auto solved = client.Solve(factored->handle, problem.rhs, x, {.residual = true});
  ASSERT_TRUE(solved.ok()) << solved.status();
  EXPECT_LT(problems::BackwardError(problem, x, problem.rhs, 1), 1e-14);
  EXPECT_LT(solved->backward_error, 1e-14);
  EXPECT_GE(solved->cost.batch_requests(), 1);
}

TEST_F(SolverClientTest, AllFormsAndScalarsGiveTheSameSolution) {
  const problems::Problem problem =
      problems::KalmanPalette({.states = 5, .observations = 8, .steps = 12});
  const problems::Problem full = problems::Expand(problem);
  const SolverClient client = Connect();
  std::vector<double> expected(problem.rows()), x(problem.rows());
  ASSERT_TRUE(client.FactorSolve(View(full), problem.rhs, expected).ok());
  EXPECT_LT(problems::BackwardError(problem, expected, problem.rhs, 1), 1e-14);

  // The palette.
  ASSERT_TRUE(client.FactorSolve(View(problem), problem.rhs, x).ok());
  EXPECT_LT(problems::BackwardError(problem, x, problem.rhs, 1), 1e-14);

  // Packed lower triangles, and transposed coupling blocks.
  std::vector<double> packed, upper(full.coupling.size());
  for (int64_t i = 0; i < 12; ++i) {
    for (int64_t c = 0; c < 5; ++c) {
      for (int64_t r = c; r < 5; ++r) packed.push_back(full.DiagonalBlock(i)[c * 5 + r]);
      for (int64_t r = 0; i < 11 && r < 5; ++r) {
        upper[i * 25 + r * 5 + c] = full.CouplingBlock(i)[c * 5 + r];
      }
    }
  }
  SystemView view = MakeSystemView(12, 5, packed.data(), upper.data());
  view.diagonal_form = DiagonalForm::kPackedLower;
  view.coupling_form = CouplingForm::kSuperdiagonal;
  ASSERT_TRUE(client.FactorSolve(view, problem.rhs, x).ok());
  EXPECT_LT(problems::BackwardError(problem, x, problem.rhs, 1), 1e-14);

  // float32
  const std::vector<float> diagonal = ToFloat(full.diagonal), coupling = ToFloat(full.coupling),
                           rhs = ToFloat(full.rhs);
  std::vector<float> solution(problem.rows());
  const auto single =
      client.FactorSolve(MakeSystemView(12, 5, diagonal.data(), coupling.data()), rhs, solution);
  ASSERT_TRUE(single.ok()) << single.status();
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(solution[i], expected[i], 1e-4);
}

TEST_F(SolverClientTest, LargeSystemsAndSolutionsGoAsStreams) {
  const problems::Problem problem = problems::RandomSpd(40, 16, 1, 100);
  const SolverClient client = Connect({.stream_threshold_bytes = 1000, .chunk_bytes = 70000});
  const auto factored = client.Factor(View(problem));
  ASSERT_TRUE(factored.ok()) << factored.status();
  const std::vector<double> b = problems::RandomColumns(problem.rows(), 50, 2);  // 256 000 bytes
  std::vector<double> x(b.size());
  ASSERT_TRUE(client.Solve(factored->handle, b, x).ok());
  EXPECT_LT(problems::BackwardError(problem, x, b, 50), 1e-14);

  std::fill(x.begin(), x.end(), 0);
  absl::Notification done;
  absl::Status status;
  client.SolveAsync(factored->handle, b, x, {}, [&](absl::StatusOr<SolveResult> result) {
    status = result.status();
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_LT(problems::BackwardError(problem, x, b, 50), 1e-14);

  std::fill(x.begin(), x.end(), 0);
  ASSERT_TRUE(client.FactorSolve(View(problem), b, x, {.residual = true}).ok());
  EXPECT_LT(problems::BackwardError(problem, x, b, 50), 1e-14);
}

TEST_F(SolverClientTest, HandlesReleaseThemselves) {
  const problems::Problem problem = problems::Poisson(4, 4);
  const SolverClient client = Connect();
  {
    auto first = client.Factor(View(problem));
    auto second = client.Factor(View(problem));
    ASSERT_TRUE(first.ok() && second.ok());
    FactorHandle moved = std::move(first->handle);
    EXPECT_TRUE(first->handle.empty());
    EXPECT_EQ(client.List()->size(), 2);
    moved = std::move(second->handle);  // gives the first one back
    EXPECT_TRUE(client.AwaitReleases(absl::Seconds(60)));
    EXPECT_EQ(client.List()->size(), 1);
  }
  EXPECT_TRUE(client.AwaitReleases(absl::Seconds(60)));
  EXPECT_EQ(client.List()->size(), 0);
}

TEST_F(SolverClientTest, ADetachedHandleStaysAndCanBeAdopted) {
  const problems::Problem problem = problems::Poisson(4, 4);
  const SolverClient client = Connect();
  Factorization name;
  {
    auto factored = client.Factor(View(problem));
    ASSERT_TRUE(factored.ok());
    name = factored->handle.Detach();
  }
  ASSERT_TRUE(client.AwaitReleases(absl::Seconds(60)));
  const auto info = client.Get(name.handle);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->num_blocks(), 4);
  FactorHandle adopted = client.Adopt(name);
  EXPECT_TRUE(adopted.Release().ok());
  EXPECT_TRUE(adopted.empty());
  EXPECT_TRUE(adopted.Release().ok());
  EXPECT_TRUE(absl::IsNotFound(client.Get(name.handle).status()));
}

TEST_F(SolverClientTest, AHandleMayOutliveItsClient) {
  FactorHandle handle;
  {
    auto factored = Connect().Factor(View(problems::Poisson(4, 4)));
    ASSERT_TRUE(factored.ok());
    handle = std::move(factored->handle);
  }
  EXPECT_TRUE(handle.Release().ok());
  EXPECT_EQ(Connect().List()->size(), 0);
}

TEST_F(SolverClientTest, NotPositiveDefiniteSaysWhere) {
  problems::Problem problem = problems::Poisson(5, 3);
  problem.diagonal[3 * 9 + 4] = -1;  // block 3, row 1
  const absl::Status status = Connect().Factor(View(problem)).status();
  const auto detail = GetNotPositiveDefinite(status);
  ASSERT_TRUE(detail.has_value()) << status;
  EXPECT_EQ(detail->block(), 3);
  EXPECT_EQ(detail->row(), 1);
  EXPECT_EQ(detail->minor(), 3 * 3 + 1 + 1);
}

TEST_F(SolverClientTest, OneBadSystemOfABatchHarmsNoOther) {
  const problems::Problem good = problems::Poisson(5, 3);
  problems::Problem bad = good;
  bad.diagonal[0] = -1;
  const SystemView systems[] = {View(good), View(bad), View(good)};
  const SolverClient client = Connect();
  const auto batch = client.FactorBatch(systems);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_TRUE(batch->systems[0].status.ok());
  ASSERT_TRUE(GetNotPositiveDefinite(batch->systems[1].status).has_value());
  EXPECT_EQ(GetNotPositiveDefinite(batch->systems[1].status)->system(), 1);
  EXPECT_TRUE(batch->systems[1].handle.empty());
  std::vector<double> x(good.rows());
  EXPECT_TRUE(client.Solve(batch->systems[2].handle, good.rhs, x).ok());
}

TEST_F(SolverClientTest, RefactorKeepsTheHandle) {
  const problems::Problem before = problems::RandomSpd(5, 3, 1, 10);
  const problems::Problem after = problems::RandomSpd(5, 3, 2, 10);
  problems::Problem bad = after;
  bad.diagonal[0] = -1;
  const SolverClient client = Connect();
  const auto factored = client.Factor(View(before));
  ASSERT_TRUE(factored.ok());
  std::vector<double> x(before.rows());
  ASSERT_TRUE(client.Refactor(factored->handle, View(after)).ok());
  ASSERT_TRUE(client.Solve(factored->handle, after.rhs, x).ok());
  EXPECT_LT(problems::BackwardError(after, x, after.rhs, 1), 1e-14);
  const absl::Status failed = client.Refactor(factored->handle, View(bad)).status();
  EXPECT_TRUE(GetNotPositiveDefinite(failed).has_value()) << failed;
  ASSERT_TRUE(client.Solve(factored->handle, after.rhs, x).ok());  // the old one is in force
  EXPECT_LT(problems::BackwardError(after, x, after.rhs, 1), 1e-14);
  EXPECT_FALSE(client.Refactor(factored->handle, View(after), {.idempotency_key = "k"}).ok());
}

TEST_F(SolverClientTest, AReleasedHandleSaysSo) {
  const problems::Problem problem = problems::Poisson(4, 4);
  const SolverClient client = Connect();
  auto factored = client.Factor(View(problem));
  ASSERT_TRUE(factored.ok());
  const Factorization name = factored->handle.get();
  const std::string handles[] = {name.handle};
  const auto released = client.Release(handles);
  ASSERT_TRUE(released.ok()) << released.status();
  EXPECT_GT(*released, 0);
  std::vector<double> x(problem.rows());
  const auto detail = GetHandleNotFound(client.Solve(name, problem.rhs, x).status());
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->reason(), v1::HandleNotFound::RELEASED);
}

TEST_F(SolverClientTest, CallersDoNotSeeEachOther) {
  const SolverClient ada = Connect({.caller = "ada"}), grace = Connect({.caller = "grace"});
  const auto factored = ada.Factor(View(problems::Poisson(4, 4)));
  ASSERT_TRUE(factored.ok());
  EXPECT_EQ(ada.List()->size(), 1);
  EXPECT_EQ(grace.List()->size(), 0);
  const auto detail = GetHandleNotFound(grace.Get(factored->handle.get().handle).status());
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->reason(), v1::HandleNotFound::NEVER_EXISTED);
}

TEST_F(SolverClientTest, TheSameKeyFindsTheSameFactorization) {
  const problems::Problem problem = problems::Poisson(4, 4);
  const SolverClient client = Connect();
  const auto first = client.Factor(View(problem), {.idempotency_key = "week 12"});
  auto second = client.Factor(View(problem), {.idempotency_key = "week 12"});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_FALSE(first->found);
  EXPECT_TRUE(second->found);
  EXPECT_EQ(first->handle.get().handle, second->handle.get().handle);
  EXPECT_FALSE(second->log_determinant.has_value());
  second->handle.Detach();
  auto third =
      client.Factor(View(problem), {.log_determinant = true, .idempotency_key = "week 12"});
  ASSERT_TRUE(third.ok());
  EXPECT_TRUE(third->log_determinant.has_value());
  third->handle.Detach();
}

TEST_F(SolverClientTest, WrongArgumentsAreNamed) {
  const problems::Problem problem = problems::Poisson(4, 4);
  const SolverClient client = Connect();
  const auto factored = client.Factor(View(problem));
  ASSERT_TRUE(factored.ok());
  std::vector<double> short_x(3), x(problem.rows());
  std::vector<float> float_x(problem.rows());
  EXPECT_TRUE(GetInvalidField(client.Solve(factored->handle, problem.rhs, short_x).status()));
  EXPECT_TRUE(GetInvalidField(client.Solve(factored->handle, float_x, float_x).status()));
  // The server's own: an index beyond the palette.
  const std::vector<uint32_t> index = {0, 7, 0, 0}, coupling_index = {0, 0, 0};
  SystemView view = View(problem);
  view.num_diagonal = 1;
  view.num_coupling = 1;
  view.diagonal_index = index;
  view.coupling_index = coupling_index;
  const absl::Status status = client.Factor(view).status();
  EXPECT_TRUE(GetInvalidField(status).has_value()) << status;
  EXPECT_TRUE(absl::IsFailedPrecondition(
      client.Solve(factored->handle, problem.rhs, x, {.residual = true}).status()));
}

TEST_F(SolverClientTest, ManyThreadsShareOneClient) {
  const problems::Problem problem = problems::RandomSpd(16, 4, 1, 100);
  const SolverClient client = Connect();
  const auto factored = client.Factor(View(problem));
  ASSERT_TRUE(factored.ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const std::vector<double> b = problems::RandomColumns(problem.rows(), 1, t);
      std::vector<double> x(problem.rows());
      for (int k = 0; k < 25; ++k) {
        ASSERT_TRUE(client.Solve(factored->handle, b, x).ok());
        EXPECT_LT(problems::BackwardError(problem, x, b, 1), 1e-14);
        const auto own = client.Factor(View(problem));
        EXPECT_TRUE(own.ok()) << own.status();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(client.AwaitReleases(absl::Seconds(60)));
  EXPECT_EQ(client.List()->size(), 1);
}

TEST_F(SolverClientTest, TheServerSaysWhatItIs) {
  const SolverClient client = Connect();
  EXPECT_TRUE(client.WaitUntilConnected(absl::Seconds(60)));
  EXPECT_TRUE(client.CheckHealth().ok());
  const auto info = client.ServerInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->backend(), "cpu");
  EXPECT_EQ(info->memory_bytes(), int64_t{256} << 20);
}

TEST_F(ServerTest, WhatDoesNotFitSaysByHowMuch) {
  StartServer(1 << 20);
  const problems::Problem problem = problems::Poisson(64, 64);  // 4 MiB
  for (const int64_t threshold : {int64_t{1} << 10, int64_t{1} << 30}) {
    const absl::Status status =
        Connect({.stream_threshold_bytes = threshold}).Factor(View(problem)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    const auto detail = GetInsufficientMemory(status);
    ASSERT_TRUE(detail.has_value());
    EXPECT_GT(detail->asked_bytes(), detail->total_bytes());
  }
}

}  // namespace
}  // namespace blockd::client
