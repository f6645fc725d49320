// How far the information form's numbers can be trusted.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "blockd/engine/doubles.h"
#include "blockd/engine/smoother.h"
#include "engine/smoother/scratch.h"

namespace blockd {

// Sums over kinds of whitened equations w of kappa |w|'|w|, of the sizes of w at the deviations of
// the states and at the states themselves. A size is the root of the sum of its terms' squares:
// they have either sign. By Cauchy and Schwarz the mixed sum is at most the root of the other two.
struct Smoother::Roundings {
  void Add(double own, double at) {
    variances += own;
    means += std::sqrt(own * at);
  }
  double variances = 0, means = 0;
};

namespace {

// sum w(i) x_i^2, in four sums that a processor adds at once.
template <typename Weight>
double SumOfSquares(int64_t n, const double* x, const Weight& w) {
  std::array<double, 4> sums{};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int64_t k = 0; k < 4; ++k) sums[k] += w(i + k) * x[i + k] * x[i + k];
  }
  for (; i < n; ++i) sums[0] += w(i) * x[i] * x[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Weights of the squares of equations in kappa |w|'|w|, w = U e: kappa times the column sums of U's
// squares. U is a lower triangle, or its diagonal.
void WeighEquations(int64_t rows, const double* u, bool is_diagonal, double condition,
                    double* weights) {
  const auto one = [](int64_t) { return 1.0; };
  for (int64_t k = 0; k < rows; ++k) {
    const double* const column = is_diagonal ? u + k : u + k * (rows + 1);
    weights[k] = condition * SumOfSquares(is_diagonal ? 1 : rows - k, column, one);
  }
}

}  // namespace

Smoother::Roundings Smoother::RoundingsOf(int64_t series, const Steps& steps, const double* x,
                                          const Variances& variances) const {
  const int64_t n = params_.state_size, ny = params_.observation_size;
  const size_t system = SystemOf(series);
  const bool f_moves = params_.transition.per_step || params_.transition_covariance.per_step;
  // Weights of the squares of states and observations, of steps that are alike.
  Doubles initial(n), from(n), to(n), seen(n), observed_values(ny);
  const Observed* weighed = nullptr;
  Roundings sums;
  for (int64_t t = steps.first; t < steps.last; ++t) {
    const double* const xt = x + t * n;
    for (int64_t i = 0; i < n; ++i) {
      if (!(variances.at(t, i) > 0)) sums.variances = HUGE_VAL;  // NaN too
    }
    double own = 0, at = 0;
    const auto add = [&](const Doubles& weights, int64_t step, const double* values) {
      for (int64_t i = 0; i < n; ++i) {
        own += weights.data()[i] * variances.at(step, i);
        at += weights.data()[i] * values[i] * values[i];
      }
    };
    if (t == 0 && !p_.empty()) {
      WeighEquations(n, p_.data(), false, p_condition_, initial.data());
      add(initial, 0, xt);
      for (int64_t i = 0; i < n; ++i) {
        at += initial.data()[i] * params_.initial_mean[i] * params_.initial_mean[i];
      }
      sums.Add(own, at);
    }
    const MissingPatterns::Mask& mask = MaskAt(system, t);
    if (const int64_t count = std::ssize(mask.rows); count > 0) {
      const Observed& observed = ObservedAt(system, t);
      double* const rows = observed_values.data();
      if (weighed != &observed || params_.observation.per_step) {
        weighed = &observed;
        WeighEquations(count, WhitenerOf(observed), has_diagonal_noise_, observed.condition, rows);
        const double* const h = H(t);
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0;
          for (int64_t i = 0; i < count; ++i) {
            const double element = h[j * ny + mask.rows[i]];
            sum += rows[i] * element * element;
          }
          seen.data()[j] = sum;
        }
      }
      own = at = 0;
      add(seen, t, xt);
      const double* const y = params_.observations.data() + (series * params_.num_steps + t) * ny;
      for (int64_t i = 0; i < count; ++i) at += rows[i] * y[mask.rows[i]] * y[mask.rows[i]];
      sums.Add(own, at);
    }
    if (t + 1 == params_.num_steps) break;
    if (f_moves || t == steps.first) {
      const int64_t matrix = params_.transition_covariance.per_step ? t : 0;
      WeighEquations(n, WhitenerOfQ(t), false, q_condition_.data()[matrix], to.data());
      const auto weight = [&](int64_t i) { return to.data()[i]; };
      for (int64_t j = 0; j < n; ++j) from.data()[j] = SumOfSquares(n, F(t) + j * n, weight);
    }
    own = at = 0;
    add(from, t, xt);
    add(to, t + 1, xt + n);
    sums.Add(own, at);
  }
  return sums;
}

SmoothErrors Smoother::Errors(int64_t series, const double* means, const Variances& variances,
                              double growth) const {
  const int64_t portions = Portions(params_.num_steps);
  std::vector<Roundings> parts(static_cast<size_t>(portions));
  Run(portions, [&](int64_t i, Scratch&) {
    parts[i] = RoundingsOf(series, PortionAt(i, params_.num_steps), means, variances);
  });
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
