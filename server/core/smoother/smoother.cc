#include "server/core/smoother/smoother.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "server/core/errors.h"
#include "server/core/smoother/dense.h"

namespace blockd::server {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

}  // namespace

// -----------------------------------------------------------------------------------------------------
// Covariances

absl::StatusOr<std::unique_ptr<Smoother>> Smoother::Make(const MeasuredSmooth& measured) {
  std::unique_ptr<Smoother> smoother(new Smoother(measured));
  absl::Status status = smoother->FactorTransitions();
  status.Update(smoother->FactorObservations());
  status.Update(smoother->FactorInitial());
  if (!status.ok()) return status;
  return smoother;
}

absl::Status Smoother::FactorTransitions() {
  const int64_t n = params_.state_size, steps = params_.num_steps - 1;
  const ModelArray& q = params_.transition_covariance;
  if (steps == 0) return absl::OkStatus();
  q_.assign(q.values.begin(), q.values.end());
  double determinant = 0;
  for (int64_t step = 0; step < steps; ++step) {
    if (step == 0 || q.per_step) {
      double* const l = q_.data() + step * n * n;
      if (const std::optional<int64_t> row = Factorize(n, l)) {
        return SingularCovarianceError({"Q", step, *row});
      }
      determinant = LogDeterminant(n, l);
    }
    q_log_determinant_ += determinant;
  }
  return absl::OkStatus();
}

absl::Status Smoother::FactorObservations() {
  const int64_t ny = params_.observation_size;
  const ModelArray& r = params_.observation_covariance;
  // Whole, whatever is missing: what is refused does not depend on y.
  std::vector<double> whole(static_cast<size_t>(ny * ny));
  for (int64_t step = 0; step < (r.per_step ? params_.num_steps : 1); ++step) {
    std::copy_n(At(r, step, ny * ny), ny * ny, whole.begin());
    if (const std::optional<int64_t> row = Factorize(ny, whole.data())) {
      return SingularCovarianceError({"R", step, *row});
    }
  }
  for (const std::vector<uint32_t>& system : patterns_->systems) {
    for (int64_t step = 0; step < params_.num_steps; ++step) {
      absl::Status status = FactorObserved(system[step], r.per_step ? step : 0);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status Smoother::FactorObserved(uint32_t mask, int64_t step) {
  const auto [known, made] = observed_.try_emplace({mask, step});
  if (!made) return absl::OkStatus();
  const std::vector<int32_t>& rows = MaskAt(mask).rows;
  const int64_t ny = params_.observation_size, count = std::ssize(rows);
  const double* const r = At(params_.observation_covariance, step, ny * ny);
  Observed& observed = known->second;
  observed.l.resize(static_cast<size_t>(count * count));
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t i = j; i < count; ++i) observed.l[j * count + i] = r[rows[j] * ny + rows[i]];
  }
  if (const std::optional<int64_t> row = Factorize(count, observed.l.data())) {
    return SingularCovarianceError({"R", step, rows[*row]});
  }
  observed.log_determinant = LogDeterminant(count, observed.l.data());
  return absl::OkStatus();
}

absl::Status Smoother::FactorInitial() {
  if (params_.diffuse) return absl::OkStatus();
  p_.assign(params_.initial_covariance.begin(), params_.initial_covariance.end());
  if (const std::optional<int64_t> row = Factorize(params_.state_size, p_.data())) {
    return SingularCovarianceError({"P", 0, *row});
  }
  return absl::OkStatus();
}

const Smoother::Observed& Smoother::ObservedAt(uint32_t mask, int64_t step) const {
  return observed_.find({mask, params_.observation_covariance.per_step ? step : 0})->second;
}

const double* Smoother::F(int64_t step) const {
  return At(params_.transition, step, params_.state_size * params_.state_size);
}

const double* Smoother::H(int64_t step) const {
  return At(params_.observation, step, params_.observation_size * params_.state_size);
}

const double* Smoother::FactorOfQ(int64_t step) const {
  return q_.data() + (params_.transition_covariance.per_step
                          ? step * params_.state_size * params_.state_size
                          : 0);
}

// -----------------------------------------------------------------------------------------------------
// A

BlockTridiagonalView SystemMatrix::view() const {
  BlockTridiagonalView view;
  view.form = form;
  view.diagonal = diagonal.data();
  view.coupling = coupling.data();
  if (!diagonal_index.empty()) view.diagonal_index = diagonal_index.data();
  if (!coupling_index.empty()) view.coupling_index = coupling_index.data();
  return view;
}

// What the step from t to t+1 adds: V = inv(L) F, U = inv(L), with Q = L L'.
struct Smoother::Terms {
  std::vector<double> from;      // F' inv(Q) F = V' V, to A(t,t)
  std::vector<double> to;        // inv(Q) = U' U, to A(t+1,t+1)
  std::vector<double> coupling;  // A(t+1,t) = -inv(Q) F = -inv(L)' V
};

Smoother::Terms Smoother::TermsOf(int64_t step) const {
  const int64_t n = params_.state_size;
  const double* const l = FactorOfQ(step);
  Terms terms;
  terms.from.resize(static_cast<size_t>(n * n));
  terms.to.resize(static_cast<size_t>(n * n));
  std::vector<double> v(F(step), F(step) + n * n), u(static_cast<size_t>(n * n));
  SolveLower(n, l, v.data(), n);
  AddGram(n, n, v.data(), terms.from.data());
  for (int64_t i = 0; i < n; ++i) u[i * n + i] = 1;
  SolveLower(n, l, u.data(), n);
  AddGram(n, n, u.data(), terms.to.data());
  SolveLowerTransposed(n, l, v.data(), n);
  for (double& value : v) value = -value;
  terms.coupling = std::move(v);
  return terms;
}

std::vector<double> Smoother::ObservedRows(const MissingPatterns::Mask& mask, int64_t step) const {
  const int64_t n = params_.state_size, ny = params_.observation_size;
  const double* const h = H(step);
  std::vector<double> rows;
  rows.reserve(mask.rows.size() * static_cast<size_t>(n));
  for (int64_t j = 0; j < n; ++j) {
    for (const int32_t i : mask.rows) rows.push_back(h[j * ny + i]);
  }
  return rows;
}

// D += H' inv(R) H.
void Smoother::AddObservations(uint32_t mask, int64_t step, double* d) const {
  const int64_t count = std::ssize(MaskAt(mask).rows);
  if (count == 0) return;
  std::vector<double> w = ObservedRows(MaskAt(mask), step);
  SolveLower(count, ObservedAt(mask, step).l.data(), w.data(), params_.state_size);
  AddGram(count, params_.state_size, w.data(), d);
}

namespace {

void Add(const std::vector<double>& terms, double* d) {
  for (size_t i = 0; i < terms.size(); ++i) d[i] += terms[i];
}

// D += inv(P), of its factor.
void AddInverse(int64_t n, const std::vector<double>& l, double* d) {
  std::vector<double> u(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i) u[i * n + i] = 1;
  SolveLower(n, l.data(), u.data(), n);
  AddGram(n, n, u.data(), d);
}

}  // namespace

SystemMatrix Smoother::Assemble(size_t system) const {
  SystemMatrix matrix;
  matrix.form.shape = {params_.num_steps, params_.state_size, Scalar::kFloat64};
  params_.is_constant() ? AssemblePalette(system, matrix) : AssembleEach(system, matrix);
  return matrix;
}

void Smoother::AssembleEach(size_t system, SystemMatrix& matrix) const {
  const int64_t n = params_.state_size, steps = params_.num_steps;
  const bool moves = params_.transition.per_step || params_.transition_covariance.per_step;
  matrix.diagonal.resize(static_cast<size_t>(steps * n * n));
  matrix.coupling.resize(static_cast<size_t>((steps - 1) * n * n));
  Terms terms;
  for (int64_t t = 0; t < steps; ++t) {
    double* const d = matrix.diagonal.data() + t * n * n;
    if (t == 0 && !p_.empty()) AddInverse(n, p_, d);
    if (t > 0) Add(terms.to, d);
    AddObservations(patterns_->systems[system][t], t, d);
    if (t + 1 == steps) break;
    if (t == 0 || moves) terms = TermsOf(t);
    Add(terms.from, d);
    std::copy(terms.coupling.begin(), terms.coupling.end(), matrix.coupling.data() + t * n * n);
  }
}

// One block for each mask at the first, the last and all other steps; one coupling.
void Smoother::AssemblePalette(size_t system, SystemMatrix& matrix) const {
  const int64_t n = params_.state_size, steps = params_.num_steps;
  const std::vector<uint32_t>& masks = patterns_->systems[system];
  Terms terms;
  if (steps > 1) {
    terms = TermsOf(0);
    matrix.coupling = terms.coupling;
    matrix.coupling_index.assign(static_cast<size_t>(steps - 1), 0);
    matrix.form.coupling_palette = 1;
  }
  std::vector<std::array<int64_t, 3>> known(patterns_->masks.size(), {-1, -1, -1});
  int64_t blocks = 0;
  for (int64_t t = 0; t < steps; ++t) {
    const size_t place = t == 0 ? 0 : t + 1 == steps ? 2 : 1;
    int64_t& block = known[masks[t]][place];
    if (block < 0) {
      block = blocks++;
      matrix.diagonal.resize(static_cast<size_t>(blocks * n * n));
      double* const d = matrix.diagonal.data() + block * n * n;
      // In this order, as AssembleEach: the same bits.
      if (t == 0 && !p_.empty()) AddInverse(n, p_, d);
      if (t > 0) Add(terms.to, d);
      AddObservations(masks[t], t, d);
      if (t + 1 < steps) Add(terms.from, d);
    }
    matrix.diagonal_index.push_back(static_cast<uint32_t>(block));
  }
  matrix.form.diagonal_palette = blocks;
}

// -----------------------------------------------------------------------------------------------------
// What is solved for, and what follows from it

void Smoother::Errors(int64_t series, int64_t step, const MissingPatterns::Mask& mask,
                      const double* x, std::vector<double>& errors) const {
  const int64_t n = params_.state_size, ny = params_.observation_size;
  const double* const y = params_.observations.data() + (series * params_.num_steps + step) * ny;
  const double* const d = params_.observation_offset.values.empty()
                              ? nullptr
                              : At(params_.observation_offset, step, ny);
  const double* const h = H(step);
  errors.clear();
  for (const int32_t i : mask.rows) {
    double error = d == nullptr ? y[i] : y[i] - d[i];
    if (x != nullptr) {
      for (int64_t j = 0; j < n; ++j) error -= h[j * ny + i] * x[j];
    }
    errors.push_back(error);
  }
}

void Smoother::RightHandSide(int64_t series, double* b) const {
  const int64_t n = params_.state_size, ny = params_.observation_size, steps = params_.num_steps;
  const std::vector<uint32_t>& masks = patterns_->systems[patterns_->system_of_series[series]];
  std::fill_n(b, n * steps, 0.0);
  if (!p_.empty()) {
    std::copy(params_.initial_mean.begin(), params_.initial_mean.end(), b);
    SolveLower(n, p_.data(), b);
    SolveLowerTransposed(n, p_.data(), b);
  }
  std::vector<double> errors, u(static_cast<size_t>(n));
  for (int64_t t = 0; t < steps; ++t) {
    const MissingPatterns::Mask& mask = MaskAt(masks[t]);
    const int64_t count = std::ssize(mask.rows);
    double* const bt = b + t * n;
    if (count > 0) {
      const Observed& observed = ObservedAt(masks[t], t);
      Errors(series, t, mask, nullptr, errors);
      SolveLower(count, observed.l.data(), errors.data());
      SolveLowerTransposed(count, observed.l.data(), errors.data());
      const double* const h = H(t);
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t i = 0; i < count; ++i) sum += h[j * ny + mask.rows[i]] * errors[i];
        bt[j] += sum;
      }
    }
    if (t + 1 < steps && !params_.transition_offset.values.empty()) {
      std::copy_n(At(params_.transition_offset, t, n), n, u.begin());
      SolveLower(n, FactorOfQ(t), u.data());
      SolveLowerTransposed(n, FactorOfQ(t), u.data());
      AddTransposedProduct(n, n, -1, F(t), u.data(), bt);
      for (int64_t j = 0; j < n; ++j) bt[n + j] += u[j];
    }
  }
}

double Smoother::LogLikelihood(int64_t series, const double* x, double log_determinant) const {
  const int64_t n = params_.state_size, steps = params_.num_steps;
  const std::vector<uint32_t>& masks = patterns_->systems[patterns_->system_of_series[series]];
  double determinants = log_determinant + q_log_determinant_, squares = 0;
  std::vector<double> errors, w(static_cast<size_t>(n));
  if (!p_.empty()) {
    for (int64_t j = 0; j < n; ++j) w[j] = x[j] - params_.initial_mean[j];
    SolveLower(n, p_.data(), w.data());
    squares += SumOfSquares(n, w.data());
    determinants += LogDeterminant(n, p_.data());
  }
  for (int64_t t = 0; t < steps; ++t) {
    const MissingPatterns::Mask& mask = MaskAt(masks[t]);
    const int64_t count = std::ssize(mask.rows);
    const double* const xt = x + t * n;
    if (count > 0) {
      const Observed& observed = ObservedAt(masks[t], t);
      Errors(series, t, mask, xt, errors);
      SolveLower(count, observed.l.data(), errors.data());
      squares += SumOfSquares(count, errors.data());
      determinants += observed.log_determinant;
    }
    if (t + 1 == steps) break;
    std::copy_n(xt + n, n, w.begin());
    AddProduct(n, n, -1, F(t), xt, w.data());
    if (!params_.transition_offset.values.empty()) {
      const double* const c = At(params_.transition_offset, t, n);
      for (int64_t j = 0; j < n; ++j) w[j] -= c[j];
    }
    SolveLower(n, FactorOfQ(t), w.data());
    squares += SumOfSquares(n, w.data());
  }
  // The density of x given y has nx T dimensions, that of w nx (T-1), and x(1) nx more or none.
  const int64_t dimensions = patterns_->observed[series] - (p_.empty() ? n : 0);
  return -(static_cast<double>(dimensions) * std::log(2 * M_PI) + determinants + squares) / 2;
}

std::vector<double> Smoother::ResidualVariances(size_t system, const double* blocks) const {
  const int64_t n = params_.state_size, ny = params_.observation_size, steps = params_.num_steps;
  constexpr double kEps = std::numeric_limits<double>::epsilon();
  std::vector<double> variances(static_cast<size_t>(ny * steps), kNan);
  std::vector<double> row(static_cast<size_t>(n)), product(static_cast<size_t>(n));
  for (int64_t t = 0; t < steps; ++t) {
    const double* const h = H(t);
    const double* const r = At(params_.observation_covariance, t, ny * ny);
    for (const int32_t i : MaskAt(patterns_->systems[system][t]).rows) {
      for (int64_t j = 0; j < n; ++j) row[j] = h[j * ny + i];
      std::fill(product.begin(), product.end(), 0.0);
      AddProduct(n, n, 1, blocks + t * n * n, row.data(), product.data());
      double taken = 0;
      for (int64_t j = 0; j < n; ++j) taken += row[j] * product[j];
      const double left = r[i * ny + i] - taken;
      const double noise = static_cast<double>(4 * n) * kEps * r[i * ny + i];
      if (left > noise) variances[t * ny + i] = left;
    }
  }
  return variances;
}

void Smoother::Residuals(int64_t series, const double* x, const double* variances,
                         double* residuals) const {
  const int64_t n = params_.state_size, ny = params_.observation_size, steps = params_.num_steps;
  const std::vector<uint32_t>& masks = patterns_->systems[patterns_->system_of_series[series]];
  std::fill_n(residuals, ny * steps, kNan);
  std::vector<double> errors;
  for (int64_t t = 0; t < steps; ++t) {
    const MissingPatterns::Mask& mask = MaskAt(masks[t]);
    Errors(series, t, mask, x + t * n, errors);
    for (size_t i = 0; i < mask.rows.size(); ++i) {
      const int64_t at = t * ny + mask.rows[i];
      residuals[at] = errors[i] / std::sqrt(variances[at]);
    }
  }
}

}  // namespace blockd::server
