// Results that are derived from a model's solution.
#include <algorithm>
#include <cmath>

#include "blockd/engine/smoother.h"
#include "engine/smoother/dense.h"
#include "engine/smoother/residuals.h"
#include "engine/smoother/scratch.h"

namespace blockd {

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
    const MissingPatterns::Mask& mask = MaskAt(SystemOf(series), t);
    if (const int64_t count = WriteErrors(params_, mask, series, t, xt, errors); count > 0) {
      const Observed& observed = ObservedAt(SystemOf(series), t);
      Whiten(observed, errors, 1);
      sums.squares += SumOfSquares(count, errors);
      sums.determinants += observed.log_determinant;
    }
    if (t + 1 == params_.num_steps) break;
    std::copy_n(xt + n, n, w);
    AddProduct(n, n, -1, F(t), xt, w);
    if (!params_.transition_offset.values.empty()) {
      const double* const c = params_.transition_offset.At(t, n);
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
    // The density of x given y has nx T dimensions, that of w nx (T-1), and x(1) one more for each
    // state that is not diffuse.
    const int64_t dimensions = patterns_->observed[static_cast<size_t>(k)] - diffuse_states_;
    values[k] =
        -(static_cast<double>(dimensions) * std::log(2 * M_PI) + determinants + squares) / 2;
  }
}

Doubles Smoother::ResidualVariances(size_t system, const double* blocks) const {
  const int64_t n = params_.state_size, ny = params_.observation_size, steps = params_.num_steps;
  Doubles variances(ny * steps);
  Run(Portions(steps), [&](int64_t portion, Scratch& scratch) {
    const Steps part = PortionAt(portion, steps);
    for (int64_t t = part.first; t < part.last; ++t) {
      WriteResidualVariances(params_, MaskAt(system, t), t, blocks + t * n * n, scratch.rows.data(),
                             variances.data() + t * ny);
    }
  });
  return variances;
}

void Smoother::Residuals(std::span<const int64_t> series, const double* means,
                         const double* variances, double* residuals) const {
  const int64_t n = params_.state_size, ny = params_.observation_size, steps = params_.num_steps;
  RunSeries(series, [&](int64_t place, const Steps& part, Scratch& scratch) {
    const int64_t k = series[static_cast<size_t>(place)];
    double* const errors = scratch.errors.data();
    for (int64_t t = part.first; t < part.last; ++t) {
      const MissingPatterns::Mask& mask = MaskAt(SystemOf(k), t);
      WriteErrors(params_, mask, k, t, means + (k * steps + t) * n, errors);
      WriteStandardized(params_, mask, errors, variances + t * ny,
                        residuals + (k * steps + t) * ny);
    }
  });
}

}  // namespace blockd
