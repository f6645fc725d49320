// Matrices in information form, made on the device: they are those of their formulas, and what a
// Factor of them takes and leaves.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <random>

#include "tests/engine/solver_fixture.h"

namespace blockd::test {
namespace {

struct Model {
  int64_t steps, n, rows;
  bool one_transition = false, one_whitener = false, diffuse = false;
};

// The arrays of a model, of random numbers, and its matrix by the formulas.
class Information {
 public:
  Information(const Model& model, Scalar scalar) : model_(model) {
    const int64_t square = model.n * model.n, moves = model.steps - 1;
    form_.shape = {model.steps, model.n, scalar};
    f_ = Draw(model.one_transition ? 1 : moves, model.n, model.n, false);
    u_ = Draw(model.one_whitener ? 1 : moves, model.n, model.n, true);
    initial_ = Draw(1, model.n, model.n, true);
    w_ = Draw(model.steps, model.rows, model.n, false);
    std::vector<std::byte>* const bytes[] = {&f_bytes_, &u_bytes_, &initial_bytes_, &w_bytes_};
    std::vector<double>* const values[] = {&f_, &u_, &initial_, &w_};
    for (int i = 0; i < 4; ++i) {
      *bytes[i] = ToScalars(*values[i], scalar);
      *values[i] = ToDoubles(*bytes[i], scalar);  // what the scalar makes of them is meant
    }
    form_.transitions = f_bytes_.data();
    form_.whiteners = u_bytes_.data();
    form_.one_transition = model.one_transition;
    form_.one_whitener = model.one_whitener;
    if (!model.diffuse) form_.initial = initial_bytes_.data();
    if (model.rows > 0) form_.observations = w_bytes_.data();
    form_.rows = model.rows;
    diagonal_.resize(model.steps * square);
    coupling_.resize(moves * square);
    for (int64_t t = 0; t < model.steps; ++t) AddStep(t);
  }

  const InformationForm& form() const { return form_; }
  const std::vector<double>& diagonal() const { return diagonal_; }
  const std::vector<double>& coupling() const { return coupling_; }
  FactorItem Item() const {
    FactorItem item;
    item.matrix.form = form_.matrix();
    item.information = &form_;
    return item;
  }

 private:
  std::vector<double> Draw(int64_t count, int64_t rows, int64_t columns, bool triangle) {
    std::normal_distribution<double> normal(0, 1 / std::sqrt(static_cast<double>(columns)));
    std::vector<double> values(std::max<int64_t>(count, 0) * rows * columns);
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) % rows,
                    column = static_cast<int64_t>(i) / rows % columns;
      if (triangle && row < column) continue;
      values[i] = normal(random_) + (row == column ? 1 : 0);
    }
    return values;
  }
  // C += sign A' B; A and B have `rows` rows and n columns.
  void AddProduct(int64_t rows, double sign, const double* a, const double* b, double* c) const {
    for (int64_t j = 0; j < model_.n; ++j) {
      for (int64_t i = 0; i < model_.n; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < rows; ++k) sum += a[i * rows + k] * b[j * rows + k];
        c[j * model_.n + i] += sign * sum;
      }
    }
  }
  void AddStep(int64_t t) {
    const int64_t n = model_.n, square = n * n;
    double* const d = diagonal_.data() + t * square;
    const auto whitener = [&](int64_t step) {
      return u_.data() + (model_.one_whitener ? 0 : step * square);
    };
    AddProduct(model_.rows, 1, w_.data() + t * model_.rows * n, w_.data() + t * model_.rows * n, d);
    if (t > 0) AddProduct(n, 1, whitener(t - 1), whitener(t - 1), d);
    if (t == 0 && !model_.diffuse) AddProduct(n, 1, initial_.data(), initial_.data(), d);
    if (t + 1 == model_.steps) return;
    const double* const f = f_.data() + (model_.one_transition ? 0 : t * square);
    std::vector<double> v(square);
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t k = 0; k <= i; ++k) v[j * n + i] += whitener(t)[k * n + i] * f[j * n + k];
      }
    }
    AddProduct(n, 1, v.data(), v.data(), d);
    AddProduct(n, -1, whitener(t), v.data(), coupling_.data() + t * square);
  }

  const Model model_;
  std::mt19937_64 random_{7};
  std::vector<double> f_, u_, initial_, w_, diagonal_, coupling_;
  std::vector<std::byte> f_bytes_, u_bytes_, initial_bytes_, w_bytes_;
  InformationForm form_;
};

class InformationTest : public SolverTest {
 protected:
  FactorOutcome Factor(const FactorItem& item) { return std::move(FactorAll({&item, 1})[0]); }
  std::vector<FactorOutcome> FactorAll(std::span<const FactorItem> items) {
    const absl::StatusOr<PlanPtr> plan = solver().Plan(items[0].matrix.form.shape);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return solver().Factor(*plan, items);
  }
  // The matrix that a factorization has kept: its part from an offset on.
  std::vector<double> Kept(const Factorization& factorization, MatrixPart part) {
    const StagedMatrix& matrix = factorization.matrix();
    const MatrixForm& form = matrix.view().form;
    std::vector<std::byte> bytes(form.bytes(part));
    EXPECT_TRUE(solver().Read(matrix, StagedMatrix::Offset(form, part), bytes).ok());
    return ToDoubles(bytes, form.shape.scalar);
  }
  void ExpectFormulas(const Model& model) {
    SCOPED_TRACE(testing::Message()
                 << model.steps << " steps of " << model.n << ", " << model.rows << " observed");
    const Information information(model, scalar());
    FactorItem item = information.Item();
    item.keep_matrix = true;
    const FactorOutcome outcome = Factor(item);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    const double tolerance = 4 * static_cast<double>(model.n + model.rows) * Epsilon(scalar());
    const auto diagonal = Kept(*outcome.factorization, MatrixPart::kDiagonal);
    double error = 0, largest = 0;
    for (size_t i = 0; i < diagonal.size(); ++i) {
      const int64_t at = static_cast<int64_t>(i) % (model.n * model.n);
      if (at % model.n < at / model.n) continue;  // the upper triangle is nobody's
      error = std::max(error, std::abs(diagonal[i] - information.diagonal()[i]));
      largest = std::max(largest, std::abs(information.diagonal()[i]));
      ASSERT_FALSE(std::isnan(diagonal[i]));
    }
    EXPECT_LE(error, tolerance * largest);
    if (model.steps == 1) return;
    EXPECT_LE(RelativeDifference(Kept(*outcome.factorization, MatrixPart::kCoupling),
                                 information.coupling()),
              tolerance);
  }
};

TEST_P(InformationTest, MatricesAreThoseOfTheFormulas) {
  ExpectFormulas({.steps = 5, .n = 3, .rows = 2});
  ExpectFormulas({.steps = 4, .n = 65, .rows = 20});
  ExpectFormulas({.steps = 3, .n = 64, .rows = 70, .one_transition = true});
  ExpectFormulas({.steps = 4, .n = 33, .rows = 5, .one_whitener = true});
  ExpectFormulas({.steps = 6, .n = 7, .rows = 1, .one_transition = true, .one_whitener = true});
  ExpectFormulas({.steps = 3, .n = 12, .rows = 13, .diffuse = true});
  ExpectFormulas({.steps = 3, .n = 5, .rows = 0});
  ExpectFormulas({.steps = 1, .n = 9, .rows = 3});
  ExpectFormulas({.steps = 2, .n = 1, .rows = 1});
}

TEST_P(InformationTest, LargeModelsGoInPortions) {
  ExpectFormulas({.steps = 24, .n = 20, .rows = 20000});
  ExpectFormulas({.steps = 40000, .n = 2, .rows = 1});
}

TEST_P(InformationTest, HasTheSameBitsInEveryCall) {
  const Information one({.steps = 6, .n = 40, .rows = 10}, scalar());
  const Information other({.steps = 6, .n = 40, .rows = 30, .one_transition = true}, scalar());
  FactorItem items[] = {one.Item(), other.Item(), one.Item()};
  for (FactorItem& item : items) item.keep_matrix = true;
  const FactorOutcome alone = Factor(items[0]);
  const std::vector<FactorOutcome> together = FactorAll(items);
  ASSERT_TRUE(alone.status.ok()) << alone.status;
  for (const int i : {0, 2}) {
    ASSERT_TRUE(together[i].status.ok()) << together[i].status;
    EXPECT_EQ(Kept(*together[i].factorization, MatrixPart::kCoupling),
              Kept(*alone.factorization, MatrixPart::kCoupling));
    const auto a = solver().LogDeterminant(*together[i].factorization);
    const auto b = solver().LogDeterminant(*alone.factorization);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(*a, *b);
  }
}

TEST_P(InformationTest, TakesNoMoreThanIsSaid) {
  const Information information({.steps = 9, .n = 40, .rows = 10}, scalar());
  const absl::StatusOr<PlanPtr> plan = solver().Plan(information.form().shape);
  ASSERT_TRUE(plan.ok());
  const int64_t said = MemoryPool::Rounded((*plan)->factor_bytes()) +
                       solver().FactorWorkspaceBytes(**plan, information.form().matrix(), 1) +
                       solver().InformationBytes(information.form());
  // All but so much is taken: it suffices, and a little less does not.
  for (const bool enough : {true, false}) {
    const int64_t left = enough ? said : MemoryPool::Rounded((*plan)->factor_bytes());
    auto rest = solver().backend().pool().Allocate(Pool().capacity_bytes - left);
    ASSERT_TRUE(rest.ok()) << rest.status();
    const FactorOutcome outcome = Factor(information.Item());
    EXPECT_EQ(outcome.status.ok(), enough) << outcome.status;
    if (!enough) {
      EXPECT_TRUE(absl::IsResourceExhausted(outcome.status));
    }
  }
}

TEST_P(InformationTest, IsCancelled) {
  const Information information({.steps = 9, .n = 40, .rows = 10}, scalar());
  const std::atomic<bool> cancelled = true;
  FactorItem item = information.Item();
  item.cancelled = &cancelled;
  EXPECT_TRUE(absl::IsCancelled(Factor(item).status));
}

TEST_P(InformationTest, SaysWhatIsNotKnown) {
  // Nothing is known of the states but how they follow one another.
  const Information information({.steps = 4, .n = 6, .rows = 0, .diffuse = true}, Scalar::kFloat64);
  const FactorOutcome outcome = Factor(information.Item());
  if (outcome.status.ok()) return;  // by rounding
  EXPECT_TRUE(outcome.not_positive_definite.has_value()) << outcome.status;
}

TEST_P(InformationTest, RefusesWhatIsNotThere) {
  const Information information({.steps = 4, .n = 6, .rows = 2}, scalar());
  FactorItem item = information.Item();
  InformationForm form = information.form();
  item.information = &form;
  form.observations = nullptr;
  EXPECT_TRUE(absl::IsInvalidArgument(Factor(item).status));
  form = information.form();
  form.whiteners = nullptr;
  EXPECT_TRUE(absl::IsInvalidArgument(Factor(item).status));
  form = information.form();
  form.rows = -1;
  EXPECT_TRUE(absl::IsInvalidArgument(Factor(item).status));
  form = information.form();
  item.matrix.form.diagonal = DiagonalForm::kPackedLower;
  EXPECT_TRUE(absl::IsInvalidArgument(Factor(item).status));
}

INSTANTIATE_TEST_SUITE_P(Targets, InformationTest, ::testing::ValuesIn(Targets()), TargetName);

}  // namespace
}  // namespace blockd::test
