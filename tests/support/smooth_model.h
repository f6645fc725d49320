// Linear Gaussian models of random numbers.
#ifndef BLOCKD_TESTS_SUPPORT_SMOOTH_MODEL_H_
#define BLOCKD_TESTS_SUPPORT_SMOOTH_MODEL_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "blockd/engine/smooth_model.h"

namespace blockd::test {

inline constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

// A model and its arrays, of random numbers.
struct SmoothModel {
  struct Options {
    int64_t steps = 20, states = 3, observations = 2, series = 1;
    bool per_step = true;
    bool offsets = true;
    double missing = 0.2;  // of the elements
    double scale = 1;      // of Q
  };
  explicit SmoothModel(const Options& options, uint64_t seed = 1) : random(seed) {
    const int64_t n = options.states, ny = options.observations, steps = options.steps;
    const int64_t all = options.per_step ? steps : 1, moves = options.per_step ? steps - 1 : 1;
    f = Draw(moves * n * n, 0.6 / std::sqrt(static_cast<double>(n)));
    for (int64_t t = 0; t < moves; ++t) {
      for (int64_t i = 0; i < n; ++i) f[t * n * n + i * n + i] += 0.5;
    }
    h = Draw(all * ny * n, 1);
    q = Covariances(moves, n, options.scale);
    r = Covariances(all, ny, 1);
    p = Covariances(1, n, 2);
    m = Draw(n, 1);
    if (options.offsets) {
      c = Draw(moves * n, 1);
      d = Draw(all * ny, 1);
    }
    y = Draw(ny * steps * options.series, 2);
    std::uniform_real_distribution<double> uniform(0, 1);
    for (double& value : y) {
      if (uniform(random) < options.missing) value = kMissing;
    }
    params.num_steps = steps;
    params.state_size = n;
    params.observation_size = ny;
    params.num_series = options.series;
    if (steps > 1) {
      params.transition = {f, options.per_step};
      params.transition_covariance = {q, options.per_step};
      if (options.offsets) params.transition_offset = {c, options.per_step};
    }
    params.observation = {h, options.per_step};
    params.observation_covariance = {r, options.per_step};
    if (options.offsets) params.observation_offset = {d, options.per_step};
    params.initial_mean = m;
    params.initial_covariance = p;
    params.observations = y;
    params.covariances = SmoothedCovariances::kFull;
    params.lag_one = steps > 1;
    params.log_likelihood = true;
  }

  std::vector<double> Draw(int64_t count, double deviation) {
    std::normal_distribution<double> normal(0, deviation);
    std::vector<double> values(static_cast<size_t>(count));
    for (double& value : values) value = normal(random);
    return values;
  }
  // Dense, with NaN in no triangle, and of a moderate condition.
  std::vector<double> Covariances(int64_t count, int64_t n, double scale) {
    std::vector<double> all;
    for (int64_t k = 0; k < count; ++k) {
      const std::vector<double> g = Draw(n * n, 1);
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = 0; i < n; ++i) {
          double sum = i == j ? 0.5 : 0;
          for (int64_t l = 0; l < n; ++l)
            sum += g[l * n + i] * g[l * n + j] / static_cast<double>(n);
          all.push_back(scale * sum);
        }
      }
    }
    return all;
  }

  std::mt19937_64 random;
  std::vector<double> f, q, h, r, c, d, m, p, y;
  SmoothParams params;
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_SMOOTH_MODEL_H_
