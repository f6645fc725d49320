// How far the information form's numbers can be trusted.
#include <algorithm>
#include <cmath>
#include <vector>

#include "blockd/engine/smoother.h"
#include "engine/smoother/dense.h"
#include "engine/smoother/scratch.h"

namespace blockd {

// Sums over whitened equations w of kappa |w|'|w|, of the sizes of w at the deviations of the
// states and at the states themselves.
struct Smoother::Roundings {
  double variances = 0, means = 0;

  void Add(double condition, const std::vector<double>& deviations,
           const std::vector<double>& values) {
    double own = 0, cross = 0;
    for (size_t i = 0; i < deviations.size(); ++i) {
      own += deviations[i];
      cross += std::sqrt(deviations[i] * values[i]);
    }
    variances += condition * own;
    means += condition * cross;
  }
};

Smoother::Roundings Smoother::RoundingsOf(int64_t series, const Steps& steps, const double* x,
                                          const double* variances) const {
  const int64_t n = params_.state_size, ny = params_.observation_size;
  const size_t system = SystemOf(series);
  Roundings sums;
  std::vector<double> sizes, values, whitened, whitened_values, state(static_cast<size_t>(n));
  const auto begin = [&](int64_t rows) {
    for (std::vector<double>* v : {&sizes, &values, &whitened, &whitened_values}) {
      v->assign(static_cast<size_t>(rows), 0);
    }
  };
  const auto end = [&](int64_t rows, const double* whitener, double condition) {
    AddSquaresLower(rows, whitener, sizes.data(), whitened.data());
    AddSquaresLower(rows, whitener, values.data(), whitened_values.data());
    sums.Add(condition, whitened, whitened_values);
  };
  for (int64_t t = steps.first; t < steps.last; ++t) {
    const double* const s = variances + t * n;
    for (int64_t i = 0; i < n; ++i) state[i] = x[t * n + i] * x[t * n + i];
    if (t == 0 && !p_.empty()) {
      begin(n);
      for (int64_t i = 0; i < n; ++i) {
        sizes[i] = s[i];
        values[i] = state[i] + params_.initial_mean[i] * params_.initial_mean[i];
      }
      end(n, p_.data(), p_condition_);
    }
    const MissingPatterns::Mask& mask = MaskAt(system, t);
    if (const int64_t count = std::ssize(mask.rows); count > 0) {
      begin(count);
      const double* const h = H(t);
      const double* const y = params_.observations.data() + (series * params_.num_steps + t) * ny;
      for (int64_t i = 0; i < count; ++i) {
        values[i] = y[mask.rows[i]] * y[mask.rows[i]];
        for (int64_t j = 0; j < n; ++j) {
          const double size = h[j * ny + mask.rows[i]] * h[j * ny + mask.rows[i]];
          sizes[i] += size * s[j];
          values[i] += size * state[j];
        }
      }
      const Observed& observed = ObservedAt(system, t);
      end(count, WhitenerOf(observed), observed.condition);
    }
    if (t + 1 == params_.num_steps) break;
    begin(n);
    for (int64_t i = 0; i < n; ++i) {
      sizes[i] = s[n + i];
      values[i] = x[(t + 1) * n + i] * x[(t + 1) * n + i];
    }
    AddSquares(n, n, F(t), s, sizes.data());
    AddSquares(n, n, F(t), state.data(), values.data());
    end(n, WhitenerOfQ(t), q_condition_.data()[params_.transition_covariance.per_step ? t : 0]);
  }
  return sums;
}

SmoothErrors Smoother::Errors(int64_t series, const double* means, const double* variances,
                              double growth) const {
  const int64_t scalars = params_.state_size * params_.num_steps;
  if (!std::all_of(variances, variances + scalars, [](double v) { return v > 0; })) {
    return {HUGE_VAL, HUGE_VAL, HUGE_VAL};  // NaN too
  }
  const int64_t portions = Portions(params_.num_steps);
  std::vector<Roundings> parts(static_cast<size_t>(portions));
  Run(portions, [&](int64_t i, Scratch&) {
    parts[i] = RoundingsOf(series, PortionAt(i, params_.num_steps), means, variances);
  });
  // Rounding errors of a sum are of either sign, so that they do not add up with the number of
  // terms.
  constexpr double kRounding = 4 * 0x1p-53;
  const double factor = kRounding * growth;
  SmoothErrors errors;
  for (const Roundings& part : parts) {
    errors.variances += factor * part.variances;
    errors.means += factor * part.means;
  }
  // |d log det A| = |tr inv(A) dA|, and the squares are at their least.
  errors.log_likelihood = errors.variances;
  return errors;
}

}  // namespace blockd
