// Calls on one backend, one after another: what one leaves behind, on the device or of what the
// backend remembers of plans, changes nothing for those that follow.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/solver_fixture.h"

namespace blockd::test {
namespace {

class RepeatedCallsTest : public SolverTest {
 protected:
  Columns Answer(const HostMatrix& matrix, const PlanPtr& plan) const {
    const auto factorization = MustFactor(solver(), matrix, plan);
    return MustSolve(solver(), factorization,
                     Columns(problems::RandomColumns(matrix.shape().rows(), 1, 1), scalar()), 1);
  }
};

TEST_P(RepeatedCallsTest, AFailedFactorizationHarmsNoneAfterIt) {
  for (const int64_t n : {5, 40, 65, 130, 200}) {
    const int64_t num_blocks = n > 64 ? 5 : 12;
    const problems::Problem problem = problems::Mpc(num_blocks, n, 1);
    const HostMatrix good(problem, scalar());
    for (const std::vector<int64_t>& cut : std::vector<std::vector<int64_t>>{{}, {1}, {2}}) {
      const PlanPtr plan = Cut(good.shape(), cut);
      const Columns answer = Answer(good, plan);
      for (const int64_t block : {int64_t{0}, num_blocks / 2, num_blocks - 1}) {
        SCOPED_TRACE(absl::StrCat("n ", n, " separators ", plan->separators(), " block ", block));
        HostMatrix bad(problem, scalar());
        bad.SetDiagonal(block, n - 1, n - 1, -1);
        for (int repeat = 0; repeat < 2; ++repeat) {
          const FactorOutcome outcome = FactorOne(solver(), bad, plan);
          ASSERT_TRUE(outcome.not_positive_definite.has_value()) << outcome.status;
          EXPECT_EQ(outcome.not_positive_definite->minor, (block + 1) * n);
        }
        EXPECT_EQ(Answer(good, plan), answer);
      }
    }
  }
}

TEST_P(RepeatedCallsTest, ACancelledFactorizationHarmsNoneAfterIt) {
  const std::atomic<bool> cancelled = true;
  for (const int64_t n : {5, 65}) {
    const HostMatrix matrix(problems::Mpc(5, n, 1), scalar());
    const PlanPtr plan = Cut(matrix.shape(), {2});
    const Columns answer = Answer(matrix, plan);
    FactorItem item;
    item.matrix = matrix.view();
    item.cancelled = &cancelled;
    EXPECT_EQ(solver().Factor(plan, {&item, 1})[0].status.code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(Answer(matrix, plan), answer);
  }
}

// More systems than a launch takes, which are launched one after another.
TEST_P(RepeatedCallsTest, AVeryLargeBatchNamesThoseThatFail) {
  constexpr size_t kSystems = 33000;
  const problems::Problem problem = problems::Mpc(3, 1, 1);
  const HostMatrix good(problem, scalar());
  HostMatrix bad(problem, scalar());
  bad.SetDiagonal(1, 0, 0, -1);
  const PlanPtr plan = Cut(good.shape(), {1});
  std::vector<FactorItem> items(kSystems);
  for (FactorItem& item : items) item.matrix = good.view();
  for (const size_t k : {size_t{0}, size_t{32767}, size_t{32768}, kSystems - 1}) {
    items[k].matrix = bad.view();
  }
  const std::vector<FactorOutcome> outcomes = solver().Factor(plan, items);
  for (size_t k = 0; k < kSystems; ++k) {
    const bool is_bad = items[k].matrix.diagonal == bad.view().diagonal;
    ASSERT_EQ(outcomes[k].status.ok(), !is_bad) << k << " " << outcomes[k].status;
    if (is_bad) {
      EXPECT_EQ(outcomes[k].not_positive_definite->minor, 2);
    }
  }
}

// More than a backend remembers of any.
TEST_P(RepeatedCallsTest, ManyPlansInTurnGiveTheSameAnswersEachTime) {
  constexpr int kPlans = 70;
  std::vector<HostMatrix> matrices;
  std::vector<PlanPtr> plans;
  for (int64_t num_blocks = 1; static_cast<int>(plans.size()) < kPlans; ++num_blocks) {
    for (int64_t separators = 0; 2 * separators < num_blocks; ++separators) {
      matrices.emplace_back(problems::Mpc(num_blocks, 65, 1), scalar());
      plans.push_back(Cut(matrices.back().shape(),
                          separators == 0 ? std::vector<int64_t>{} : std::vector{separators}));
    }
  }
  std::vector<Columns> answers;
  for (size_t p = 0; p < plans.size(); ++p) answers.push_back(Answer(matrices[p], plans[p]));
  for (size_t p = 0; p < plans.size(); ++p) {
    SCOPED_TRACE(plans[p]->DebugString());
    EXPECT_EQ(Answer(matrices[p], plans[p]), answers[p]);
    // At once again, and at another place in memory.
    const auto elsewhere = MustFactor(solver(), matrices[p], plans[p]);
    EXPECT_EQ(Answer(matrices[p], plans[p]), answers[p]);
  }
}

// Plans that take turns, factored and solved with.
TEST_P(RepeatedCallsTest, FewLargeBlocksOfUnlikeShapesTakeTurns) {
  struct Cuts {
    int64_t num_blocks, n;
    std::vector<int64_t> separators;
  };
  std::vector<HostMatrix> matrices;
  std::vector<PlanPtr> plans;
  for (const auto& [num_blocks, n, separators] :
       std::vector<Cuts>{{12, 200, {5, 2}}, {12, 200, {3, 1}}, {5, 260, {2}}, {7, 72, {3}}}) {
    matrices.emplace_back(problems::Mpc(num_blocks, n, 1), scalar());
    plans.push_back(Cut(matrices.back().shape(), separators));
  }
  std::vector<Columns> answers;
  for (int turn = 0; turn < 3; ++turn) {
    for (size_t p = 0; p < plans.size(); ++p) {
      const Columns answer = Answer(matrices[p], plans[p]);
      if (turn == 0) {
        answers.push_back(answer);
      } else {
        EXPECT_EQ(answer, answers[p]) << "turn " << turn << ", plan " << p;
      }
    }
  }
}

// Enough segments that those of several levels are in work at the same time.
TEST_P(RepeatedCallsTest, SolvesOfManySegmentsAgree) {
  for (const int64_t n : {40, 136}) {
    SCOPED_TRACE(absl::StrCat("n ", n));
    // So many that a GPU has not room for all at once.
    const int64_t num_blocks = GetParam().backend == "cpu" ? 60 : 500;
    const HostMatrix matrix(problems::Mpc(num_blocks, n, 3), scalar());
    std::vector<int64_t> separators;
    for (int64_t s = (num_blocks - 1) / 2; s > 1; s = (s - 1) / 2) separators.push_back(s);
    const auto factorization = MustFactor(solver(), matrix, Cut(matrix.shape(), separators));
    for (const int64_t columns : {1, 17}) {
      const Columns rhs(problems::RandomColumns(matrix.shape().rows(), columns, 1), scalar());
      const Columns answer = MustSolve(solver(), factorization, rhs, columns);
      EXPECT_LE(BackwardError(matrix.view(), answer.values(), rhs.values()),
                ErrorBound(matrix.shape()));
      for (int repeat = 0; repeat < 5; ++repeat) {
        EXPECT_EQ(MustSolve(solver(), factorization, rhs, columns), answer);
      }
    }
  }
}

// Columns that are not finite are somebody's own business, also where the same threads then solve
// for others.
TEST_P(RepeatedCallsTest, AColumnThatIsNotFiniteHarmsNoOther) {
  constexpr int64_t kColumns = 6000, kBad = 3;
  for (const int64_t n : {17, 24, 40}) {
    SCOPED_TRACE(absl::StrCat("n ", n));
    const HostMatrix matrix(problems::Mpc(3, n, 2), scalar());
    const int64_t rows = matrix.shape().rows();
    const auto factorization = MustFactor(solver(), matrix);
    std::vector<double> rhs = problems::RandomColumns(rows, kColumns, 5);
    const std::vector<double> expected =
        MustSolve(solver(), factorization, Columns(rhs, scalar()), kColumns).values();
    rhs[kBad * rows + 1] = std::numeric_limits<double>::quiet_NaN();
    std::vector<double> answer =
        MustSolve(solver(), factorization, Columns(rhs, scalar()), kColumns).values();
    EXPECT_TRUE(std::isnan(answer[kBad * rows + 1]));
    std::copy_n(expected.begin() + kBad * rows, rows, answer.begin() + kBad * rows);
    EXPECT_EQ(answer, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, RepeatedCallsTest, ::testing::ValuesIn(Targets()),
                         TargetName);

}  // namespace
}  // namespace blockd::test
