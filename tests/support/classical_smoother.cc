#include "tests/support/classical_smoother.h"

#include <cmath>
#include <span>

namespace blockd::test {
namespace {

// Column-major, in 80-bit arithmetic.
struct ExtendedMatrix {
  ExtendedMatrix(int64_t rows, int64_t columns)
      : rows(rows), columns(columns), values(static_cast<size_t>(rows * columns)) {}
  ExtendedMatrix(int64_t rows, int64_t columns, const double* from)
      : rows(rows), columns(columns), values(from, from + rows * columns) {}
  long double& operator()(int64_t i, int64_t j) { return values[j * rows + i]; }
  long double operator()(int64_t i, int64_t j) const { return values[j * rows + i]; }

  int64_t rows, columns;
  std::vector<long double> values;
};

ExtendedMatrix operator*(const ExtendedMatrix& a, const ExtendedMatrix& b) {
  ExtendedMatrix c(a.rows, b.columns);
  for (int64_t j = 0; j < b.columns; ++j) {
    for (int64_t k = 0; k < a.columns; ++k) {
      for (int64_t i = 0; i < a.rows; ++i) c(i, j) += a(i, k) * b(k, j);
    }
  }
  return c;
}

ExtendedMatrix Sum(const ExtendedMatrix& a, long double factor, const ExtendedMatrix& b) {
  ExtendedMatrix c = a;
  for (size_t i = 0; i < c.values.size(); ++i) c.values[i] += factor * b.values[i];
  return c;
}

ExtendedMatrix Transposed(const ExtendedMatrix& a) {
  ExtendedMatrix t(a.columns, a.rows);
  for (int64_t j = 0; j < a.columns; ++j) {
    for (int64_t i = 0; i < a.rows; ++i) t(j, i) = a(i, j);
  }
  return t;
}

// inv(A) of an SPD matrix, by Gauss and Jordan; its log-determinant.
ExtendedMatrix Inverse(ExtendedMatrix a, long double* log_determinant) {
  const int64_t n = a.rows;
  ExtendedMatrix inverse(n, n);
  for (int64_t i = 0; i < n; ++i) inverse(i, i) = 1;
  *log_determinant = 0;
  for (int64_t k = 0; k < n; ++k) {
    const long double pivot = a(k, k);
    *log_determinant += std::log(pivot);
    for (int64_t j = 0; j < n; ++j) {
      a(k, j) /= pivot;
      inverse(k, j) /= pivot;
    }
    for (int64_t i = 0; i < n; ++i) {
      if (i == k) continue;
      const long double factor = a(i, k);
      for (int64_t j = 0; j < n; ++j) {
        a(i, j) -= factor * a(k, j);
        inverse(i, j) -= factor * inverse(k, j);
      }
    }
  }
  return inverse;
}

ExtendedMatrix At(const ModelArray& array, int64_t step, int64_t rows, int64_t columns) {
  if (array.values.empty()) return ExtendedMatrix(rows, columns);
  return {rows, columns, array.values.data() + (array.per_step ? step * rows * columns : 0)};
}

}  // namespace

ClassicalSmoother::ClassicalSmoother(const SmoothParams& params, int64_t series,
                                     long double diffuse_variance) {
  const int64_t n = params.state_size, ny = params.observation_size, steps = params.num_steps;
  ExtendedMatrix x(n, 1), p(n, n);  // predicted
  for (int64_t i = 0; i < n && params.diffuse; ++i) p(i, i) = diffuse_variance;
  if (!params.diffuse) {
    x = {n, 1, params.initial_mean.data()};
    p = {n, n, params.initial_covariance.data()};
  }
  std::vector<ExtendedMatrix> predicted, predicted_p, filtered, filtered_p;
  for (int64_t t = 0; t < steps; ++t) {
    predicted.push_back(x);
    predicted_p.push_back(p);
    const double* const y = params.observations.data() + (series * steps + t) * ny;
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < ny; ++i) {
      if (!std::isnan(y[i])) rows.push_back(i);
    }
    const auto count = static_cast<int64_t>(rows.size());
    if (count > 0) {
      const ExtendedMatrix all_h = At(params.observation, t, ny, n);
      const ExtendedMatrix all_r = At(params.observation_covariance, t, ny, ny);
      const ExtendedMatrix d = At(params.observation_offset, t, ny, 1);
      ExtendedMatrix h(count, n), r(count, count), error(count, 1);
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t j = 0; j < n; ++j) h(i, j) = all_h(rows[i], j);
        // The lower triangle counts.
        for (int64_t j = 0; j < count; ++j) {
          r(i, j) = rows[i] >= rows[j] ? all_r(rows[i], rows[j]) : all_r(rows[j], rows[i]);
        }
        error(i, 0) = y[rows[i]] - d(rows[i], 0);
      }
      error = Sum(error, -1, h * x);
      long double log_determinant = 0;
      const ExtendedMatrix s = Inverse(Sum(h * p * Transposed(h), 1, r), &log_determinant);
      log_likelihood -= (static_cast<long double>(count) * std::log(2 * M_PIl) + log_determinant +
                         (Transposed(error) * s * error)(0, 0)) /
                        2;
      const ExtendedMatrix gain = p * Transposed(h) * s;
      x = Sum(x, 1, gain * error);
      // Joseph's form.
      ExtendedMatrix keep(n, n);
      for (int64_t i = 0; i < n; ++i) keep(i, i) = 1;
      keep = Sum(keep, -1, gain * h);
      p = Sum(keep * p * Transposed(keep), 1, gain * r * Transposed(gain));
    }
    filtered.push_back(x);
    filtered_p.push_back(p);
    if (t + 1 == steps) break;
    const ExtendedMatrix f = At(params.transition, t, n, n);
    x = Sum(f * x, 1, At(params.transition_offset, t, n, 1));
    p = Sum(f * p * Transposed(f), 1, At(params.transition_covariance, t, n, n));
  }
  means.resize(static_cast<size_t>(n * steps));
  covariances.resize(static_cast<size_t>(n * n * steps));
  lag_one.resize(static_cast<size_t>(n * n * (steps - 1)));
  for (int64_t t = steps - 1; t >= 0; --t) {
    if (t + 1 < steps) {
      long double unused = 0;
      const ExtendedMatrix f = At(params.transition, t, n, n);
      const ExtendedMatrix back =
          filtered_p[t] * Transposed(f) * Inverse(predicted_p[t + 1], &unused);
      const ExtendedMatrix lag = p * Transposed(back);
      std::copy(lag.values.begin(), lag.values.end(), lag_one.begin() + t * n * n);
      x = Sum(filtered[t], 1, back * Sum(x, -1, predicted[t + 1]));
      p = Sum(filtered_p[t], 1, back * Sum(p, -1, predicted_p[t + 1]) * Transposed(back));
    }
    std::copy(x.values.begin(), x.values.end(), means.begin() + t * n);
    std::copy(p.values.begin(), p.values.end(), covariances.begin() + t * n * n);
  }
}

}  // namespace blockd::test
