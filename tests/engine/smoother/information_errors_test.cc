// The estimates of the information form: of each backend's numbers, against arithmetic of 150
// digits.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "blockd/engine/smoother.h"
#include "tests/engine/smoother/smoother_models.h"
#include "tests/engine/solver_fixture.h"
#include "tests/support/classical_smoother.h"
#include "tests/support/smooth_model.h"

namespace blockd::test {
namespace {

class InformationErrorsTest : public SolverTest {
 public:
  struct Answer {
    std::vector<double> means, variances;
    SmoothErrors errors;
  };

  // nullopt: it has no information form, or none that can be factored.
  std::optional<Answer> Smooth(const SmoothParams& params) {
    if (!Smoother::HasInformationForm(params)) return std::nullopt;
    const auto measured = MeasureSmooth(params, {});
    EXPECT_TRUE(measured.ok()) << measured.status();
    const auto smoother = Smoother::Make(*measured, {&pool_, [] { return absl::OkStatus(); }});
    if (!smoother.ok()) return std::nullopt;
    const int64_t n = params.state_size, steps = params.num_steps;
    SystemMatrix matrix;
    EXPECT_TRUE((*smoother)->Assemble(0, &matrix).ok());
    Answer answer{.means = std::vector<double>(static_cast<size_t>(n * steps)),
                  .variances = std::vector<double>(static_cast<size_t>(n * steps)),
                  .errors = {}};
    EXPECT_TRUE((*smoother)->RightHandSides(std::vector<int64_t>{0}, answer.means.data()).ok());
    const auto plan = solver().Plan(matrix.form.shape);
    EXPECT_TRUE(plan.ok()) << plan.status();
    std::vector<FactorItem> items(1);
    items[0].matrix = matrix.view();
    std::vector<FactorOutcome> factored = solver().Factor(*plan, items);
    if (!factored[0].status.ok()) return std::nullopt;
    const std::shared_ptr<const Factorization> factor = std::move(factored[0].factorization);
    const SolveItem solve{
        .factorization = factor, .rhs = answer.means.data(), .solution = answer.means.data()};
    EXPECT_TRUE(solver().Solve({&solve, 1})[0].status.ok());
    const InverseItem inverse{
        .factorization = factor, .parts = InverseParts::kDiagonalEntries, .num_blocks = steps};
    EXPECT_TRUE(solver().SelectedInverse(inverse, {.diagonal = answer.variances.data()}).ok());
    answer.errors = (*smoother)->Errors(0, answer.means.data(), {answer.variances.data(), n},
                                        factor->conditioning().growth);
    return answer;
  }

 private:
  StepPool pool_{2};
};

INSTANTIATE_TEST_SUITE_P(Backends, InformationErrorsTest, ::testing::ValuesIn([] {
                           std::vector<Target> targets = Targets();
                           std::erase_if(targets, [](const Target& target) {
                             return target.scalar != Scalar::kFloat64;
                           });
                           return targets;
                         }()),
                         TargetName);

// No error is larger than its estimate, where both are above rounding.
TEST_P(InformationErrorsTest, NoErrorIsLargerThanItsEstimate) {
  std::vector<NamedModel> models = SmootherFamilies();
  for (uint64_t seed = 1; seed <= 600; ++seed) models.push_back(HostileModel(seed));
  int compared = 0, good = 0;
  for (const NamedModel& model : models) {
    SCOPED_TRACE(model.name);
    const SmoothParams params = model.params();
    const std::optional<Answer> answer = Smooth(params);
    if (!answer.has_value()) continue;
    const ClassicalSmoother truth(params, 0, kDiffuse, ClassicalSmoother::Digits::k230);
    const int64_t n = params.state_size;
    double means = 0, variances = 0;
    for (int64_t i = 0; i < n * params.num_steps; ++i) {
      const long double variance = truth.covariances[i * n + i % n];
      if (variance <= 1e-24L * truth.predicted_covariances[i * n + i % n])
        continue;  // known exactly
      const long double off =
          std::fabs(answer->means[i] - truth.means[i]) - 0x1p-52L * std::fabs(truth.means[i]);
      means = std::max(means, static_cast<double>(off / std::sqrt(variance)));
      variances = std::max(
          variances, static_cast<double>(std::fabs(answer->variances[i] - variance) / variance));
    }
    ++compared;
    if (IsPromised(answer->errors, nullptr)) ++good;
    // Numbers that are by far not good enough may be anything.
    EXPECT_TRUE(means <= answer->errors.means + 1e-12 || answer->errors.means > 1e-3) << means;
    EXPECT_TRUE(variances <= answer->errors.variances + 1e-12 || answer->errors.variances > 1e-3)
        << variances;
  }
  EXPECT_GT(compared, 80);
  EXPECT_GT(good, 15);
}

// Variances that are none, as a factorization without a digit may give them, are not good.
TEST_P(InformationErrorsTest, VariancesThatAreNoneAreNotGood) {
  const SmoothModel model({});
  StepPool pool(1);
  const auto measured = MeasureSmooth(model.params, {});
  const auto smoother = Smoother::Make(*measured, {&pool, [] { return absl::OkStatus(); }});
  ASSERT_TRUE(smoother.ok()) << smoother.status();
  const std::vector<double> means(60);
  std::vector<double> variances(60, 1.0);
  EXPECT_TRUE(IsPromised((*smoother)->Errors(0, means.data(), {variances.data(), 3}, 1), nullptr));
  for (const double none : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    variances[17] = none;
    EXPECT_FALSE(
        IsPromised((*smoother)->Errors(0, means.data(), {variances.data(), 3}, 1), nullptr))
        << none;
  }
}

// Benign models of every size stay with the information form.
TEST_P(InformationErrorsTest, BenignModelsAreGoodEnough) {
  const SmoothModel::Options kinds[] = {
      {.steps = 1000, .states = 20, .observations = 10, .per_step = false},
      {.steps = 200, .states = 20, .observations = 10},
      {.steps = 20000, .states = 4, .observations = 2, .per_step = false},
      {.steps = 20, .states = 128, .observations = 64, .per_step = false},
  };
  for (const SmoothModel::Options& kind : kinds) {
    SCOPED_TRACE(kind.states);
    const std::optional<Answer> answer = Smooth(SmoothModel(kind).params);
    ASSERT_TRUE(answer.has_value());
    EXPECT_TRUE(IsPromised(answer->errors, nullptr))
        << answer->errors.means << " " << answer->errors.variances;
  }
}

}  // namespace
}  // namespace blockd::test
