// How far the information form's numbers can be trusted.
#include <algorithm>
#include <cmath>
#include <vector>

#include "blockd/engine/doubles.h"
#include "blockd/engine/smoother.h"
#include "engine/smoother/scratch.h"

namespace blockd {

// Sums over whitened equations w of kappa |w|'|w|, of the sizes of w at the deviations of the
// states and at the states themselves. A size is the root of the sum of its terms' squares: they
// have either sign.
struct Smoother::Roundings {
  double variances = 0, means = 0;
};

namespace {

// Squares of sizes of the equations of one kind at one step, before and after they are whitened.
class Sizes {
 public:
  explicit Sizes(int64_t most) : equations_(2 * most), whitened_(2 * most) {}

  // Begins with those of so many rows.
  void Begin(int64_t rows) {
    rows_ = rows;
    std::fill_n(equations_.data(), 2 * rows, 0.0);
  }
  void Add(int64_t row, double variance, double value) {
    equations_.data()[2 * row] += variance;
    equations_.data()[2 * row + 1] += value;
  }
  // kappa |w|'|w| of a whitener, which is a lower triangle.
  template <typename Sums>
  void Whiten(const double* u, double condition, Sums* sums) {
    const double* const from = equations_.data();
    double* const to = whitened_.data();
    std::fill_n(to, 2 * rows_, 0.0);
    for (int64_t j = 0; j < rows_; ++j) {
      for (int64_t i = j; i < rows_; ++i) {
        const double square = u[j * rows_ + i] * u[j * rows_ + i];
        to[2 * i] += square * from[2 * j];
        to[2 * i + 1] += square * from[2 * j + 1];
      }
    }
    Sum(condition, sums);
  }
  // The same of one that is the diagonal `u`.
  template <typename Sums>
  void WhitenEach(const double* u, Sums* sums) {
    for (int64_t i = 0; i < 2 * rows_; ++i) {
      whitened_.data()[i] = u[i / 2] * u[i / 2] * equations_.data()[i];
    }
    Sum(1, sums);
  }

 private:
  template <typename Sums>
  void Sum(double condition, Sums* sums) {
    const double* const whitened = whitened_.data();
    double own = 0, cross = 0;
    for (int64_t i = 0; i < rows_; ++i) {
      own += whitened[2 * i];
      cross += std::sqrt(whitened[2 * i] * whitened[2 * i + 1]);
    }
    sums->variances += condition * own;
    sums->means += condition * cross;
  }

  int64_t rows_ = 0;
  Doubles equations_, whitened_;  // of each row the variances' and the means'
};

}  // namespace

Smoother::Roundings Smoother::RoundingsOf(int64_t series, const Steps& steps, const double* x,
                                          const Variances& variances) const {
  const int64_t n = params_.state_size, ny = params_.observation_size;
  const size_t system = SystemOf(series);
  Roundings sums;
  Sizes sizes(std::max(n, ny));
  for (int64_t t = steps.first; t < steps.last; ++t) {
    const auto value = [x = x + t * n](int64_t i) { return x[i] * x[i]; };
    for (int64_t i = 0; i < n; ++i) {
      if (!(variances.at(t, i) > 0)) sums.variances = HUGE_VAL;  // NaN too
    }
    if (t == 0 && !p_.empty()) {
      sizes.Begin(n);
      for (int64_t i = 0; i < n; ++i) {
        const double m = params_.initial_mean[i];
        sizes.Add(i, variances.at(t, i), value(i) + m * m);
      }
      sizes.Whiten(p_.data(), p_condition_, &sums);
    }
    const MissingPatterns::Mask& mask = MaskAt(system, t);
    if (const int64_t count = std::ssize(mask.rows); count > 0) {
      const double* const h = H(t);
      const double* const y = params_.observations.data() + (series * params_.num_steps + t) * ny;
      sizes.Begin(count);
      for (int64_t i = 0; i < count; ++i) sizes.Add(i, 0, y[mask.rows[i]] * y[mask.rows[i]]);
      for (int64_t j = 0; j < n; ++j) {
        const double own = variances.at(t, j), at = value(j);
        for (int64_t i = 0; i < count; ++i) {
          const double square = h[j * ny + mask.rows[i]] * h[j * ny + mask.rows[i]];
          sizes.Add(i, square * own, square * at);
        }
      }
      const Observed& observed = ObservedAt(system, t);
      if (has_diagonal_noise_) {
        sizes.WhitenEach(WhitenerOf(observed), &sums);
      } else {
        sizes.Whiten(WhitenerOf(observed), observed.condition, &sums);
      }
    }
    if (t + 1 == params_.num_steps) break;
    const double* const f = F(t);
    const double* const next = x + (t + 1) * n;
    sizes.Begin(n);
    for (int64_t i = 0; i < n; ++i) sizes.Add(i, variances.at(t + 1, i), next[i] * next[i]);
    for (int64_t j = 0; j < n; ++j) {
      const double own = variances.at(t, j), at = value(j);
      for (int64_t i = 0; i < n; ++i) {
        const double square = f[j * n + i] * f[j * n + i];
        sizes.Add(i, square * own, square * at);
      }
    }
    sizes.Whiten(WhitenerOfQ(t),
                 q_condition_.data()[params_.transition_covariance.per_step ? t : 0], &sums);
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
