// Results that are derived from a model's solution.
#include <algorithm>
#include <cmath>
#include <limits>

#include "blockd/engine/smoother.h"
#include "engine/smoother/dense.h"
#include "engine/smoother/scratch.h"

namespace blockd {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

}  // namespace

struct Smoother::Sums {
  double squares = 0, determinants = 0;
};

Smoother::Sums Smoother::LikelihoodSums(int64_t series, const Steps& steps, Scratch& scratch,
                                        const double* x) const {
  const int64_t n = params_.state_size;
  Sums sums;
  double* const errors = scratch.errors.data();
  double* const w = scratch.state.data();
  if (steps.first == 0 && !p_.empty()) {
    for (int64_t j = 0; j < n; ++j) w[j] = x[j] - params_.initial_mean[j];
    MultiplyLower(n, p_.data(), w);
    sums.squares += SumOfSquares(n, w);
    sums.determinants += p_log_determinant_;
  }
  for (int64_t t = steps.first; t < steps.last; ++t) {
    const double* const xt = x + t * n;
    if (const int64_t count = Errors(series, t, xt, errors); count > 0) {
      const Observed& observed = ObservedAt(SystemOf(series), t);
      MultiplyLower(count, WhitenerOf(observed), errors);
      sums.squares += SumOfSquares(count, errors);
      sums.determinants += observed.log_determinant;
    }
    if (t + 1 == params_.num_steps) break;
    std::copy_n(xt + n, n, w);
    AddProduct(n, n, -1, F(t), xt, w);
    if (!params_.transition_offset.values.empty()) {
      const double* const c = At(params_.transition_offset, t, n);
      for (int64_t j = 0; j < n; ++j) w[j] -= c[j];
    }
    MultiplyLower(n, WhitenerOfQ(t), w);
    sums.squares += SumOfSquares(n, w);
  }
  return sums;
}

void Smoother::LogLikelihoods(std::span<const int64_t> series, const double* means,
                              double log_determinant, double* values) const {
  const int64_t n = params_.state_size, steps = params_.num_steps, portions = Portions(steps);
  std::vector<Sums> parts(series.size() * static_cast<size_t>(portions));
  RunSeries(series, [&](int64_t place, const Steps& part, Scratch& scratch) {
    const int64_t k = series[static_cast<size_t>(place)];
    parts[static_cast<size_t>(place * portions + part.first / PortionSteps())] =
        LikelihoodSums(k, part, scratch, means + k * n * steps);
  });
  const Sums* part = parts.data();
  for (const int64_t k : series) {
    double determinants = log_determinant + q_log_determinant_, squares = 0;
    for (int64_t i = 0; i < portions; ++i, ++part) {
      determinants += part->determinants;
      squares += part->squares;
    }
    // The density of x given y has nx T dimensions, that of w nx (T-1), and x(1) nx more or none.
    const int64_t dimensions = patterns_->observed[static_cast<size_t>(k)] - (p_.empty() ? n : 0);
    values[k] =
        -(static_cast<double>(dimensions) * std::log(2 * M_PI) + determinants + squares) / 2;
  }
}

void Smoother::WriteVariances(size_t system, int64_t step, const double* block, Scratch& scratch,
                              double* variances) const {
  const int64_t n = params_.state_size, ny = params_.observation_size;
  constexpr double kEps = std::numeric_limits<double>::epsilon();
  const double* const h = H(step);
  const double* const r = At(params_.observation_covariance, step, ny * ny);
  const std::vector<int32_t>& rows = MaskAt(system, step).rows;
  const int64_t count = std::ssize(rows);
  double* row = scratch.rows.data();  // of H', each a column
  for (const int32_t i : rows) {
    for (int64_t j = 0; j < n; ++j) *row++ = h[j * ny + i];
  }
  Multiply(n, n, count, block, scratch.rows.data(), scratch.products.data());
  std::fill_n(variances, ny, kNan);
  for (int64_t k = 0; k < count; ++k) {
    double taken = 0;
    for (int64_t j = 0; j < n; ++j) {
      taken += scratch.rows.data()[k * n + j] * scratch.products.data()[k * n + j];
    }
    const double own = r[rows[k] * ny + rows[k]];
    const double left = own - taken;
    if (left > static_cast<double>(4 * n) * kEps * own) variances[rows[k]] = left;
  }
}

Doubles Smoother::ResidualVariances(size_t system, const double* blocks) const {
  const int64_t n = params_.state_size, ny = params_.observation_size, steps = params_.num_steps;
  Doubles variances(ny * steps);
  Run(Portions(steps), [&](int64_t portion, Scratch& scratch) {
    const Steps part = PortionAt(portion, steps);
    for (int64_t t = part.first; t < part.last; ++t) {
      WriteVariances(system, t, blocks + t * n * n, scratch, variances.data() + t * ny);
    }
  });
  return variances;
}

void Smoother::Residuals(std::span<const int64_t> series, const double* means,
                         const double* variances, double* residuals) const {
  const int64_t n = params_.state_size, ny = params_.observation_size, steps = params_.num_steps;
  RunSeries(series, [&](int64_t place, const Steps& part, Scratch& scratch) {
    const int64_t k = series[static_cast<size_t>(place)];
    const double* const errors = scratch.errors.data();
    for (int64_t t = part.first; t < part.last; ++t) {
      Errors(k, t, means + (k * steps + t) * n, scratch.errors.data());
      double* const to = residuals + (k * steps + t) * ny;
      std::fill_n(to, ny, kNan);
      const std::vector<int32_t>& rows = MaskAt(SystemOf(k), t).rows;
      for (size_t i = 0; i < rows.size(); ++i) {
        to[rows[i]] = errors[i] / std::sqrt(variances[t * ny + rows[i]]);
      }
    }
  });
}

}  // namespace blockd
