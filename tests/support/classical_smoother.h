// The Kalman filter and a backward recursion in arithmetic of 230 digits: what Smooth is compared
// with, whatever the model. Q, R and P may be singular or zero. For small models; slow.
#ifndef BLOCKD_TESTS_SUPPORT_CLASSICAL_SMOOTHER_H_
#define BLOCKD_TESTS_SUPPORT_CLASSICAL_SMOOTHER_H_

#include <cstdint>
#include <vector>

#include "blockd/engine/smooth_model.h"

namespace blockd::test {

// A variance for what is diffuse, and what only such states have.
inline constexpr long double kDiffuse = 1e70L, kLeastDiffuse = 1e30L;

struct ClassicalSmoother {
  enum class Digits { k19, k230 };
  // x(1) ~ N(m, P); of a diffuse model P + `diffuse_variance` G G' takes P's place.
  ClassicalSmoother(const SmoothParams& params, int64_t series, long double diffuse_variance = 0,
                    Digits digits = Digits::k19);

  std::vector<long double> means;        // nx x T
  std::vector<long double> covariances;  // nx x nx x T
  std::vector<long double> lag_one;      // nx x nx x (T-1): Cov(x(t+1), x(t))
  // x(t) given y(1..t-1) and given y(1..t): nx x T and nx x nx x T.
  std::vector<long double> predicted_means, predicted_covariances;
  std::vector<long double> filtered_means, filtered_covariances;
  // As SmoothOutput has them, all ny x T but the steps' log-likelihoods.
  std::vector<long double> innovations, log_likelihood_steps;
  std::vector<long double> observation_means, observation_covariances;  // ny x ny x T
  // Means of the disturbances given y, and the variances of these means.
  std::vector<long double> state_disturbances, state_disturbance_variances;  // nx x (T-1)
  std::vector<long double> observation_disturbances, observation_disturbance_variances;
  long double log_likelihood = 0;
  // As SmoothHead.log_likelihood: its limit as that variance grows.
  long double diffuse_log_likelihood = 0;
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_CLASSICAL_SMOOTHER_H_
