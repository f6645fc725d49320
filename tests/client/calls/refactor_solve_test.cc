// RefactorSolve and RefactorSolveMany: the answers of a Refactor and a Solve, what heals, what
// fails alone.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/client/refactor_fixture.h"
#include "tests/client/server_fixture.h"

namespace blockd::client {
namespace {

class RefactorSolveTest : public ServerTest {
 protected:
  void SetUp() override {
    StartServer();
    if (!HasFatalFailure()) client_.emplace(Connect());
  }
  void TearDown() override {
    owned_.clear();
    if (client_) client_->AwaitReleases(absl::Seconds(60));
    ServerTest::TearDown();
  }
  Factorization Held(const FactorOptions& options = {}) {
    absl::StatusOr<FactorResult> factored = client_->Factor(View(before_), options);
    EXPECT_TRUE(factored.ok()) << factored.status();
    owned_.push_back(std::move(factored->handle));
    return owned_.back();
  }
  std::vector<double> SolutionOf(const Factorization& handle, const std::vector<double>& b) {
    std::vector<double> x(b.size());
    EXPECT_TRUE(client_->Solve(handle, b, x).ok());
    return x;
  }

  const problems::Problem before_ = problems::RandomSpd(16, 4, 1, 100),
                          after_ = problems::RandomSpd(16, 4, 2, 100),
                          third_ = problems::RandomSpd(16, 4, 3, 100);
  const std::vector<double> b_ = problems::RandomColumns(64, 2, 7);
  std::optional<SolverClient> client_;
  std::vector<FactorHandle> owned_;
};

TEST_F(RefactorSolveTest, HasTheAnswersOfARefactorAndASolve) {
  const Factorization fused = Held(), apart = Held();
  std::vector<double> x(b_.size());
  const auto solved = client_->RefactorSolve(fused, View(after_), b_, x, {.residual = true},
                                             {.keep_matrix = true, .log_determinant = true});
  ASSERT_TRUE(solved.ok()) << solved.status();
  EXPECT_TRUE(solved->matrix_kept);
  EXPECT_LT(solved->backward_error.value_or(1), 1e-14);
  EXPECT_GE(solved->growth, 1);
  ASSERT_TRUE(client_->Refactor(apart, View(after_)).ok());
  EXPECT_EQ(x, SolutionOf(apart, b_));
  EXPECT_EQ(SolutionOf(fused, b_), SolutionOf(apart, b_));
}

TEST_F(RefactorSolveTest, ALargeOneIsARefactorAndASolve) {
  const SolverClient streaming = Connect({.stream_threshold_bytes = 1000});
  const Factorization handle = Held();
  std::vector<double> x(b_.size());
  const auto solved =
      streaming.RefactorSolve(handle, View(after_), b_, x, {.residual = true}, {.pin = true});
  ASSERT_TRUE(solved.ok()) << solved.status();
  EXPECT_LT(problems::BackwardError(after_, x, b_, 2), 1e-14);
  EXPECT_TRUE(solved->backward_error.has_value());
  EXPECT_FALSE(client_->Get(handle.handle)->pinned());
}

TEST_F(RefactorSolveTest, AFailureLeavesTheOldFactors) {
  const Factorization handle = Held();
  problems::Problem bad = after_;
  bad.diagonal[0] = -1;
  std::vector<double> x(b_.size());
  const absl::Status status = client_->RefactorSolve(handle, View(bad), b_, x).status();
  EXPECT_TRUE(GetNotPositiveDefinite(status).has_value()) << status;
  EXPECT_LT(problems::BackwardError(before_, SolutionOf(handle, b_), b_, 2), 1e-14);
  const problems::Problem other = problems::RandomSpd(8, 8, 1, 100);
  EXPECT_TRUE(GetInvalidField(client_->RefactorSolve(handle, View(other), b_, x).status()));
  std::vector<double> wrong(3);
  EXPECT_TRUE(GetInvalidField(client_->RefactorSolve(handle, View(after_), b_, wrong).status()));
}

TEST_F(RefactorSolveTest, ManyHaveTheAnswersOfARefactorOfAll) {
  std::vector<Factorization> fused, apart;
  const std::vector<SystemView> systems = {View(after_), View(third_), View(before_)};
  std::vector<double> b;
  for (size_t i = 0; i < systems.size(); ++i) {
    fused.push_back(Held());
    apart.push_back(Held());
    const std::vector<double> own = problems::RandomColumns(64, 2, static_cast<int>(i));
    b.insert(b.end(), own.begin(), own.end());
  }
  std::vector<double> x(b.size(), 7);
  const auto solved = client_->RefactorSolveMany(fused, systems, b, x);
  ASSERT_TRUE(solved.ok()) << solved.status();
  ASSERT_EQ(solved->solves.size(), 3u);
  EXPECT_TRUE(solved->FirstFailure().ok()) << solved->FirstFailure();
  EXPECT_GE(solved->solves[1].growth, 1);
  EXPECT_FALSE(solved->solves[1].matrix_kept);
  ASSERT_TRUE(client_->RefactorBatch(apart, systems).ok());
  for (size_t i = 0; i < systems.size(); ++i) {
    const std::vector<double> own(b.begin() + static_cast<std::ptrdiff_t>(i) * 128,
                                  b.begin() + static_cast<std::ptrdiff_t>(i + 1) * 128);
    const std::vector<double> y = SolutionOf(apart[i], own);
    EXPECT_EQ(std::memcmp(y.data(), x.data() + i * 128, 128 * sizeof(double)), 0);
    EXPECT_EQ(SolutionOf(fused[i], own), y);
  }
}

TEST_F(RefactorSolveTest, OfManyEachFailsByItself) {
  problems::Problem bad = after_;
  bad.diagonal[0] = -1;
  const std::vector<Factorization> handles = {Held(), Held()};
  const std::vector<SystemView> systems = {View(bad), View(third_)};
  const std::vector<double> b = problems::RandomColumns(128, 1, 3);
  std::vector<double> x(b.size(), 7);
  const auto solved = client_->RefactorSolveMany(handles, systems, b, x);
  ASSERT_TRUE(solved.ok()) << solved.status();
  EXPECT_TRUE(GetNotPositiveDefinite(solved->solves[0].status).has_value());
  EXPECT_TRUE(solved->solves[1].status.ok());
  EXPECT_EQ(std::vector<double>(x.begin(), x.begin() + 64), std::vector<double>(64, 0));
  const std::vector<double> second(b.begin() + 64, b.end());
  EXPECT_EQ(SolutionOf(handles[1], second), std::vector<double>(x.begin() + 64, x.end()));
}

TEST_F(RefactorSolveTest, RefusesManyThatDoNotAgree) {
  const std::vector<Factorization> handles = {Held(), Held()};
  const std::vector<SystemView> systems = {View(after_), View(third_)};
  std::vector<double> b(128), x(128), odd(100);
  EXPECT_TRUE(GetInvalidField(client_->RefactorSolveMany({}, {}, b, x).status()));
  EXPECT_TRUE(GetInvalidField(
      client_->RefactorSolveMany(handles, std::span(systems).first(1), b, x).status()));
  EXPECT_TRUE(GetInvalidField(client_->RefactorSolveMany(handles, systems, odd, x).status()));
  EXPECT_TRUE(GetInvalidField(client_->RefactorSolveMany(handles, systems, b, odd).status()));
  const std::vector<float> single(128);
  std::vector<float> y(128);
  EXPECT_TRUE(GetInvalidField(client_->RefactorSolveMany(handles, systems, single, y).status()));
}

using HealingRefactorSolveTest = HealingRefactorTest;

TEST_F(HealingRefactorSolveTest, NewValuesAreThoseThatAreRestoredFromThenOn) {
  const SolverClient client = Connect();
  const FactorHandle handle = Factor(client, {.keep_copy = true});
  const std::vector<double> b = {8};
  std::vector<double> x = {0};
  Lose(v1::HandleNotFound::EVICTED);
  ASSERT_TRUE(client.RefactorSolve(handle, System(kFour), b, x).ok());
  EXPECT_EQ(x[0], 2);
  EXPECT_EQ(factored(), 2);  // first with the old values, then in place
  Lose(v1::HandleNotFound::EVICTED);
  EXPECT_EQ(Solve(client, handle).value_or(0), 2);
  EXPECT_EQ(handle.restore_counters().restores, 2);
}

TEST_F(HealingRefactorSolveTest, OfManyThoseThatHealAreSentAgain) {
  const SolverClient client = Connect();
  const FactorHandle lost = Factor(client, {.keep_copy = true});
  Lose(v1::HandleNotFound::EVICTED);
  const FactorHandle held = Factor(client, {.keep_copy = true});
  const std::vector<Factorization> handles = {lost, held};
  const std::vector<SystemView> systems = {System(kFour), System(kTwo)};
  const std::vector<double> b = {8, 8};
  std::vector<double> x = {0, 0};
  const auto solved = client.RefactorSolveMany(handles, systems, b, x);
  ASSERT_TRUE(solved.ok()) << solved.status();
  EXPECT_TRUE(solved->FirstFailure().ok()) << solved->FirstFailure();
  EXPECT_EQ(x, (std::vector<double>{2, 4}));
  Lose(v1::HandleNotFound::EVICTED);
  EXPECT_EQ(Solve(client, lost).value_or(0), 2);
  EXPECT_EQ(Solve(client, held).value_or(0), 4);
}

TEST_F(HealingRefactorSolveTest, OneThatDoesNotHealSaysWhatItMet) {
  const SolverClient client = Connect();
  const FactorHandle handle = Factor(client, {});
  const std::vector<double> b = {8};
  std::vector<double> x = {0};
  Lose(v1::HandleNotFound::EVICTED);
  EXPECT_TRUE(absl::IsNotFound(client.RefactorSolve(handle, System(kFour), b, x).status()));
  EXPECT_EQ(x[0], 0);
}

}  // namespace
}  // namespace blockd::client
